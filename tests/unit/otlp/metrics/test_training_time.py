"""The ledger as metrics: the time of each activity, which adds up, and the goodput."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import warnings_with
from tests.support.inbox import CUMULATIVE, DEADLINE, TEMPORALITY, Answer, points_of
from tests.support.pipelines import metric_requests
from tests.support.series import increase

import monitel
import monitel_otlp
from monitel import activities
from monitel.clock import since_boot_ns
from monitel_otlp.metrics import readings
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from tests.support.inbox import Point
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

DELTA = 1
SECOND_NS = 10**9
MINUTE_NS = 60 * SECOND_NS
TIME, GOODPUT = "training.time", "training.goodput"


def ledger() -> monitel.Ledger:
    """Return the ledger of the process."""
    found = monitel.ledger()
    assert found is not None
    return found


def enter(*names: str) -> None:
    """Enter and leave activities."""
    for name in names:
        with monitel.activity(name):
            pass


def activity(point: Point) -> str:
    """Return the activity of a point."""
    return str(point.attributes["training.activity"])


def exports(receiver: Receiver) -> list[dict[str, Point]]:
    """Return the points of each export by activity, without start points."""
    found: dict[int, dict[str, Point]] = defaultdict(dict)
    for point in receiver.points(TIME):
        found[point.time_ns][activity(point)] = point
    return [found[time_ns] for time_ns in sorted(found)]


def total(points: dict[str, Point]) -> float:
    """Return the seconds of all activities."""
    return sum(point.value for point in points.values())


def test_activities_of_each_export_add_up(receiver: Receiver, start: Start) -> None:
    """Monotonic sums in seconds, which have the start of the process; their sum is the elapsed time."""
    pipeline = start()
    elapsed = []
    for step, names in enumerate((["init"], ["data", "evaluation"], ["data"], [])):
        enter(*names)
        monitel.set_step(step)
        before = ledger().elapsed_ns
        assert pipeline.force_flush(DEADLINE)
        elapsed.append((before / SECOND_NS, ledger().elapsed_ns / SECOND_NS))
    found = exports(receiver)
    assert {"startup", "init", "data", "evaluation", "step"} == set(found[-1])
    for points, (low, high) in zip(found[1::2], elapsed, strict=True):  # a flush makes two exports
        assert low - 1e-6 <= total(points) <= high + 1e-6
    for points in found:
        for point in points.values():
            assert ("sum", True, CUMULATIVE, "monitel") == (
                *(point.kind, point.monotonic, point.temporality),
                point.scope,
            )
            assert ("s", "Wall-clock time by activity") == (point.unit, point.description)
            assert ledger().start_ns == point.start_ns
        (time_ns,) = {point.time_ns for point in points.values()}
        assert (time_ns - ledger().start_ns) / SECOND_NS == pytest.approx(total(points), abs=5)
    for one, two in pairwise(found):
        assert all(point.value <= two[name].value for name, point in one.items())


@pytest.mark.parametrize("preference", ["delta", "lowmemory"])
def test_deltas_add_up(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, preference: str) -> None:
    """The points of an activity are adjacent, and an export has those whose time has grown."""
    monkeypatch.setenv(TEMPORALITY, preference)
    pipeline = start()
    monitel.set_step(1)
    for names in (["data"], ["evaluation"], ["data"]):
        enter(*names)
        assert pipeline.force_flush(DEADLINE)
    high = ledger()
    points: dict[str, list[Point]] = defaultdict(list)
    for point in receiver.points(TIME):
        assert ("sum", True, DELTA) == (point.kind, point.monotonic, point.temporality)
        points[activity(point)].append(point)
    assert {"startup": 1, "step": 6, "data": 2, "evaluation": 1} == {name: len(each) for name, each in points.items()}
    for of_activity in points.values():
        assert all(one.time_ns == two.start_ns for one, two in pairwise(of_activity))
    assert [high.start_ns] * 3 == [points[name][0].start_ns for name in ("startup", "step", "data")]
    assert points["evaluation"][0].start_ns == points["step"][1].time_ns
    sums = {name: sum(point.value for point in each) for name, each in points.items()}
    assert high.elapsed_ns / SECOND_NS - 10 <= sum(sums.values()) <= high.elapsed_ns / SECOND_NS + 1e-6
    for name in ("startup", "evaluation", "data"):
        assert high.activities[name] / SECOND_NS == pytest.approx(sums[name])


def test_series_begin_with_zero_when_nothing_was_known_of_them(receiver: Receiver, start: Start) -> None:
    """At the start of the process, or at the previous export, so that rates over a short time are right."""
    pipeline = start()
    monitel.set_step(1)
    assert pipeline.force_flush(DEADLINE)
    enter("evaluation")
    assert pipeline.force_flush(DEADLINE)
    starts = {activity(point): point for point in receiver.start_points(TIME)}
    before = [points for points in exports(receiver) if "evaluation" not in points][-1]
    assert {"startup", "step", "evaluation"} == set(starts)
    assert [ledger().start_ns] * 2 == [starts[name].time_ns for name in ("startup", "step")]
    assert before["step"].time_ns == starts["evaluation"].time_ns
    assert {ledger().start_ns} == {point.start_ns for point in starts.values()}
    assert total(exports(receiver)[-1]) == pytest.approx(increase(receiver, TIME))


def test_process_that_started_long_before_its_pipeline(receiver: Receiver, start: Start) -> None:
    """Prometheus would refuse a start point of 50 minutes ago; the points keep the start of the process."""
    activities._begin(since_boot_ns() - 50 * MINUTE_NS, "process")
    monitel.set_step(1)
    pipeline = start()
    assert pipeline.force_flush(DEADLINE)
    points, *_ = exports(receiver)
    assert 3000 <= points["startup"].value < 3060
    for zero in receiver.start_points(TIME):
        assert 30 * MINUTE_NS == points["step"].time_ns - zero.time_ns
        assert ledger().start_ns == zero.start_ns


def test_second_pipeline_continues(receiver: Receiver, start: Start) -> None:
    """No total falls or starts again."""
    for name in ("data", "evaluation"):
        pipeline = start()
        monitel.set_step(1)
        enter(name)
        assert pipeline.force_flush(DEADLINE)
        pipeline.shutdown()
    found = exports(receiver)
    for one, two in pairwise(found):
        assert all(point.value <= two[name].value for name, point in one.items())
    assert sorted(found[-1]) == sorted(map(activity, receiver.start_points(TIME)))
    assert total(found[-1]) == pytest.approx(increase(receiver, TIME))


def test_goodput_is_a_gauge_from_the_first_step_on(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of steps in the time of the process; undefined before, and in a process without steps."""
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "3")):
        monkeypatch.setenv(name, value)
    pipeline = start(rank_attribute=True)
    enter("evaluation")
    assert pipeline.force_flush(DEADLINE)
    assert [] == receiver.points(GOODPUT)
    monitel.set_step(1)
    before = ledger()
    assert pipeline.force_flush(DEADLINE)
    after = ledger()
    point = receiver.points(GOODPUT)[-1]
    assert ("gauge", "1", "monitel", {"training.rank": 3}) == (point.kind, point.unit, point.scope, point.attributes)
    low, high = before.activities["step"] / after.elapsed_ns, after.activities["step"] / before.elapsed_ns
    assert low <= point.value <= high
    assert {3} == {each.attributes["training.rank"] for each in receiver.points(TIME)}


