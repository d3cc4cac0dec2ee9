"""The board "Where the time went" and the documented queries, compared with jobs of known times."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from tests.integration.services import sixty_times_faster
from tests.integration.stack.boards import board
from tests.integration.stack.filling import Store, filled, store
from tests.support.inbox import DEADLINE
from tests.support.paths import ROOT

TOLERANCE = 0.01  # of the run
DOCS = sorted((ROOT / "docs").rglob("*.md"))

# Rank 2 waits for data, only rank 0 saves checkpoints, and the others are alike.
USUAL = {"data": 0.02, "step": 0.2, "checkpoint.save": 0.0, "evaluation": 0.4}
RANKS = [{**USUAL, "checkpoint.save": 0.3}, USUAL, {**USUAL, "data": 0.16, "step": 0.06}, USUAL]


# The ledger is read in the last activity. The line at the end is printed after the last export.
JOB = """\
import atexit, json, sys, threading, time
found = {}
atexit.register(lambda: print(json.dumps({**found, "ended": time.time()})))
import monitel, monitel_otlp

times, first = json.loads(sys.argv[1]), int(sys.argv[2])
pause = threading.Event().wait
noted = dict.fromkeys(("data", "step", "checkpoint.save", "evaluation"), 0.0)
pipeline = monitel_otlp.configure(service_name="train", export_interval=0.25, spool_dir="spool")

def spend(name):
    begin = time.monotonic()
    pause(times[name])
    noted[name] += time.monotonic() - begin

for step in range(first, first + 20):
    with monitel.activity("data"):
        spend("data")
    monitel.set_step(step)
    spend("step")
    if step % 10 == 0 and times["checkpoint.save"]:
        with monitel.activity("checkpoint.save"):
            spend("checkpoint.save")
