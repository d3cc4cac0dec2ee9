"""Windows as metric points: kinds, names, units, times, totals, and values that are not finite."""

from __future__ import annotations

import gc
import math
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.producers import close_windows

import monitel
from monitel import COUNT, MAX, MEAN, MIN, SUM, VALUE, Aggregation, Stat
from monitel.aggregation import TORCHS

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel.testing import ManualClock

START_NS = 1_767_225_600_000_000_000  # initial time of the fixture ``clock``
MINUTE_NS = 60_000_000_000
CUMULATIVE = 2


@pytest.mark.parametrize(
    ("aggregation", "kind", "monotonic", "unit", "values"),
    [
        (COUNT, "sum", True, "{sample}", [2, 3]),
        (SUM, "sum", False, "s", [5.0, 4.0]),
        (MEAN, "gauge", None, "s", [2.5, -1.0]),
        (MAX, "gauge", None, "s", [4.0, -1.0]),
        (MIN, "gauge", None, "s", [1.0, -1.0]),
        (VALUE, "gauge", None, "s", [4.0, -1.0]),
    ],
)
def test_each_window_is_a_point_at_its_end(
    *,
    receiver: Receiver,
    start: Start,
    clock: ManualClock,
    aggregation: Aggregation,
    kind: str,
    monotonic: bool | None,
    unit: str,
    values: list[float],
) -> None:
    """COUNT and SUM are cumulative sums, others are gauges; two windows in one export interval are two points."""
    pipeline = start()
    stat = Stat("step.time", [aggregation], 60.0, unit="s", description="a step", attributes={"split": "val"})
    close_windows(stat, clock, [1.0, 4.0], [-1.0])
    assert pipeline.force_flush(60)
    points = receiver.points(f"step.time.{aggregation.name.lower()}")
    assert values == [point.value for point in points]
    assert [START_NS + MINUTE_NS, START_NS + 2 * MINUTE_NS] == [point.time_ns for point in points]
    first = points[0]
    assert (kind, monotonic, unit, "a step") == (first.kind, first.monotonic, first.unit, first.description)
    assert ("monitel", {"split": "val"}) == (first.scope, first.attributes)
    assert (CUMULATIVE if kind == "sum" else None) == first.temporality
    if kind == "sum":
        assert START_NS == first.start_ns == points[1].start_ns  # of the first window, which is before the pipeline's


def test_only_requested_aggregations_are_sent(receiver: Receiver, start: Start) -> None:
    """A Stat with two aggregations becomes two metrics."""
    pipeline = start()
    stat = Stat("x", [MEAN, COUNT], 60.0)
    stat.add(1)
    stat.flush()
    assert pipeline.force_flush(60)
    assert {"x.mean", "x.count"} == {point.metric for point in receiver.all_points() if point.metric.startswith("x.")}


def test_monotonic_sum_is_a_counter(receiver: Receiver, start: Start) -> None:
    """``monotonic=True`` makes the sum a monotonic sum."""
    pipeline = start()
    stat = Stat("tokens", [SUM], 60.0, monotonic=True)
    stat.add(5)
    stat.flush()
    assert pipeline.force_flush(60)
    assert [(5.0, True)] == [(point.value, point.monotonic) for point in receiver.points("tokens.sum")]


@pytest.mark.parametrize(
    ("name", "metric", "description"),
    [
        ("train/loss-1_a.b", "train/loss-1_a.b", ""),
        ("step time", "step_time", "Stat 'step time'"),
        ("1st", "stat_1st", "Stat '1st'"),
        ("perte d'énergie", "perte_d__nergie", 'Stat "perte d\'énergie"'),
        ("", "stat_", "Stat ''"),
        ("é", "stat__", "Stat 'é'"),
    ],
)
def test_metric_names_follow_opentelemetry(
    receiver: Receiver, start: Start, name: str, metric: str, description: str
) -> None:
    """If a name is not allowed, it is changed, and the description has the original."""
    pipeline = start()
    stat = Stat(name, [MAX], 60.0)
    stat.add(1)
    stat.flush()
    assert pipeline.force_flush(60)
    assert [description] == [point.description for point in receiver.points(f"{metric}.max")]


def test_long_metric_name_is_cut(receiver: Receiver, start: Start) -> None:
    """The name has at most 255 characters and ends with the aggregation."""
    pipeline = start()
    stat = Stat("x" * 300, [COUNT], 60.0)
    stat.add(1)
    stat.flush()
    assert pipeline.force_flush(60)
    names = {point.metric for point in receiver.all_points() if point.metric.startswith("x")}
    assert [True] == [200 < len(name) <= 255 and name.endswith(".count") for name in names]


def test_attributes_keep_their_types(receiver: Receiver, start: Start) -> None:
    """``True`` does not become 1; Stats with the same name and different attributes are different series."""
    pipeline = start()
    every: list[Any] = [{"a": True}, {"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": "1", "b": 2}, None]
    for value, attributes in enumerate(every):
        stat = Stat("x", [VALUE], 60.0, attributes=attributes)
        stat.add(value)
        stat.flush()
    assert pipeline.force_flush(60)
    found = [(point.value, repr(point.attributes)) for point in receiver.points("x.value")]
    assert sorted((value, repr(attributes or {})) for value, attributes in enumerate(every)) == sorted(found)
    assert 1 == len({(point.metric, point.unit) for point in receiver.points("x.value")})


