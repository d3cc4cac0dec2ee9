"""A job that is killed at any moment loses at most the last second, and its death is reported; all at the receiver."""

import os
import select
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.processes.promises.jobs import Job, autopsy, replay, running
from tests.support.checks import SetEnv, wait_until
from tests.support.commands import command
from tests.support.inbox import DEADLINE, TEMPORALITY, Answer
from tests.support.receiver import Receiver
from tests.support.scripts import Run, finish, read_line
from tests.support.spools import parse

from monitel_otlp.export.collector import collect


@pytest.fixture
def job(receiver: Receiver) -> Iterator[Job]:
    with running(receiver.url) as job:
        yield job


def test_event_is_safe_when_emit_returns(job: Job, receiver: Receiver) -> None:
    """A process that is killed right after emit() loses no event; each arrives once, with its time and step."""
    begin = time.time_ns()
    job.do("configure()")
    job.send("for n in range(50):\n monitel.set_step(n)\n monitel.emit('left', number=n, text='x' * n)\ndie()")
    job.ended()
    assert [] == receiver.requests
    replay(receiver.url)
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
def test_totals_of_a_killed_process_continue(receiver: Receiver, temporality: str) -> None:
    """Open windows and counters arrive as the next points of their series: same start, each sample once."""
    with running(receiver.url, env={TEMPORALITY: temporality}) as job:
        job.do(TOTALS)
        job.wait_for_sample(0.25, "new")
        job.kill()
    replay(receiver.url)
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


def test_request_without_an_answer_is_sent_once_more(job: Job, receiver: Receiver) -> None:
    """If the process dies before the answer comes, one request of each signal arrives again, with the same values."""
    for kind in ("metrics", "logs"):
        receiver.answer(kind, Answer(delay=2 * DEADLINE))  # it is stored; nobody lives to see the answer
    job.do("pipeline = configure()\nloss = Stat('loss', [COUNT, SUM], 3600.0)\nloss.add(3)\nloss.flush()")
    job.do("monitel.emit('left', number=1)\nassert not pipeline.force_flush(0.01)")
    receiver.wait_until(lambda: receiver.values("loss.sum") and receiver.numbers("left"))
    job.do("monitel.emit('left', number=2)")
    job.kill()
    replay(receiver.url)
    assert [1, 1, 2] == receiver.numbers("left")
    first, again, _ = receiver.records("left")
    assert first == again
    points = [(point.value, point.time_ns, point.start_ns) for point in receiver.points("loss.sum") if point.value]
    assert (points[0],) == tuple({*points})
    assert 3 == points[0][0]
    assert len(points) <= 2


CLOSE = """\
for seconds in {}:
    clock.advance(seconds)
    loss.add(1)
    loss.flush()
"""


def test_point_that_arrives_again_begins_at_the_same_time(receiver: Receiver) -> None:
    """Even after two windows within a millisecond, which are one point or two: that depends on the request."""
    with running(receiver.url, env={TEMPORALITY: "delta"}) as job:
        job.do("pipeline = configure()\nclock = monitel.testing.ManualClock().__enter__()")
        job.do("loss = Stat('loss', [COUNT], 3600.0)\n" + CLOSE.format((10, 0.0004)) + "assert pipeline.force_flush()")
        receiver.answer("metrics", Answer(delay=2 * DEADLINE))
        job.do(CLOSE.format((10,)) + "assert not pipeline.force_flush(0.01)")
        receiver.wait_until(lambda: receiver.values("loss.count") == [2, 1])
        job.kill()
    replay(receiver.url)
    merged, point, *again = receiver.points("loss.count")
    assert (merged.time_ns, 1) == (point.start_ns, len(again))
    assert [(point.value, point.start_ns, point.time_ns)] == [
        (each.value, each.start_ns, each.time_ns) for each in again
    ]


