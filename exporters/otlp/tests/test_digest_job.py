"""``configure(ranks="digest")`` in a job of several processes: what a backend gets, and what becomes of the rest."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from subprocess import PIPE, Popen
from threading import Event
from typing import TYPE_CHECKING

import pytest

import monitel_otlp

from .conftest import PRELUDE
from .inbox import DEADLINE
from .spools import spooled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .conftest import Run, Start
    from .inbox import Point
    from .receiver import Receiver

# Each line of stdin is the name of a Stat that gets a sample, and the line is answered when its window is closed.
RANK = """\
rank = int(os.environ["RANK"])
pipeline = monitel_otlp.configure(
    endpoint=os.environ.get("WHERE"), ranks="digest", export_interval=0.1, spool_dir="spool", sigterm=True
)
stats = {}
print("ready", flush=True)
for line in sys.stdin:
    name, _, more = line.strip().partition(" ")
    if name == "fork":
        if not os.fork():
            stat = Stat("child", [COUNT], 60.0)
            stat.add(1)
            stat.flush()
            assert pipeline.force_flush(10)
            os._exit(0)
        os.wait()
    elif name == "event":
        monitel.emit("epoch", rank=rank)
    elif name == "flush":
        print("flushed", pipeline.force_flush(float(more)), flush=True)
        continue
    else:
        spread = [monitel.HISTOGRAM, monitel.STDDEV] if name == "spread" else []
        stat = stats.setdefault(name, Stat(name, [COUNT, SUM, MEAN, *spread], 3600.0, unit="s"))
        stat.add(float(more or rank))
        if not name.startswith("open"):
            stat.flush()
    print("done", flush=True)
"""


@dataclass
class Job:
    """Ranks that do what they are told."""

    folder: Path
    environment: dict[str, str]
    ranks: list[Popen[str]] = field(default_factory=list)

    def start(self, size: int) -> None:
        """Start ranks of nodes of two, and wait until each has its pipeline."""
        script = self.folder / "rank.py"
        script.write_text(PRELUDE + RANK)
        for rank in range(size):
            launcher = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % 2),
                "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": str(rank // 2),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "TORCHELASTIC_RUN_ID": self.folder.name,
            }
            environment = {**os.environ, **self.environment, **launcher}
            self.ranks.append(
                Popen(
                    [sys.executable, str(script)],
                    env=environment,
                    cwd=self.folder,
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=PIPE,
                    text=True,
                )
            )
        assert ["ready\n"] * size == [self.hear(rank) for rank in range(size)]

    def hear(self, rank: int) -> str:
        """The next line that a rank prints."""
        stdout = self.ranks[rank].stdout
        assert stdout is not None
        return stdout.readline()

    def tell(self, what: str, *ranks: int) -> list[str]:
        """Have ranks do something, all by default; their answers."""
        told = ranks or range(len(self.ranks))
        for rank in told:
            stdin = self.ranks[rank].stdin
            assert stdin is not None
            stdin.write(f"{what}\n")
            stdin.flush()
        return [self.hear(rank) for rank in told]

    def end(self, *ranks: int) -> list[str]:
        """Let ranks come to their end, all at once; what each of them says at last."""
        ended = [self.ranks[rank] for rank in ranks or range(len(self.ranks))]
        for rank in ended:
            assert rank.stdin is not None
            rank.stdin.close()
            rank.stdin = None  # or communicate() would flush it
        said = [rank.communicate(timeout=DEADLINE)[1] for rank in ended]
        assert [0] * len(ended) == [rank.returncode for rank in ended], said
        return said

    def kill(self, rank: int) -> None:
        """Kill a rank."""
        self.ranks[rank].kill()
        self.ranks[rank].communicate(timeout=DEADLINE)


@pytest.fixture
def job(receiver: Receiver, tmp_path: Path) -> Iterator[Job]:
    """Four ranks that send to the receiver."""
    job = Job(tmp_path, {"WHERE": receiver.url})
    yield job
    for rank in job.ranks:
        with rank:
            rank.kill()


def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds, with a deadline."""
    deadline, pause = time.monotonic() + DEADLINE, Event()
    while not holds():
        assert time.monotonic() < deadline, what
        pause.wait(0.02)


def totals(receiver: Receiver, metric: str) -> Counter[int]:
    """What each rank's counter has come to, by the rank in its resource."""
    latest = {point.resource["service.instance.id"]: point for point in receiver.points(metric)}
    found: Counter[int] = Counter()
    for point in latest.values():
        found[point.resource["training.rank"]] += int(point.value)
    return found


