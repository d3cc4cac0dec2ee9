"""Counters, wait counters, the step, the ledger and the pipeline's own metrics as points at a receiver."""

import math
import sys
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise
from threading import Event

import pytest
from tests.support.checks import SetEnv, Warned, ledger, wait_until
from tests.support.inbox import CUMULATIVE, DEADLINE, Answer, Point
from tests.support.nvml import FakeNvml
from tests.support.pipelines import Start
from tests.support.producers import record_ranges, wait
from tests.support.receiver import Receiver
from tests.support.series import increase
from tests.support.spools import cat
from tests.unit.promises.reference_tables import code, kind_of, metrics, table

import monitel
from monitel import COUNT, SUM, Stat, WaitReading
from monitel.testing import ManualClock

DELTA = 1
SECOND_NS = 10**9
HOUR_NS = 3600 * SECOND_NS
MILLISECOND_NS = 10**6
TIME, GOODPUT = "training.time", "training.goodput"


def shape(point: Point) -> tuple[str, str, bool | None]:
    return point.kind, point.unit, point.monotonic


def total(receiver: Receiver, metric: str, temporality: int) -> float:
    """Return what a backend makes of all points of a metric."""
    return increase(receiver, metric) if temporality == CUMULATIVE else sum(receiver.values(metric))


def enter(*names: str) -> None:
    for name in names:
        with monitel.activity(name):
            pass


# Counters and the step


def test_counter_is_a_sum_with_its_bare_name(receiver: Receiver, start: Start, temporality: int) -> None:
    """Each export has the total since the creation, or the difference to the last point if there is one."""
    samples = monitel.counter("x", unit="{sample}", description="mine", attributes={"split": "train"})
    seconds = monitel.counter("y", unit="s")
    pipeline = start()
    empty = monitel.counter("empty")
    for amount in (32, 0, 28):
        samples.add(amount)
        seconds.add(amount / 8)
        assert pipeline.force_flush(DEADLINE)
    for counter, unit, scale in ((samples, "{sample}", 1), (seconds, "s", 8)):
        points = receiver.points(counter.name)
        assert {("sum", unit, True, temporality)} == {(*shape(point), point.temporality) for point in points}
        values = [32 / scale, 60 / scale] if temporality == CUMULATIVE else [32 / scale, 28 / scale]
        assert values == [*dict.fromkeys(point.value for point in points)]
        created = counter.reading().start_ns
        if temporality == CUMULATIVE:
            assert {created} == {point.start_ns for point in points}
        else:
            assert [created, points[0].time_ns] == [point.start_ns for point in points]
        assert {scale == 1} == {point.proto.HasField("as_int") for point in points}
    assert {*receiver.values("empty")} == ({0} if temporality == CUMULATIVE else set())
    empty.add(60)
    assert pipeline.force_flush(DEADLINE)
    assert [] == receiver.start_points("empty")  # its first total is a zero
    assert 60 == total(receiver, "empty", temporality)
    first = receiver.points("x")[0]
    assert ("mine", {"split": "train"}, "monitel") == (first.description, first.attributes, first.scope)


def test_total_beyond_64_bits_is_a_double(receiver: Receiver, start: Start) -> None:
    """A smaller one of ints stays an int, even if it is shared by several counters."""
    monitel.counter("x").add(2**63)
    for layer in range(3):
        monitel.counter("y", attributes={"layer": layer}).add(2**63 - 1)
    assert start(series_limit=1).force_flush(DEADLINE)
    large, small, shared, *_ = (receiver.points(name)[number] for name, number in (("x", 0), ("y", 0), ("y", 1)))
    assert (2.0**63, 2**63 - 1, 2.0**64) == (large.proto.as_double, small.proto.as_int, shared.proto.as_double)


