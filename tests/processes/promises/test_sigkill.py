"""A job that is killed at any moment loses at most the last second, and its death is reported; all at the receiver."""

import json
import mmap
import os
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import Parse
from tests.processes.promises.jobs import autopsy, replay, running
from tests.support.checks import wait_until
from tests.support.commands import command
from tests.support.inbox import DEADLINE, TEMPORALITY, Answer, points_of, records_of
from tests.support.pipelines import Start
from tests.support.receiver import MESSAGES, Receiver
from tests.support.scripts import finish, started, write_script

import monitel
from monitel.console.runs import read_runs

_COLLECTORS = 18  # killed at as many places of their work


def numbers(receiver: Receiver, name: str = "left") -> list[Any]:
    return [record.attributes["number"] for record in receiver.records(name)]


def test_event_is_safe_when_emit_returns(tmp_path: Path, receiver: Receiver) -> None:
    """A process that is killed right after emit() loses no event; each arrives once, with its time and step."""
    begin = time.time_ns()
    with running(tmp_path, receiver.url) as job:
        job.do("configure()")
        job.send("for n in range(50):\n monitel.set_step(n)\n monitel.emit('left', number=n, text='x' * n)\ndie()")
        job.ended()
    assert [] == receiver.requests
    replay(tmp_path / "spool", receiver.url)
    left = receiver.records("left")
    assert [(n, "x" * n, n) for n in range(50)] == [
        tuple(each.attributes[name] for name in ("number", "text", "training.step")) for each in left
    ]
    times = [each.time_ns for each in left]
    assert begin < times[0] <= times[-1] < time.time_ns()
    assert sorted(times) == times
    assert {job.pid} == {each.resource["process.pid"] for each in left}
    (died,) = receiver.records("process.died")
    assert 49 == died.attributes["training.step"]


#: Sends the samples 0 to 9 and three things, and then records more.
TOTALS = """\
pipeline = configure(distributions="both")
ALL = [COUNT, SUM, MEAN, monitel.MIN, monitel.MAX, monitel.HISTOGRAM]
loss, same = (Stat("loss", ALL, 3600.0, attributes={"split": "train"}) for _ in range(2))
new = Stat("new", ALL, 3600.0)
things = monitel.counter("things", unit="{thing}")
for number in range(10):
    loss.add(number)
things.add(3)
loss.flush()
assert pipeline.force_flush()
loss.add(100)
same.add(7)
things.add(5)
new.add(0.25)
"""


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_totals_of_a_killed_process_continue(tmp_path: Path, receiver: Receiver, temporality: str) -> None:
    """Open windows and counters arrive as the next points of their series: same start, each sample once."""
    with running(tmp_path, receiver.url, env={TEMPORALITY: temporality}) as job:
        job.do(TOTALS)
        job.wait_for_sample(0.25, "new")
        job.kill()
    replay(tmp_path / "spool", receiver.url)
    expected = {
        "loss.count": (10, 12),
        "loss.sum": (45.0, 152.0),
        "things": (3, 8),
        "new.count": (1,),
        "new.sum": (0.25,),
    }
    for metric, totals in expected.items():
        points = receiver.points(metric)
        # Sums of Stats that are not monotonic are cumulative in any case.
        cumulative = temporality == "cumulative" or metric.endswith(".sum")
        steps = totals if cumulative else tuple(b - a for a, b in zip((0, *totals), totals, strict=False))
        values = tuple(point.value for point in points)
        assert steps == (tuple(dict.fromkeys(values)) if cumulative else values), metric  # a flush makes two rounds
        times = [point.time_ns for point in points]
        assert sorted(set(times)) == times
        if cumulative:
            assert 1 == len({point.start_ns for point in points}), metric
            assert 1 == len(receiver.start_points(metric)), metric
        else:
            assert all(later.start_ns >= point.time_ns for point, later in pairwise(points)), metric
    counts = [point.proto.count for point in receiver.points("loss.histogram")]
    assert ([10, 12] if temporality == "cumulative" else [10, 2]) == counts
    assert [4.5, 53.5] == receiver.values("loss.mean")
    assert ([0, 7], [9, 100]) == (receiver.values("loss.min"), receiver.values("loss.max"))
    assert {"train"} == {point.attributes["split"] for point in receiver.points("loss.count")}