@pytest.mark.parametrize("signal_off", ["metrics", "logs"])
def test_signal_that_is_off_is_not_recovered(receiver: Receiver, setenv: SetEnv, signal_off: str) -> None:
    """Neither open windows and counters, nor the death; its attributes have the limits of all events."""
    with running(receiver.url, env={f"OTEL_{signal_off.upper()}_EXPORTER": "none"}) as job:
        job.do("configure()\nmonitel.stat('loss').add(1)\nmonitel.counter('x').add(1)\nmonitel.emit('left')")
        job.wait_for_sample(1)
        job.kill()
    setenv(OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT="5")
    replay(receiver.url)
    assert {"metrics", "logs"} - {signal_off} == {request.signal for request in receiver.requests}
    texts = [str(each) for died in receiver.records("process.died") for each in died.attributes.values()]
    assert (signal_off == "metrics") == ("SIGKI" in texts or "unkno" in texts)


def test_death_is_reported_with_what_the_process_did(job: Job, receiver: Receiver) -> None:
    """``autopsy`` and the event ``process.died`` name the last step, the waits, the ranges and the activity."""
    begin = time.time_ns()
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
    seen = {"state": "dead", "pid": job.pid, "service": "llm", "step": 7, "activity": "evaluation"}
    assert seen.items() <= found.items()
    assert ["rendezvous"] == [each["key"] for each in found["waits"]]
    assert ["outer", "inner"] == [each["name"] for each in found["ranges"]]
    assert [("loss", 1, 5.0)] == [(each["name"], each["count"], each["last"]) for each in found["windows"]]
    assert (1, 1) == (found["not_delivered"]["windows"], found["not_delivered"]["samples"])
    replay(receiver.url)
    (died,) = receiver.records("process.died")
    facts = died.attributes
    assert (21, "FATAL") == (died.severity, died.severity_text)
    assert {"process.pid": job.pid, "training.step": 7, "training.activity": "evaluation"}.items() <= facts.items()
    exception = "ValueError", "invalid literal for int() with base 10: 'x'"
    assert exception == (found["exception"]["type"], found["exception"]["message"])
    assert exception == (facts["exception.type"], facts["exception.message"])
    assert found["exception"]["place"] == f"{facts['code.file.path']}:{facts['code.line.number']}"
    assert begin < died.time_ns < died.observed_ns < time.time_ns()
    assert ("unknown", "heartbeat") == (facts["process.exit.reason"], facts["process.exit.time.source"])
    assert f"process {job.pid} on " in facts["message"]
    assert "ended without a shutdown at step 7, " in facts["message"]
    assert (["rendezvous"], ["outer", "inner"]) == (facts["wait.keys"], facts["range.names"])
    ages = [facts["training.step.age"], *facts["wait.durations"], *facts["range.durations"]]
    for age in (*ages, facts["training.activity.duration"]):
        assert 0 < age <= (died.time_ns - begin) / 1e9
    assert (job.pid, "llm") == (died.resource["process.pid"], died.resource["service.name"])


def test_forked_child_and_its_parent_die_separately(job: Job, receiver: Receiver) -> None:
    """A parent is collected while its child lives on; a child's events and death are its own."""
    job.do("configure()\nmonitel.emit('left', number=1)\nready, emitted = os.pipe()\nforever = os.pipe()")
    job.send(
        "child = os.fork()\nif not child:\n os.close(1), os.close(2)\n monitel.emit('left', number=2)\n"
        " os.write(emitted, b'.'), os.read(forever[0], 1)\nos.read(ready, 1), os.write(1, b'%d\\n' % child)"
    )
    child = int(read_line(job.process))
    job.kill()
    assert ["dead", "alive"] == [each["state"] for each in autopsy()["processes"]]
    assert 0 == command("replay", "spool", "--endpoint", receiver.url).status
    assert [1] == receiver.numbers("left")
    assert [job.pid] == [each.attributes["process.pid"] for each in receiver.records("process.died")]
    with os.fdopen(os.pidfd_open(child)) as end:
        os.kill(child, signal.SIGKILL)
        assert select.select([end], [], [], DEADLINE)[0]
    replay(receiver.url)
    assert [1, 2] == receiver.numbers("left")
    assert [job.pid, child] == [each.attributes["process.pid"] for each in receiver.records("process.died")]