@pytest.mark.parametrize("age_s", [60, 5 * 3600, -3600])
def test_counter_begins_with_zero_at_its_creation(receiver: Receiver, start: Start, age_s: int) -> None:
    """Once, beside the first total: at most 30 minutes and at least 1 ms before it, even if the clock was set back."""
    with ManualClock(time.time_ns() - age_s * SECOND_NS):
        samples = monitel.counter("x")
    samples.add(60)
    pipeline = start()
    for _ in range(2):
        assert pipeline.force_flush(DEADLINE)
    (zero,) = receiver.start_points("x")
    points = receiver.points("x")
    first_ns, created_ns = points[0].time_ns, samples.reading().start_ns
    expected = {60: created_ns, 5 * 3600: first_ns - HOUR_NS // 2, -3600: first_ns - MILLISECOND_NS}
    assert expected[age_s] == zero.time_ns
    assert first_ns <= time.time_ns()
    assert {created_ns if age_s > 0 else zero.time_ns} == {zero.start_ns, *(point.start_ns for point in points)}
    assert (60, 0) == (increase(receiver, "x"), pipeline.account()["metrics"].recorded)


@pytest.mark.invalid_output("the size of the queue has the time of the clock", "series.order")
def test_times_ascend_if_the_clock_is_set_back(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, temporality: int
) -> None:
    """By at least a millisecond, with the same start and the right totals."""
    now_ns = time.time_ns
    pipeline = start()
    for amount in (60, 10, 1):
        monitel.counter("x").add(amount)
        monitel.set_step(amount)
        with monitel.WaitCounter("y").guard():
            pass
        assert pipeline.force_flush(DEADLINE)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() - HOUR_NS)
    for metric in ("x", "y.wait.count", "y.wait.active", "training.step"):
        points = receiver.points(metric)
        assert all(two.time_ns - one.time_ns >= MILLISECOND_NS for one, two in pairwise(points))
    assert 71 == total(receiver, "x", temporality)
    assert 1 == len(receiver.start_points("x")) or temporality == DELTA


def test_second_pipeline_continues_counters(receiver: Receiver, start: Start, temporality: int) -> None:
    """The last total is sent at the end; the next pipeline sends no zero again, and no amount twice."""
    with ManualClock() as clock:
        for amount in (60, 10):
            monitel.counter("x").add(amount)
            wait(clock, "y", float(amount))
            assert start().shutdown()
    for metric in ("x", "y.wait.time"):
        zeros = len(receiver.start_points(metric))
        assert (70, temporality == CUMULATIVE) == (total(receiver, metric, temporality), zeros)


def test_step_is_a_gauge(receiver: Receiver, start: Start) -> None:
    """The gauge has no point before the step is known, and may go back."""
    pipeline = start()
    for step in (None, 7, 3):
        if step is not None:
            monitel.set_step(step)
        assert pipeline.force_flush(DEADLINE)
    points = receiver.points("training.step")
    assert [7, 3] == [*dict.fromkeys(point.value for point in points)]
    rows = table("metrics-and-events.md", "", "metric", "kind", "unit")
    (row,) = (row for row in rows if "`training.step`" in row[1])
    (kind, monotonic), (unit,) = kind_of(row[2]), code(row[3])
    assert {(kind, unit, monotonic)} == {shape(point) for point in points}
    assert {("monitel", 0)} == {(point.scope, point.start_ns) for point in points}


# Wait counters


def test_wait_counter_has_the_documented_metrics(receiver: Receiver, start: Start, temporality: int) -> None:
    """Kinds, units and values of the four metrics; the longest wait has a point only after a wait."""
    with ManualClock(time.time_ns() - 60 * SECOND_NS) as clock:
        created = clock.time_ns()
        pipeline = start()
        wait(clock, "x", 2.0, 0.5)
        assert pipeline.force_flush(DEADLINE)
        with monitel.WaitCounter("x").guard():
            assert pipeline.force_flush(DEADLINE)
            clock.advance(0.25)
        assert pipeline.force_flush(DEADLINE)
    documented = {}
    for name, kind, unit, *_ in table("numbers.md", "metric", "kind", "unit"):
        documented[code(name)[0].replace("<key>", "x")] = kind_of(kind)[0], code(unit)[0], kind_of(kind)[1]
    points = [point for point in receiver.all_points() if point.metric.startswith("x.")]
    assert documented == {point.metric: shape(point) for point in points}
    expected = {"time": temporality, "count": temporality, "active": CUMULATIVE, "max": None}
    assert expected == {point.metric.rpartition(".")[2]: point.temporality for point in points}
    values = {name: [*dict.fromkeys(receiver.values(f"x.wait.{name}"))] for name in expected}
    totals = {"time": [2.5, 2.75], "count": [2, 3]}
    if temporality == DELTA:
        totals = {"time": [2.5, 0.25], "count": [2, 1]}
    assert {**totals, "active": [0, 1], "max": [2.0, 0.25]} == {**values, "active": sorted(values["active"])}
    assert (0, [2.0, 0.25]) == (receiver.values("x.wait.active")[-1], receiver.values("x.wait.max"))
    for name in ("time", "count"):
        assert created == receiver.points(f"x.wait.{name}")[0].start_ns
        zeros = [each.time_ns for each in receiver.start_points(f"x.wait.{name}")]
        assert [created] * (temporality == CUMULATIVE) == zeros
    assert [] == receiver.start_points("x.wait.active")