def test_process_without_ledger_exports_none(receiver: Receiver, start: Start) -> None:
    """Time in startup is unknown until there is an activity or a step."""
    pipeline = start()
    monitel.counter("samples").add(1)
    assert pipeline.force_flush(DEADLINE)
    assert {1} == set(receiver.values("samples"))
    assert ([], []) == (receiver.points(TIME), receiver.points(GOODPUT))


def test_activities_beyond_the_limit_of_series_add_up(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Further activities share a series."""
    pipeline = start(series_limit=2)
    enter("init", "data", "evaluation")
    monitel.set_step(1)
    before = ledger().elapsed_ns
    assert pipeline.force_flush(DEADLINE)
    after = ledger().elapsed_ns
    points = receiver.points(TIME)[-3:]
    assert {"otel.metric.overflow": True} in [point.attributes for point in points]
    assert before / SECOND_NS - 1e-6 <= sum(point.value for point in points) <= after / SECOND_NS + 1e-6
    assert 1 == len(warnings_with(caplog, "'training.time' has more than 2 sets of attributes"))


def test_names_beyond_the_limit_of_activities_are_other(receiver: Receiver, start: Start) -> None:
    """A name for each step makes no series for each step, and all of the time is exported."""
    pipeline = start()
    enter(*(f"step {number}" for number in range(200)))
    monitel.set_step(1)
    assert pipeline.force_flush(DEADLINE)
    points = exports(receiver)[-1]
    assert len(points) <= 64
    assert "other" in points
    assert points["startup"].value + points["step"].value < total(points) <= ledger().elapsed_ns / SECOND_NS + 1e-6


def test_activities_in_several_requests_add_up(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All readings of an export are of one moment."""
    monkeypatch.setattr(readings, "READINGS_PER_REQUEST", 5)
    monitel.counter("first").add(1)
    monitel.set_step(1)
    enter("data", "evaluation", "checkpoint.save")
    monitel.counters()
    for number in range(10):
        monitel.counter("many", attributes={"number": number}).add(1)
    pipeline = start()
    for _ in range(2):
        enter("data")
        before = ledger().elapsed_ns
        assert pipeline.force_flush(DEADLINE)
        points = exports(receiver)[-1]
        assert 5 == len(points)
        assert before / SECOND_NS - 1e-6 <= total(points) <= ledger().elapsed_ns / SECOND_NS + 1e-6
    assert {5} == {len(points) for points in exports(receiver)}
    requests = [request for request in receiver.of("metrics") if b"training.time" in request.body]
    assert len(requests) == 2 * len(exports(receiver))


def test_names_of_the_ledger_are_taken(receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A number of the application has another name, even if it comes first, or has the name in Prometheus."""
    pipeline = start()
    names = (TIME, "training_time_seconds_total", GOODPUT, "training.goodput_ratio")
    monitel.log(dict.fromkeys(names, 9.5))
    assert pipeline.force_flush(DEADLINE)
    monitel.set_step(1)
    assert pipeline.force_flush(DEADLINE)
    assert {9.5} == {value for name in names for value in receiver.values(f"{name}.number")}
    assert 4 == len(warnings_with(caplog, "have the same metric name"))
    assert 9.5 not in {*receiver.values(TIME), *receiver.values(GOODPUT)}
    assert {"startup", "step"} == set(exports(receiver)[-1])


def test_time_that_passes_in_one_activity_is_not_stored(
    start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs fills no disk; the next change is stored with the time until then."""
    receiver.rule(lambda _: Answer(503))
    monitel.set_step(1)
    pipeline = start()
    put = metric_requests(pipeline, monkeypatch)
    for _ in range(3):
        pipeline.force_flush(0.1)
    enter("data")
    pipeline.force_flush(0.1)
    idle = [request.idle for request in put]
    assert (False, 2) == (idle[0], idle.count(False))
    receiver.forget_rules()


def test_spool_of_a_process_that_hung_has_all_of_its_time(tmp_path: Path) -> None:
    """Without a backend; the end of the run is a change."""
    with monitel_otlp.configure(spool_dir=tmp_path) as pipeline:
        monitel.set_step(1)
        for _ in range(4):
            assert pipeline.force_flush(DEADLINE)
        enter("data")
        before = ledger().elapsed_ns
    requests = [[*points_of(request.message())] for request in Spool(Path(pipeline.spool_dir)).peek()]
    own = [[point for point in points if point.metric == TIME] for points in requests]
    assert 2 == len([points for points in own if points])
    last = {activity(point): point for point in own[-1]}
    assert {"startup", "step", "data"} <= set(last)
    assert before / SECOND_NS - 1e-6 <= total(last) <= time.time_ns() / SECOND_NS