def heard(receiver: Receiver) -> float:
    """Windows of ranks in all digests of the loss: those that end some milliseconds apart may be in two."""
    return sum(receiver.values("loss.ranks.count"))


def of_pipeline(points: Iterator[Point]) -> set[str]:
    """Metrics of the pipeline itself."""
    return {point.metric for point in points if point.scope == "monitel.pipeline"}


def test_one_process_exports_for_all(receiver: Receiver, job: Job) -> None:
    """The same names as ever, and the spread over ranks; events are each rank's own, and all else is rank zero's."""
    job.start(4)
    job.tell("loss")
    job.tell("event")
    receiver.wait_until(lambda: heard(receiver) == 4 and len(receiver.records("epoch")) == 4)
    assert (4, 6.0) == (receiver.values("loss.count")[-1], receiver.values("loss.sum")[-1])
    assert (0.0, 3.0) == (min(receiver.values("loss.ranks.min")), max(receiver.values("loss.ranks.max")))
    times = [point.time_ns for point in receiver.points("loss.mean")]
    for name, unit in [("count", "{rank}"), ("min", "s"), ("p50", "s"), ("p99", "s"), ("max", "s")]:
        points = receiver.points(f"loss.ranks.{name}")
        assert [(at, unit) for at in times] == [(point.time_ns, point.unit) for point in points]
    assert [0, 1, 2, 3] == sorted(record.attributes["rank"] for record in receiver.records("epoch"))
    said = job.end()
    assert {0} == {point.resource["training.rank"] for point in receiver.all_points()}
    assert {"monitel.digest.ranks", "monitel.digest.late", "monitel.digest.refused"} <= of_pipeline(
        receiver.all_points()
    )
    assert 4 in receiver.values("monitel.digest.ranks")
    lines = [f"monitel: exported {windows} windows, 1 events\n" for windows in (len(times), 0, 0, 0)]
    assert lines == said


def test_distributions_are_of_all_ranks(receiver: Receiver, job: Job) -> None:
    """Where a Stat asks for them: the percentiles and the standard deviation of what all ranks have added."""
    job.start(4)
    job.tell("spread")
    receiver.wait_until(lambda: receiver.values("spread.count")[-1:] == [4])
    digests = len(receiver.values("spread.count"))
    assert [digests] * 2 == [len(receiver.values("spread.p99")), len(receiver.values("spread.stddev"))]
    if digests == 1:  # the ranks' windows end some milliseconds apart, and may be in two
        assert pytest.approx(3.0, rel=0.02) == receiver.values("spread.p99")[0]
        assert pytest.approx(1.25**0.5) == receiver.values("spread.stddev")[0]
    assert pytest.approx(3.0, rel=0.02) == max(receiver.values("spread.p99"))


def test_what_is_open_at_the_end_arrives(receiver: Receiver, job: Job) -> None:
    """All ranks end at once: their last windows are in one digest."""
    job.start(4)
    job.tell("loss")
    job.tell("open")
    said = job.end()
    assert 4 == receiver.values("open.count")[-1], said
    assert 4.0 == sum(receiver.values("open.ranks.count"))
    assert Counter({0: 4}) == totals(receiver, "open.count")


def test_sigterm_to_all(receiver: Receiver, job: Job) -> None:
    """As torchrun ends a job."""
    job.start(4)
    job.tell("loss")
    job.tell("open")
    for rank in job.ranks:
        rank.send_signal(signal.SIGTERM)
    for rank in job.ranks:
        rank.communicate(timeout=DEADLINE)
    assert [-signal.SIGTERM] * 4 == [rank.returncode for rank in job.ranks]
    assert 4 == sum(totals(receiver, "open.count").values())
    assert 4 == totals(receiver, "loss.count")[0]


def test_a_killed_rank_is_not_waited_for(receiver: Receiver, job: Job) -> None:
    """The others' next digest is there at once, of three ranks."""
    job.start(4)
    job.tell("loss")
    receiver.wait_until(lambda: heard(receiver) == 4)
    job.kill(3)
    job.tell("loss", 0, 1, 2)
    receiver.wait_until(lambda: heard(receiver) == 7)
    assert 7 == totals(receiver, "loss.count")[0]
    job.end(0, 1, 2)