def test_foreign_waits_that_fall_begin_at_zero_again(receiver: Receiver, start: Start, temporality: int) -> None:
    """Their sums have another start, and no difference is negative; a key that disappears has no points."""
    pipeline = start()
    zero = WaitReading(0, 0.0, 0.0, 0)
    for reading in (WaitReading(5, 2.0, 1.0, 0), WaitReading(2, 3.0, 3.0, 0), None, zero, WaitReading(3, 4.0, 3.0, 0)):
        monitel.wait_counter.set_foreign_waits({} if reading is None else {"x": reading})
        assert pipeline.force_flush(DEADLINE)
    monitel.wait_counter.set_foreign_waits({})
    for name, total in (("time", 2.0 + 3.0 + 4.0), ("count", 5 + 2 + 3)):
        points = receiver.points(f"x.wait.{name}")
        if temporality == DELTA:
            assert total == sum(point.value for point in points)
            assert min(point.value for point in points) > 0
        else:
            last = {point.start_ns: point.value for point in points}
            assert (3, total) == (len(last), sum(last.values()))
            assert [*last][1] == receiver.start_points(f"x.wait.{name}")[1].time_ns


# The ledger


def test_activities_of_an_export_add_up(receiver: Receiver, start: Start, temporality: int) -> None:
    """Points have the documented kind and unit, and together all of the time; the last export has the shutdown.

    Before the first step there is no goodput.
    """
    documented = {name: described for name, described, _ in metrics("Time and goodput")}
    pipeline = start()
    enter("data")
    assert pipeline.force_flush(DEADLINE)
    assert [] == receiver.points(GOODPUT)
    for step, entered in enumerate((["init"], ["data", "evaluation"], ["data"])):
        enter(*entered)
        monitel.set_step(step)
        assert pipeline.force_flush(DEADLINE)
    before = ledger().elapsed_ns
    assert pipeline.shutdown(DEADLINE)
    after = ledger()
    points = receiver.points(TIME)
    exports: dict[int, dict[str, Point]] = defaultdict(dict)  # points by the time of the export, and by activity
    for point in points:
        exports[point.time_ns][point.attributes["training.activity"]] = point
    found = [exports[time_ns] for time_ns in sorted(exports)]
    assert {(documented[TIME], temporality)} == {(shape(point), point.temporality) for point in points}
    names = {point.attributes["training.activity"] for point in points}
    assert {"startup", "init", "data", "evaluation", "step", "shutdown"} == names
    summed = [*found[-1].values()] if temporality == CUMULATIVE else points
    if temporality == CUMULATIVE:  # the first activities begin with the process, a new one at the previous export
        assert {after.start_ns} == {point.start_ns for point in points}
        begin_ns = max(after.start_ns, found[0]["startup"].time_ns - HOUR_NS // 2)
        begins = dict.fromkeys(found[0], begin_ns)
        for earlier, export in pairwise(found):
            begins |= dict.fromkeys(export.keys() - earlier.keys(), earlier["startup"].time_ns)
        zeros = receiver.start_points(TIME)
        assert begins == {point.attributes["training.activity"]: point.time_ns for point in zeros}
    assert before / SECOND_NS - 1e-3 <= total(receiver, TIME, temporality) <= after.elapsed_ns / SECOND_NS + 1e-3
    for name in ("startup", "init", "evaluation"):
        value = sum(point.value for point in summed if point.attributes["training.activity"] == name)
        assert after.activities[name] / SECOND_NS == pytest.approx(value, abs=1e-6)
    assert 0 < receiver.values(GOODPUT)[-1] < 1


def test_totals_that_have_not_changed_are_not_written_to_disk(start: Start) -> None:
    """A process that hangs fills no disk; the next change has all of its time, and so has the end of the run."""
    pipeline = start(endpoint=None)
    monitel.set_step(1)
    exported = []
    for amount in (1, 0, 0, 1):
        monitel.counter("x").add(amount)
        if amount:
            with monitel.WaitCounter("y").guard():
                pass
        assert pipeline.force_flush(DEADLINE)
        content = cat("spool")
        exported.append([len({point.time_ns for point in content.points(name)}) for name in ("x", "y.wait.time", TIME)])
    assert exported[0] == exported[1] == exported[2] == [each - 1 for each in exported[3]]
    before = ledger().elapsed_ns / SECOND_NS
    pipeline.shutdown(DEADLINE)
    points = cat("spool").points(TIME)
    last_ns = max(point.time_ns for point in points)
    assert before - 1e-3 <= sum(point.value for point in points if point.time_ns == last_ns)


# The pipeline itself


def test_pipeline_reports_itself_as_documented(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """Each metric of the reference is sent, with its kind, unit and attributes, and nothing else is in the scope."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    receiver.rule(lambda request: Answer(400) if request.signal == "logs" else None)
    pipeline = start(system=True)
    monitel.emit("rejected")
    monitel.set_step(3)
    for number in range(10):
        monitel.log({"x": number, "name": "text"})
    for _ in range(2):
        pipeline.force_flush(DEADLINE)
    documented = {
        name: described
        for name, described, _ in metrics("Metrics of the pipeline", "Time and goodput", "System metrics")
        if not name.startswith(("process.", "system.memory.", "system.disk.", "system.network."))
    }
    points = [each for each in receiver.all_points() if each.scope == "monitel"]
    points = [each for each in points if each.metric not in {"x", "training.step"}]
    assert documented == {point.metric: shape(point) for point in points}
    assert 10 == receiver.values("monitel.log.left_out")[-1]
    rows = table("metrics-and-events.md", "name", "kind, unit", "attributes", under="Metrics of the pipeline")
    attributes = {name: {*code(row[2])} for row in rows for name in code(row[0])}
    found: dict[str, set[str]] = defaultdict(set)
    for point in points:
        found[point.metric] |= {*point.attributes}
    assert attributes == {name: found[name] for name in attributes}


def test_pipeline_counts_odd_samples_and_times_requests(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Each request with metrics has the size of the queue, because Prometheus needs the latest time of a resource."""
    pipeline = start(spans=True)
    stat = Stat("x", [COUNT], 60.0, 2)
    for _ in range(5):
        stat.add(1)
    clock.advance(60)
    stat.add(math.nan)
    stat.flush()  # the next window counts them
    rising = Stat("rising", [SUM], 3600.0, monotonic=True)
    rising.add(-1)
    rising.flush()
    monitel.emit("event")
    record_ranges("forward")
    for _ in range(2):
        assert pipeline.force_flush(DEADLINE)
    discarded, nonfinite = (receiver.values(f"monitel.stat.{name}")[-1] for name in ("discarded", "nonfinite"))
    assert (3, 2) == (discarded, nonfinite)
    durations = {each.attributes["signal"]: each.proto for each in receiver.points("monitel.export.duration")}
    assert {"metrics", "logs", "traces"} == {*durations}
    assert 0 < durations["traces"].sum < DEADLINE
    for request in receiver.of("metrics"):
        assert "monitel.queue.size" in {point.metric for point in request.points}


def test_sizes_of_a_pipeline_follow_those_of_the_last_one(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """More than one request in a millisecond moves their times ahead of the clock."""
    for _ in range(2):
        pipeline = start()
        for value in range(3):
            monitel.log({"loss": value})
            assert pipeline.force_flush(DEADLINE)
        assert pipeline.shutdown(DEADLINE)
    times = [point.time_ns for point in receiver.points("monitel.queue.size")]
    assert sorted({*times}) == times


def test_sizes_are_those_of_memory_and_disk(receiver: Receiver, start: Start, setenv: SetEnv, warned: Warned) -> None:
    """Items whose backend is away wait in memory; those without an endpoint wait on disk, which a warning says."""
    receiver.rule(lambda request: Answer(503) if request.signal == "logs" else None)
    pipeline = start(spans=True)
    for _ in range(3):
        monitel.emit("event")
    wait_until(lambda: pipeline.force_flush(0.2) or 3 in receiver.values("monitel.queue.size"))
    receiver.forget_rules()
    assert pipeline.shutdown(DEADLINE)
    setenv(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{receiver.url}/v1/metrics")
    pipeline = start(endpoint=None)
    monitel.emit("event")
    for _ in range(3):
        pipeline.force_flush(DEADLINE)
    assert 1 == len(warned("no OTLP endpoint is set: logs and traces go to "))
    assert 0 < receiver.values("monitel.spool.size")[-1] < 10_000
    assert 0 == receiver.values("monitel.queue.size")[-1]


def test_one_warning_if_a_source_of_events_hangs(
    receiver: Receiver, start: Start, warned: Warned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events are missing until it returns; everything else is sent."""
    monkeypatch.setattr("monitel_otlp.export.application_thread.PATIENCE_S", 0.5)
    released = Event()
    hang = partial(released.wait, 3 * DEADLINE)
    monitel.stats.before_flush.register(hang)
    try:
        pipeline = start()
        monitel.counter("x").add(1)
        monitel.log({"y": 0.5})
        for _ in range(2):
            assert pipeline.force_flush(DEADLINE)
        assert ({1}, [0.5]) == ({*receiver.values("x")}, receiver.values("y"))
        wait_until(lambda: warned("a source of events takes more than 0.5 s"))
        assert 1 == len(warned("a source of events"))
    finally:
        released.set()
        monitel.stats.before_flush.unregister(hang)