def test_request_without_an_answer_is_sent_once_more(tmp_path: Path, receiver: Receiver) -> None:
    """If the process dies before the answer comes, one request of each signal arrives again, with the same values."""
    for kind in ("metrics", "logs"):
        receiver.answer(kind, Answer(delay=2 * DEADLINE))  # it is stored; nobody lives to see the answer
    with running(tmp_path, receiver.url) as job:
        job.do("pipeline = configure()\nloss = Stat('loss', [COUNT, SUM], 3600.0)\nloss.add(3)\nloss.flush()")
        job.do("monitel.emit('left', number=1)\nassert not pipeline.force_flush(0.01)")
        receiver.wait_until(lambda: receiver.values("loss.sum") and numbers(receiver))
        job.do("monitel.emit('left', number=2)")
        job.kill()
    replay(tmp_path / "spool", receiver.url)
    assert [1, 1, 2] == numbers(receiver)
    first, again, _ = receiver.records("left")
    assert first == again
    points = [(point.value, point.time_ns, point.start_ns) for point in receiver.points("loss.sum") if point.value]
    assert (points[0],) == tuple({*points})
    assert 3 == points[0][0]
    assert len(points) <= 2


@pytest.mark.parametrize("signal_off", ["metrics", "logs"])
def test_signal_that_is_off_is_not_recovered(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, signal_off: str
) -> None:
    """Neither open windows and counters, nor the death; its attributes have the limits of all events."""
    with running(tmp_path, receiver.url, env={f"OTEL_{signal_off.upper()}_EXPORTER": "none"}) as job:
        job.do("configure()\nmonitel.stat('loss').add(1)\nmonitel.counter('x').add(1)\nmonitel.emit('left')")
        job.wait_for_sample(1)
        job.kill()
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "5")
    replay(tmp_path / "spool", receiver.url)
    assert {"metrics", "logs"} - {signal_off} == {request.signal for request in receiver.requests}
    texts = [str(each) for died in receiver.records("process.died") for each in died.attributes.values()]
    assert (signal_off == "metrics") == ("SIGKI" in texts or "unkno" in texts)


def test_death_is_reported_with_what_the_process_did(tmp_path: Path, receiver: Receiver) -> None:
    """``autopsy`` and the event ``process.died`` name the last step, the waits, the ranges and the activity."""
    begin = time.time_ns()
    with running(tmp_path, receiver.url) as job:
        job.do(
            "configure(spans=True, service_name='llm')\nloss = Stat('loss', [COUNT], 3600.0)\n"
            "monitel.emit('left', number=1)\nmonitel.set_step(6)\nmonitel.set_step(7)\n"
            "range_of = monitel.profiler.record_function\n"
            "waiting = monitel.WaitCounter('rendezvous').guard()\nwaiting.__enter__()\n"
            "import threading\nfails = threading.Thread(target=int, args=('x',))\nfails.start()\nfails.join()\n"
            "around = [range_of('outer'), range_of('inner'), monitel.activity('evaluation')]\n"
            "for each in around: each.__enter__()\nloss.add(5)"
        )
        job.wait_for_sample(5)
        job.kill()
    (found,) = autopsy(job.pid)["processes"]
    assert ("dead", job.pid, "llm", 7, "evaluation") == tuple(
        found[name] for name in ("state", "pid", "service", "step", "activity")
    )
    assert (["rendezvous"], ["outer", "inner"]) == tuple(
        [each.get("key", each.get("name")) for each in found[kind]] for kind in ("waits", "ranges")
    )
    assert [("loss", 1, 5.0)] == [(each["name"], each["count"], each["last"]) for each in found["windows"]]
    assert (1, 1) == (found["not_delivered"]["windows"], found["not_delivered"]["samples"])
    replay(tmp_path / "spool", receiver.url)
    (died,) = receiver.records("process.died")
    facts = died.attributes
    assert (21, "FATAL", job.pid, 7) == (
        died.severity,
        died.severity_text,
        facts["process.pid"],
        facts["training.step"],
    )
    exception = "ValueError", "invalid literal for int() with base 10: 'x'"
    assert exception == (found["exception"]["type"], found["exception"]["message"])
    assert exception == (facts["exception.type"], facts["exception.message"])
    assert found["exception"]["place"] == f"{facts['code.file.path']}:{facts['code.line.number']}"
    assert begin < died.time_ns < died.observed_ns < time.time_ns()
    assert ("unknown", "heartbeat") == (facts["process.exit.reason"], facts["process.exit.time.source"])
    assert f"process {job.pid} on " in facts["message"]
    assert "ended without a shutdown at step 7, " in facts["message"]
    assert (["rendezvous"], ["outer", "inner"]) == (facts["wait.keys"], facts["range.names"])
    assert "evaluation" == facts["training.activity"]
    ages = [facts["training.step.age"], *facts["wait.durations"], *facts["range.durations"]]
    for age in (*ages, facts["training.activity.duration"]):
        assert 0 < age <= (died.time_ns - begin) / 1e9
    assert (job.pid, "llm") == (died.resource["process.pid"], died.resource["service.name"])