def test_a_killed_rank_zero_costs_the_others_nothing(receiver: Receiver, job: Job) -> None:
    """They export themselves what it can no more, each as a digest of its own; that is said once."""
    job.start(4)
    job.tell("loss")
    receiver.wait_until(lambda: heard(receiver) == 4)
    job.kill(0)
    for _ in range(3):
        job.tell("after", 1, 2, 3)
    said = job.end(1, 2, 3)
    assert 9 == totals(receiver, "after.count").total()
    assert [0, 1, 1] == [text.count("cannot hand its windows over") for text in reversed(said)]
    assert 12.0 + 6.0 == sum(
        point.value
        for point in {p.resource["training.rank"]: p for p in receiver.points("after.sum")}.values()
    )


def test_a_forked_child_has_windows_of_its_own(receiver: Receiver, job: Job) -> None:
    """It is no rank: what it records it exports itself; its parent's connection is none of its business."""
    job.start(4)
    job.tell("fork", 0)
    job.tell("fork", 1)
    job.tell("loss")
    receiver.wait_until(lambda: heard(receiver) == 4)
    job.end()
    assert Counter({0: 1, 1: 1}) == totals(receiver, "child.count")
    assert 4 == totals(receiver, "loss.count")[0]


def test_flushing_is_handing_over(receiver: Receiver, job: Job) -> None:
    """For a rank, what rank zero has acknowledged is delivered; without rank zero it is not."""
    job.start(2)
    job.tell("loss")
    assert ["flushed True\n"] * 2 == job.tell("flush 10")
    job.kill(0)
    job.tell("loss", 1)
    assert ["flushed False\n"] == job.tell("flush 0.5", 1)
    assert ["flushed True\n"] == job.tell("flush 10", 1)  # by then it has exported its own
    receiver.wait_until(lambda: totals(receiver, "loss.count")[1] == 1)


def test_offline_the_digest_is_on_disk(job: Job, tmp_path: Path) -> None:
    """In rank zero's spool; the others have none."""
    del job.environment["WHERE"]
    job.start(2)
    job.tell("loss")
    job.end()
    counts, _ = spooled(tmp_path)
    assert 2 == counts[-1]
    assert 1 == len(list((tmp_path / "spool").iterdir()))


def test_delta_has_it_too(receiver: Receiver, job: Job) -> None:
    """One histogram over all ranks, and the same gauges."""
    job.environment["OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"] = "delta"
    job.start(2)
    job.tell("loss 2")
    job.end()
    points = receiver.points("loss")
    assert (2, 4.0) == (sum(point.proto.count for point in points), sum(point.proto.sum for point in points))
    assert {2.0} == set(receiver.values("loss.ranks.p50"))
    assert 2 == heard(receiver)


def test_a_process_alone_is_a_digest_of_one(receiver: Receiver, start: Start) -> None:
    """Without a launcher nothing has to be changed, and no socket is opened."""
    import monitel

    pipeline = start(ranks="digest", export_interval=0.1)
    stat = monitel.Stat("loss", [monitel.MEAN], 60.0)
    stat.add(3)
    stat.flush()
    receiver.wait_until(lambda: receiver.values("loss.mean"))
    assert [1.0] == receiver.values("loss.ranks.count")
    assert pipeline.shutdown()


def test_misuse_is_told() -> None:
    """By what is allowed."""
    with pytest.raises(ValueError, match="ranks must be 'all', 'zero' or 'digest', got 'some'"):
        monitel_otlp.configure(ranks="some")


def test_64_simulated_ranks_are_tens_of_series(receiver: Receiver, run: Run) -> None:
    """And the slow one is named within its first two windows."""
    ended = run(
        *("-m", "monitel_otlp", "simulate", "--digest", "--ranks", 64, "--stats", 4, "--windows", 4),
        *("--window", 2, "--endpoint", receiver.url),
        env={"OTEL_METRIC_EXPORT_INTERVAL": "1000"},
        timeout=120,
    )
    series = {(point.metric, str(point.attributes)) for point in receiver.all_points()}
    assert {0} == {point.resource["training.rank"] for point in receiver.all_points()}
    assert len(series) < 70
    slow = re.search(r"^slow +rank (\d+)", ended.stdout, re.MULTILINE)
    assert slow
    found = [record.attributes for record in receiver.records("training.straggler")]
    assert [int(slow[1])] == [attributes["rank"] for attributes in found]
    assert pytest.approx(2.5, rel=0.15) == found[0]["ratio"]
    assert found[0]["training.step"] <= 2 * 4  # of the slow one: four in a window
    heard = sum(point.value for point in receiver.points("loss.ranks.count"))
    assert 0.9 * 64 * 4 <= heard <= 64 * 4  # at their ends two windows of a rank may be in one cell
    assert "0 dropped" in ended.stdout