def test_stats_of_one_name_and_attributes_are_one_series(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """A Stat that is local to a function continues the totals of the previous one."""

    def evaluate(losses: list[float]) -> None:
        stat = Stat("val.loss", [COUNT, SUM], 60.0, attributes={"split": "val"})
        for loss in losses:
            stat.add(loss)
        clock.advance(10)

    pipeline = start()
    for losses in ([1.0, 2.0], [3.0], [4.0, 5.0]):
        evaluate(losses)
        gc.collect()
        assert pipeline.force_flush(60)
    assert [2, 3, 5] == receiver.values("val.loss.count")
    assert [3.0, 6.0, 15.0] == receiver.values("val.loss.sum")
    assert 1 == len({point.start_ns for point in receiver.points("val.loss.count")})


def test_first_stat_of_a_name_decides_the_metric(
    receiver: Receiver, start: Start, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """If Stats with the same name differ in unit or ``monotonic``, they share a metric, and one warning is logged."""
    pipeline = start()
    stats = [
        Stat("tokens", [SUM], 60.0, unit="{token}", monotonic=True),
        Stat("tokens", [SUM], 60.0),
        Stat("tokens", [SUM], 60.0, unit="By", attributes={"split": "val"}),
    ]
    for stat in stats:
        close_windows(stat, clock, [2.0])
    assert pipeline.force_flush(60)
    points = receiver.points("tokens.sum")
    assert [({}, 2.0), ({}, 4.0), ({"split": "val"}, 2.0)] == [(point.attributes, point.value) for point in points]
    assert {("{token}", True)} == {(point.unit, point.monotonic) for point in points}
    assert 1 == sum("Stats of one metric differ" in message for message in caplog.messages)


def test_windows_less_than_a_millisecond_apart_are_one_point(
    receiver: Receiver, start: Start, clock: ManualClock
) -> None:
    """Prometheus would keep only the first point, so one point has the samples of both windows."""
    pipeline = start()
    stat = Stat("x", TORCHS, 60.0)
    for samples in ([1.0, 4.0], [-2.0]):
        for sample in samples:
            stat.add(sample)
        stat.flush()
        clock.advance(0.0004)
    clock.advance(1)
    stat.add(10)
    stat.flush()
    assert pipeline.force_flush(60)
    expected = {"count": [3, 4], "sum": [3.0, 13.0], "mean": [1.0, 10.0], "max": [4.0, 10.0], "min": [-2.0, 10.0]}
    assert {**expected, "value": [-2.0, 10.0]} == {name: receiver.values(f"x.{name}") for name in [*expected, "value"]}
    assert [START_NS + 400_000, START_NS + 1_000_800_000] == [point.time_ns for point in receiver.points("x.mean")]


def test_times_ascend_from_one_request_to_the_next(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """A window that ended before the last point is sent with a later time, because Prometheus refuses older points."""
    pipeline = start()
    with monitel.testing.ManualClock(START_NS - 60 * MINUTE_NS):
        late = Stat("x", [COUNT], 60.0)
    clock.advance(70)
    for stat in (Stat("x", [COUNT], 60.0), late, late):
        stat.add(1)
        stat.flush()
        assert pipeline.force_flush(60)
    points = receiver.points("x.count")
    assert START_NS + 70_000_000_000 == points[0].time_ns // 1000 * 1000
    assert [(1, 0), (2, 1_000_000), (3, 2_000_000)] == [
        (point.value, point.time_ns - points[0].time_ns) for point in points
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_only_in_gauges(
    receiver: Receiver, start: Start, clock: ManualClock, bad: float
) -> None:
    """A diverged loss is visible in gauges; it is left out of the sum, which would stay NaN, and counted."""
    pipeline = start()
    stat = Stat("loss", TORCHS, 60.0)
    close_windows(stat, clock, [1.0], [bad], [2.0])
    assert pipeline.force_flush(60)
    assert [1, 2, 3] == receiver.values("loss.count")
    assert [1.0, 1.0, 3.0] == receiver.values("loss.sum")
    for name in ("mean", "max", "min", "value"):
        assert repr([1.0, bad, 2.0]) == repr(receiver.values(f"loss.{name}"))
    assert pipeline.force_flush(60)
    assert 1 == receiver.values("monitel.stat.nonfinite")[-1]


def test_infinities_of_both_signs_are_left_out_of_the_sum(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """The sum of both infinities would be NaN."""
    pipeline = start()
    stat = Stat("loss", [SUM, MAX, MIN], 60.0)
    close_windows(stat, clock, [math.inf, -math.inf])
    assert pipeline.force_flush(60)
    assert [0.0] == receiver.values("loss.sum")
    assert [math.inf, -math.inf] == receiver.values("loss.max") + receiver.values("loss.min")


def test_discarded_samples_are_counted(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Samples beyond ``max_samples`` are in ``monitel.stat.discarded``."""
    pipeline = start()
    stat = Stat("x", [COUNT], 60.0, 2)
    for _ in range(5):
        stat.add(1)
    clock.advance(60)
    stat.add(1)
    stat.flush()
    assert pipeline.force_flush(60)
    assert pipeline.force_flush(60)
    assert [2, 3] == receiver.values("x.count")
    assert [3] == receiver.values("monitel.stat.discarded")[-1:]


def test_registered_stat_arrives(receiver: Receiver, start: Start) -> None:
    """``monitel.stat()`` collects torch's aggregations by default."""
    pipeline = start()
    monitel.stat("train.loss.registered").add(0.5)
    monitel.flush()
    assert pipeline.force_flush(60)
    names = {point.metric for point in receiver.all_points() if point.metric.startswith("train.")}
    assert {f"train.loss.registered.{each.name.lower()}" for each in TORCHS} == names