def test_killed_inside_c_code_with_the_gil(tmp_path: Path, receiver: Receiver) -> None:
    """As by the OOM killer while a kernel is launched: no Python code runs, and nothing recorded before is lost."""
    with running(tmp_path, receiver.url) as job:
        job.do(
            "configure()\nimport ctypes\nloss = Stat('loss', [COUNT, SUM], 3600.0)\n"
            "loss.add(1)\nloss.flush()\nloss.add(2)"
        )
        job.wait_for_sample(2)
        job.send(
            "monitel.set_step(9)\nmonitel.emit('left', number=1)\nos.write(1, b'in C\\n')\n"
            "ctypes.PyDLL(None).sleep(600)"
        )
        assert job.process.stdout is not None
        assert "in C\n" == job.process.stdout.readline()
        assert 9 == job.row()["step"]
        job.kill()
    replay(tmp_path / "spool", receiver.url)
    (died,) = receiver.records("process.died")
    assert 9 == died.attributes["training.step"]
    assert ([1], [1, 3]) == (numbers(receiver), [value for value in receiver.values("loss.sum") if value])


def test_next_job_collects_a_killed_one(tmp_path: Path, receiver: Receiver, start: Start) -> None:
    """Its events, windows and death arrive once, with its resource; the account of the new job is without them."""
    with running(tmp_path, receiver.url) as job:
        job.do("configure()\nloss = Stat('loss', [COUNT], 3600.0)\nloss.add(4)\nmonitel.emit('left', number=1)")
        job.wait_for_sample(4)
        job.kill()
    pipeline = start()
    monitel.emit("first")
    assert pipeline.force_flush(DEADLINE)
    receiver.wait_until(lambda: receiver.records("process.died") and receiver.values("loss.count"))
    pipeline.shutdown()
    assert ([1], [1]) == (numbers(receiver), receiver.values("loss.count"))
    assert 1 == pipeline.account()["logs"].recorded
    assert {job.pid} == {each.resource["process.pid"] for each in receiver.records("left")}
    assert {os.getpid()} == {each.resource["process.pid"] for each in receiver.records("first")}
    assert 0 == command("replay", tmp_path / "spool", "--endpoint", receiver.url).status  # nothing is left


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        ("os.kill(os.getpid(), 9)", -9, {"reason": "signal", "signal": "SIGKILL"}),
        ("os._exit(3)", 3, {"reason": "code", "code": 3}),
    ],
)
def test_run_collects_the_job_that_it_has_started(
    tmp_path: Path, receiver: Receiver, end: str, status: int, reason: dict[str, Any]
) -> None:
    """``monitel run`` ends as the job does, has delivered everything by then, and knows how the job has died."""
    script = f"monitel_otlp.configure(spool_dir='spool')\nmonitel.emit('left', number=1)\n{end}\n"
    options = ["-m", "monitel", "run", "--endpoint", receiver.url, "--"]
    with started(tmp_path, *options, sys.executable, write_script(tmp_path, script)) as process:
        assert status == finish(process).status
    assert [1] == numbers(receiver)
    (died,) = receiver.records("process.died")
    prefix = "process.exit."
    known = {name.removeprefix(prefix): value for name, value in died.attributes.items() if name.startswith(prefix)}
    assert {**reason, "time.source": "parent"} == {name: value for name, value in known.items() if name != "time"}
    assert 0 == command("replay", tmp_path / "spool", "--endpoint", receiver.url).status