last = monitel.activity("evaluation")
last.__enter__()  # to the end
spend("evaluation")
found.update(noted=noted, activities=dict(monitel.ledger().activities))
"""


@dataclass(frozen=True)
class Known:
    begin: float  # start of the process by the clock of the test
    noted: Mapping[str, float]  # time in each activity by the clock of the job
    activities: Mapping[str, float]  # the ledger of the process, read at the end of its last activity
    elapsed: float  # time from the start of the process, by the clock of the test, to its last export


def run(store: Store, folder: Path, run_id: str, ranks: Sequence[Mapping[str, float]], attempt: int = 0) -> list[Known]:
    """Run one process for each rank to its end: twenty steps, from 1 or from half of an earlier attempt."""
    arguments = {rank: [json.dumps(times), str(1 + 10 * attempt)] for rank, times in enumerate(ranks)}
    variables = {"TORCHELASTIC_RESTART_COUNT": str(attempt), "OTEL_RESOURCE_ATTRIBUTES": "service.namespace=vision"}
    found = []
    with store.ranks(folder, run_id, JOB, arguments, **variables) as job:
        for rank, process in enumerate(job.ranks):
            output = folder / f"{rank}.log"
            assert 0 == process.wait(DEADLINE), output.read_text()
            printed = json.loads(output.read_text().splitlines()[-1])
            activities = {name: total_ns / 1e9 for name, total_ns in printed["activities"].items()}
            begin = job.begins[rank]
            found.append(Known(begin, printed["noted"], activities, printed["ended"] - begin))
    return found


class Job:
    """A finished job of four ranks, its board, and a job of one rank with two attempts, one before and one after it."""

    def __init__(self, prometheus: Store, folder: Path) -> None:
        self.store = prometheus
        (first,) = run(prometheus, folder / "restarted", "run-8", [USUAL])
        self.ranks = run(prometheus, folder, "run-7", RANKS)
        (second,) = run(prometheus, folder / "restarted", "run-8", [USUAL], attempt=1)
        self.attempts = [first, second]
        self.end = max(each.begin + each.elapsed for each in self.ranks)
        self.board = board("time", prometheus, "vision")

    def share(self, activity: str, ranks: list[Known] | None = None) -> float:
        of = ranks or self.ranks
        return sum(each.noted[activity] for each in of) / sum(each.elapsed for each in of)


@pytest.fixture(scope="module")
def job(backends: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("ranks")
    with store(backends, folder) as prometheus:
        yield Job(prometheus, folder)


def by(label: str, series: list[dict[str, Any]]) -> dict[str, float]:
    return {each["metric"].get(label, ""): float(each["value"][1]) for each in series}


def test_tables_show_seconds_and_shares(job: Job) -> None:
    """The seconds of all ranks, and of rank zero, with shares that add up to 100 %.

    With rates over 4 minutes and a range of 6 hours, a job of some seconds has the same numbers.
    """
    variables = {**job.board.variables(), "run": "run-7"}
    for title, ranks in (("Time of all ranks", job.ranks), ("Time of the run", job.ranks[:1])):
        seconds, shares = (by("training_activity", each) for each in job.board.shown(title, run="run-7"))
        assert seconds.keys() == shares.keys() >= {"startup", "data", "step", "evaluation", "shutdown"}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-9)
        for activity in ranks[0].noted:
            assert seconds[activity] == pytest.approx(sum(each.noted[activity] for each in ranks), rel=0.02), activity
            assert shares[activity] == pytest.approx(job.share(activity, ranks), abs=TOLERANCE), activity
        for target, expected in zip(job.board.targets(title), (seconds, shares), strict=True):
            assert expected == by("training_activity", job.store.query(filled(target["expr"], variables)))


def test_shares_over_time_add_up_to_one(job: Job) -> None:
    """At each time of the stacked panel, with one series for each activity; and over a longer time."""
    title = "Where the time of all ranks goes"
    (series,), (target,) = job.board.shown(title, run="run-7"), job.board.targets(title)
    sums: dict[float, float] = {}
    for each in series:
        assert {"service_namespace": "vision", "training_run_id": "run-7"}.items() <= each["metric"].items()
        for at, value in each["values"]:
            sums[at] = sums.get(at, 0) + float(value)
    assert {"startup", "data", "step", "checkpoint.save"} <= {each["metric"]["training_activity"] for each in series}
    assert len(sums) > 4
    assert all(isclose(1, total, abs_tol=1e-9) for total in sums.values())
    query = filled(target["expr"], {**job.board.variables(), "run": "run-7"})
    shares = by("training_activity", job.store.query(query))
    assert sum(shares.values()) == pytest.approx(1, abs=1e-9)
    for activity in ("data", "step", "checkpoint.save", "evaluation"):
        assert shares[activity] == pytest.approx(job.share(activity), abs=2 * TOLERANCE)  # rate() extrapolates


def test_tiles_name_overheads_and_the_rank(job: Job) -> None:
    """The goodput and the largest overhead are those of rank zero; the rank with the fewest steps is rank 2."""
    (goodput,), (overhead,), (rank,) = (
        job.board.shown(title, run="run-7")[0]
        for title in ("Goodput", "Largest overhead", "Rank with the fewest steps")
    )
    zero = job.ranks[0]
    assert float(goodput["value"][1]) == pytest.approx(zero.noted["step"] / zero.elapsed, abs=TOLERANCE)
    overheads = {name: zero.activities[name] for name in zero.activities if name != "step"}
    assert max(overheads, key=overheads.__getitem__) == overhead["metric"]["training_activity"]
    slow = job.ranks[2]
    assert "2" == rank["metric"]["training_rank"]
    assert float(rank["value"][1]) == pytest.approx(slow.noted["step"] / slow.elapsed, abs=TOLERANCE)


def test_ranks_are_compared(job: Job) -> None:
    """Each rank has its shares, zero for an activity that it never entered."""
    title = "The 20 ranks with the lowest share of steps"
    step, data, checkpoint, stuck, _ = (by("training_rank", each) for each in job.board.shown(title, run="run-7"))
    for shares, activity in ((step, "step"), (data, "data"), (checkpoint, "checkpoint.save")):
        truth = {str(rank): each.noted[activity] / each.elapsed for rank, each in enumerate(job.ranks)}
        assert truth == pytest.approx(shares, abs=TOLERANCE)
    assert 0 == checkpoint["1"] < checkpoint["0"]
    assert dict.fromkeys("0123", 0.0) == stuck


def test_run_with_two_attempts_adds_up(job: Job) -> None:
    """The time between the attempts is down, and the steps that were done again are lost, in the run but in no rank."""
    first, second = job.attempts
    down = second.begin - (first.begin + first.elapsed)
    lost = first.noted["step"] / 2
    total = first.elapsed + down + second.elapsed
    truth = {
        "down": down,
        "lost": lost,
        "step": first.noted["step"] + second.noted["step"] - lost,
        "data": first.noted["data"] + second.noted["data"],
    }
    seconds, shares = (by("training_activity", each) for each in job.board.shown("Time of the run", run="run-8"))
    assert truth == pytest.approx({name: seconds[name] for name in truth}, abs=TOLERANCE * total)
    assert sum(seconds.values()) == pytest.approx(total, abs=TOLERANCE * total)
    assert sum(shares.values()) == pytest.approx(1, abs=1e-9)
    (bars,) = job.board.shown("Time spent on restarts", run="run-8")
    assert {name: seconds[name] for name in ("down", "lost")} == by("training_activity", bars)
    (overhead,) = job.board.shown("Largest overhead", run="run-8")[0]
    assert "down" == overhead["metric"]["training_activity"]
    assert float(overhead["value"][1]) == pytest.approx(down / total, abs=TOLERANCE)
    ((goodput,),) = job.board.shown("Goodput", run="run-8")
    assert float(goodput["value"][1]) == pytest.approx(truth["step"] / total, abs=TOLERANCE)
    of_attempts = [by("training_attempt", each) for each in job.board.shown("Attempts", run="run-8")]
    assert [down, *(each.elapsed for each in job.attempts)] == pytest.approx(
        [of_attempts[0]["1"], of_attempts[-1]["0"], of_attempts[-1]["1"] - of_attempts[0]["1"]], abs=TOLERANCE * total
    )
    of_ranks, _ = (by("training_activity", each) for each in job.board.shown("Time of all ranks", run="run-8"))
    assert "down" not in of_ranks
    assert sum(of_ranks.values()) == pytest.approx(first.elapsed + second.elapsed, abs=TOLERANCE * total)


def test_documented_queries_are_true(job: Job) -> None:
    """Each documented query on the ledger: over the whole job, shares are within 1 % of the truth."""
    text = "".join(file.read_text() for file in DOCS)
    shares, goodput = sorted({*re.findall(r"`([^`\n]*training_(?:time_seconds_total|goodput_ratio)[^`\n]+)`", text)})

    def answer(query: str) -> list[dict[str, Any]]:
        of_run = query.replace("[5m]", "[1h]").replace("{", '{training_run_id="run-7", ')
        found: list[dict[str, Any]] = job.store.get("query", query=sixty_times_faster(of_run), time=str(job.end))[
            "result"
        ]
        return found

    found = by("training_activity", answer(shares))
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    for activity in ("data", "step", "checkpoint.save", "evaluation"):
        assert found[activity] == pytest.approx(job.share(activity), abs=TOLERANCE)
    (value,) = by("training_rank", answer(goodput)).values()
    assert value == pytest.approx(job.ranks[0].noted["step"] / job.ranks[0].elapsed, abs=TOLERANCE)