def test_process_that_has_lost_its_lock_a_moment_ago_is_not_collected(
    job: Job, own_boxes: Path, receiver: Receiver
) -> None:
    """Such as one that has closed all descriptors: what it has recorded arrives once."""
    job.do("configure()\nmonitel.emit('left', number=1)\nloss = Stat('loss', [COUNT], 3600.0)\nloss.add(1)")
    job.wait_for_sample(1)
    job.send(f"os.closerange(3, 4096)\ndie({int(signal.SIGSTOP)})")
    wait_until(lambda: ") T" in Path(f"/proc/{job.pid}/stat").read_text(), "the stop")
    found = collect(own_boxes, Path("spool"))
    job.process.send_signal(signal.SIGCONT)
    assert "done" == read_line(job.process)
    ended = finish(job.process)
    assert (0, 0) == (found.boxes, ended.status), ended.stderr
    assert "Traceback" not in ended.stderr
    assert (1, [1]) == (receiver.record_names().count("left"), receiver.values("loss.count"))


def test_next_attempt_delivers_what_a_killed_one_has_left(receiver: Receiver) -> None:
    """Once, with the death; it is in the account of the attempt that has recorded it."""
    run = {"OTEL_RESOURCE_ATTRIBUTES": "training.run.id=r1"}
    with running(receiver.url, run) as job:
        job.do("configure()\nloss = Stat('loss', [COUNT], 3600.0)\nmonitel.set_step(4)\nloss.add(1)")
        job.do("monitel.emit('left', number=1)")
        job.wait_for_sample(1)
        job.kill()
    with running(receiver.url, run) as again:
        again.do("pipeline = configure()\nmonitel.emit('left', number=2)\nassert pipeline.force_flush()")
        again.do("assert 1 == pipeline.account()['logs'].recorded, 'its own event'")
        receiver.wait_until(lambda: receiver.records("process.died") and receiver.values("loss.count"))
        assert 0 == finish(again.process).status
    assert {1: job.pid, 2: again.pid} == {
        each.attributes["number"]: each.resource["process.pid"] for each in receiver.records("left")
    }
    assert (2, [1]) == (len(receiver.records("left")), receiver.values("loss.count"))
    (died,) = receiver.records("process.died")
    assert {"process.pid": job.pid, "training.step": 4}.items() <= died.attributes.items()
    assert "r1" == died.resource["training.run.id"]


#: A collector that has a backend for traces alone, and so many bytes for each file.
COLLECT = """\
import resource, sys
import monitel_otlp.export.collector
from monitel.console.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({}, resource.RLIM_INFINITY))
sys.exit(main(["replay", "spool"]))
"""


def test_full_disk_keeps_the_record_for_the_next_collector(own_boxes: Path, run: Run) -> None:
    """A collector that cannot write names the problem; the next one delivers everything once."""
    with running("http://127.0.0.1:9") as job:
        job.do("configure()\nloss = Stat('loss', [COUNT], 3600.0)\nfor n in range(4): loss.add(n)")
        job.do("for n in range(3): monitel.emit('left', number=n)\nmonitel.emit('filler', text='x' * 50_000)")
        job.wait_for_sample(3)
        job.kill()
    (left,) = own_boxes.iterdir()
    for size in (0, 100, 40_000, "resource.RLIM_INFINITY"):
        assert left.exists()  # the rest, in whole files
        env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9"}
        run("-c", COLLECT.format(size), env=env, returncode=1)
    found = parse(command("cat", "spool").stdout)
    assert [0, 1, 2] == [each.attributes["number"] for each in found.records if each.name == "left"]
    assert ([4], 1) == (found.values("loss.count"), found.names.count("process.died"))