def test_run_alone_collects_the_processes_that_it_has_started(tmp_path: Path, receiver: Receiver) -> None:
    """While it runs, other collectors leave a dead rank to it, because it observes the ends of ranks."""
    script = """\
import subprocess
if len(sys.argv) > 1:
    monitel_otlp.configure(spool_dir="spool")
    monitel.emit("left", number=1)
    os.kill(os.getpid(), 9)
assert subprocess.run([sys.executable, __file__, "rank"]).returncode == -9
print("died", flush=True)
sys.stdin.readline()
"""
    options = ["-m", "monitel", "run", "--endpoint", receiver.url, "--"]
    with started(tmp_path, *options, sys.executable, write_script(tmp_path, script)) as process:
        assert process.stdout is not None
        assert "died\n" == process.stdout.readline()
        assert "collected" not in command("replay", "--endpoint", receiver.url).output
        assert 0 == finish(process, "\n").status
    assert 1 == len(receiver.records("process.died"))
    assert [1] == numbers(receiver)


def test_two_ranks_die_as_ranks(tmp_path: Path, receiver: Receiver) -> None:
    """``autopsy`` shows them as one job, with the rank that is late; each death has its rank."""
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    ranks = [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    with running(tmp_path, receiver.url, ranks[0]) as zero, running(tmp_path, receiver.url, ranks[1]) as one:
        for rank, job in enumerate((zero, one)):
            job.do("configure(service_name='llm')\nloss = Stat('loss', [COUNT], 3600.0)")
            job.do(f"monitel.set_step({5 - rank})\nloss.add({rank + 1})\nmonitel.emit('left', number={rank})")
        zero.do("guard = monitel.WaitCounter('all_reduce').guard()\nguard.__enter__()")
        for rank, job in enumerate((zero, one)):
            job.wait_for_sample(rank + 1)
            job.kill()
    report = autopsy()
    (found,) = report["jobs"]
    assert ("llm", 2, [0, 1], [0, 1]) == tuple(found[name] for name in ("service", "world_size", "ranks", "dead"))
    assert {0: 5, 1: 4} == {each["rank"]: each["step"] for each in report["processes"]}
    replay(tmp_path / "spool", receiver.url)
    died = {each.resource["training.rank"]: each.attributes for each in receiver.records("process.died")}
    assert {0: (zero.pid, 5), 1: (one.pid, 4)} == {
        rank: (facts["process.pid"], facts["training.step"]) for rank, facts in died.items()
    }
    assert [["all_reduce"], None] == [died[rank].get("wait.keys") for rank in range(2)]
    assert [0, 1] == sorted(numbers(receiver))
    assert [1, 1] == receiver.values("loss.count")


def test_forked_child_and_its_parent_die_separately(tmp_path: Path, receiver: Receiver) -> None:
    """A parent is collected while its child lives on; a child's events and death are its own."""
    with running(tmp_path, receiver.url) as job:
        job.do("configure()\nmonitel.emit('left', number=1)\nready, emitted = os.pipe()\nforever = os.pipe()")
        job.send(
            "child = os.fork()\nif not child:\n os.close(1), os.close(2)\n monitel.emit('left', number=2)\n"
            " os.write(emitted, b'.'), os.read(forever[0], 1)\nos.read(ready, 1), os.write(1, b'%d\\n' % child)"
        )
        assert job.process.stdout is not None
        child = int(job.process.stdout.readline())
        job.kill()
        assert ["dead", "alive"] == [each["state"] for each in autopsy()["processes"]]
        assert 0 == command("replay", tmp_path / "spool", "--endpoint", receiver.url).status
        assert [1] == numbers(receiver)
        assert [job.pid] == [each.attributes["process.pid"] for each in receiver.records("process.died")]
        with os.fdopen(os.pidfd_open(child)) as end:
            os.kill(child, signal.SIGKILL)
            assert select.select([end], [], [], DEADLINE)[0]
    replay(tmp_path / "spool", receiver.url)
    assert [1, 2] == numbers(receiver)
    assert [job.pid, child] == [each.attributes["process.pid"] for each in receiver.records("process.died")]


def test_exec_is_not_a_death(tmp_path: Path, receiver: Receiver) -> None:
    """The new program is shown as such while it runs; the telemetry before it is collected when it ends."""
    with running(tmp_path, receiver.url) as job:
        job.do("configure()\nmonitel.emit('left', number=1)")
        job.send("os.execv(sys.executable, [sys.executable, '-c', 'print(\"new\", flush=True); input()'])")
        assert job.process.stdout is not None
        assert "new\n" == job.process.stdout.readline()
        (found,) = autopsy(job.pid)["processes"]
        assert found["replaced_by_exec"]
        assert 0 == command("replay", "--endpoint", receiver.url).status
    replay(tmp_path / "spool", receiver.url)
    assert 1 == receiver.record_names().count("left")


def test_next_attempt_continues_a_killed_run(tmp_path: Path, receiver: Receiver) -> None:
    """The next one delivers what the first has left; time between them is ``down``, repeated steps are ``lost``."""
    run = {"OTEL_RESOURCE_ATTRIBUTES": "training.run.id=r1"}
    with running(tmp_path, receiver.url, run) as job:
        job.do("configure()\nloss = Stat('loss', [COUNT], 3600.0)")
        for step in range(1, 5):
            job.do(f"monitel.set_step({step})\nfor _ in range(10**5): pass")
        job.do("loss.add(1)\nmonitel.emit('left', number=1)")
        job.wait_for_sample(1)
        wait_until(lambda: [4] == [each.time.last_step for each in read_runs(tmp_path / "spool", [])], "its last step")
        job.kill()
    with running(tmp_path, receiver.url, run) as again:
        again.do("pipeline = configure()\nmonitel.set_step(2)\nfor _ in range(10**7): pass\nmonitel.set_step(3)")
        again.do("monitel.emit('left', number=2)\nassert pipeline.force_flush()")
        receiver.wait_until(lambda: receiver.records("process.died") and receiver.values("loss.count"))
        assert 0 == finish(again.process).status
    assert [1, 2] == sorted(numbers(receiver))
    assert [1] == receiver.values("loss.count")
    (died,) = receiver.records("process.died")
    assert (job.pid, "r1", 4) == (
        died.attributes["process.pid"],
        died.resource["training.run.id"],
        died.attributes["training.step"],
    )
    spent = {
        point.attributes["training.activity"]: point.value
        for point in receiver.points("training.time")
        if point.resource["process.pid"] == again.pid
    }
    assert min(spent["down"], spent["lost"]) > 0
    assert "attempts    2" in command("ledger", "--spool-dir", tmp_path / "spool", "r1").output


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The box of a job that was killed with three events and a window of four samples; nothing was sent."""
    with running(tmp_path, "http://127.0.0.1:9") as job:
        job.do("configure()\nloss = Stat('loss', [COUNT], 3600.0)\nfor n in range(4): loss.add(n)")
        job.do("for n in range(3): monitel.emit('left', number=n)\nmonitel.emit('filler', text='x' * 50_000)")
        job.wait_for_sample(3)
        job.kill()
    (box,) = Path(os.environ["MONITEL_BLACK_BOX_DIR"]).iterdir()
    return box


def spooled(folder: Path) -> tuple[list[int], list[int], int]:
    """Return the numbers of the events, the values of the count, and the number of deaths that ``cat`` prints."""
    messages: list[Any] = []
    for line in command("cat", folder).output.splitlines():
        (kind,) = json.loads(line)
        messages.append(
            (kind, Parse(line, MESSAGES[{"resourceMetrics": "metrics", "resourceLogs": "logs"}[kind]][0]()))
        )
    points = [each for kind, message in messages if kind == "resourceMetrics" for each in points_of(message)]
    records = [each for kind, message in messages if kind == "resourceLogs" for each in records_of(message)]
    return (
        [each.attributes["number"] for each in records if each.name == "left"],
        [int(each.value) for each in points if each.metric == "loss.count" and each.value],
        sum(each.name == "process.died" for each in records),
    )


def collect_in_a_child(folder: Path, prepare: Callable[[], object]) -> int:
    """Collect the boxes in a forked process, which has a backend for traces alone; return its number."""
    child = os.fork()
    if not child:
        status = 99
        try:
            os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = "http://127.0.0.1:9"
            prepare()
            status = command("replay", folder).status
        finally:
            os._exit(status)
    return child


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Lines:
    def __init__(self) -> None:
        self._count = memoryview(mmap.mmap(-1, 4096)).cast("q")

    @property
    def count(self) -> int:
        return self._count[0]

    def kill_at(self, number: int) -> None:
        """Kill this process at a line from now on; 0 means never."""
        self._count[0] = 0

        def local(_frame: Any, event: str, _argument: Any) -> Any:
            if event == "line":
                self._count[0] += 1
                if self._count[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return local

        sys.settrace(lambda frame, _event, _argument: local if "/monitel" in frame.f_code.co_filename else None)


def test_killed_collector_loses_and_doubles_nothing(left: Path, tmp_path: Path) -> None:
    """Wherever it is killed, the next one continues: each event, sample and death is in the spool once."""
    kept, spool, lines = shutil.copytree(left, tmp_path / "kept"), tmp_path / "spool", Lines()
    assert 1 == status_of(collect_in_a_child(spool, lambda: lines.kill_at(0)))
    whole = lines.count
    for number in range(1, _COLLECTORS + 1):
        shutil.rmtree(spool)
        shutil.copytree(kept, left)
        line = int(whole * (0.2 + 0.7 * number / _COLLECTORS))  # before it, the command starts
        assert -signal.SIGKILL == status_of(collect_in_a_child(spool, lambda: lines.kill_at(line)))  # noqa: B023
        events, counts, deaths = spooled(spool)  # the rest is in the box
        assert ([*range(len(events))], [4][: len(counts)]) == (events, counts), line
        assert deaths <= 1, line
        status_of(collect_in_a_child(spool, lambda: None))
        assert ([0, 1, 2], [4], 1) == spooled(spool), line
        assert [] == [*left.parent.iterdir()], line


def begin_together(gate: int, opened: int) -> None:
    """Wait until the test closes its end of a pipe."""
    os.close(opened)
    os.read(gate, 1)


def test_collectors_share_what_dead_processes_have_left(tmp_path: Path) -> None:
    """Three collectors that begin together collect each of eight processes once."""
    with running(tmp_path, "http://127.0.0.1:9") as job:
        job.do(
            "configure()\nfor n in range(8):\n child = os.fork()\n if not child:\n"
            "  monitel.emit('left', number=n)\n  die()\n os.waitpid(child, 0)"
        )
        job.kill()
    spool, (gate, opened) = tmp_path / "spool", os.pipe()
    children = [collect_in_a_child(spool, lambda: begin_together(gate, opened)) for _ in range(3)]
    os.close(opened)
    assert [1, 1, 1] == [*map(status_of, children)]
    os.close(gate)
    numbers, _, deaths = spooled(spool)
    assert ([*range(8)], 8) == (sorted(numbers), deaths)  # the parent, which was killed, too, has recorded nothing


def test_full_disk_keeps_the_record_for_the_next_collector(left: Path, tmp_path: Path) -> None:
    """A collector that cannot write names the problem; the next one delivers everything once."""
    for size in (0, 100, 40_000):
        assert 1 == status_of(collect_in_a_child(tmp_path / "spool", lambda: limit_files(size)))  # noqa: B023
        assert left.exists()  # the rest, in whole files
    status_of(collect_in_a_child(tmp_path / "spool", lambda: None))
    assert ([0, 1, 2], [4], 1) == spooled(tmp_path / "spool")


def limit_files(size: int) -> None:
    """Let each file of this process grow to so many bytes, as a disk that is full does."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
