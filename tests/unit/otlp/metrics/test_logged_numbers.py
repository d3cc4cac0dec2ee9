"""Numbers of log() as gauges: times, attributes, values of the same millisecond, accounts."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.inbox import DEADLINE
from tests.support.pipelines import busy_encoder, reported_drops
from tests.support.producers import run_together

import monitel
from monitel import LoggedNumbers
from monitel_otlp.engine import engine
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.points import Points
from monitel_otlp.metrics.window_queue import WindowQueue

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

MILLISECOND = 0.001


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_number_is_a_gauge_at_the_time_of_the_call(
    receiver: Receiver,
    start: Start,
    clock: monitel.testing.ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    temporality: str,
) -> None:
    """The gauge has the bare name, no start time and no unit; ints become doubles."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", temporality)
    pipeline = start()
    monitel.log({"loss": 0.25, "tokens": 3}, step=7, split="val")
    called = clock.time_ns()
    clock.advance(60)
    assert pipeline.force_flush(DEADLINE)
    for name, value in (("loss", 0.25), ("tokens", 3.0)):
        (point,) = receiver.points(name)
        assert ("gauge", value, called, 0, "") == (point.kind, point.value, point.time_ns, point.start_ns, point.unit)
        assert ({"split": "val"}, "monitel") == (point.attributes, point.scope)
        assert point.proto.HasField("as_double")
    assert 2 == pipeline.account()["metrics"].delivered


def test_points_have_the_attributes_of_the_pipeline(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank is on each point, if it is requested."""
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "3")):
        monkeypatch.setenv(name, value)
    pipeline = start(rank_attribute=True)
    monitel.log({"loss": 0.25})
    monitel.log({"loss": 0.5}, split="val")
    assert pipeline.force_flush(DEADLINE)
    assert [{"training.rank": 3}, {"training.rank": 3, "split": "val"}] == [
        point.attributes for point in receiver.points("loss")
    ]


def test_stat_of_the_same_name_is_another_series(
    receiver: Receiver, start: Start, clock: monitel.testing.ManualClock
) -> None:
    """A window and a number of the same millisecond have a point each."""
    pipeline = start()
    stat = monitel.Stat("loss", [monitel.VALUE, monitel.COUNT], 60.0)
    clock.advance(1)
    stat.add(0.5)
    stat.flush()
    monitel.log({"loss": 0.25})
    assert pipeline.force_flush(DEADLINE)
    assert ([0.25], [0.5], [1]) == tuple(map(receiver.values, ("loss", "loss.value", "loss.count")))


def test_last_value_of_a_millisecond_wins(receiver: Receiver, start: Start, clock: monitel.testing.ManualClock) -> None:
    """The others are counted. Each set of attributes is on its own, and so is each name."""
    pipeline = start()
    begin = clock.time_ns()
    for millisecond in range(5):
        for value in range(4):
            monitel.log({"loss": millisecond + value / 10})
            monitel.log({"loss": -1.0}, split="val")
            clock.advance(MILLISECOND / 4)
    assert pipeline.force_flush(DEADLINE)
    points = [point for point in receiver.points("loss") if not point.attributes]
    assert [millisecond + 0.3 for millisecond in range(5)] == [point.value for point in points]
    assert [begin + millisecond * 1_000_000 for millisecond in range(5)] == [point.time_ns for point in points]
    assert 10 == pipeline.account()["metrics"].delivered
    assert 30 == receiver.values("monitel.log.coalesced")[-1]


def test_times_ascend_if_numbers_arrive_late(
    receiver: Receiver, start: Start, clock: monitel.testing.ManualClock
) -> None:
    """A number with an earlier time, such as one from a device, comes after the points that were sent already."""
    pipeline = start()
    late = LoggedNumbers({"loss": 1.0})
    clock.advance(1)
    monitel.log({"loss": 2.0})
    assert pipeline.force_flush(DEADLINE)
    monitel.log_event(late)
    assert pipeline.force_flush(DEADLINE)
    first, second = receiver.points("loss")
    assert (2.0, 1.0, 1_000_000) == (first.value, second.value, second.time_ns - first.time_ns)


def test_late_number_within_a_group_is_sorted(clock: monitel.testing.ManualClock) -> None:
    """Numbers that are encoded together are in the order of their times; of two with the same time the last wins."""
    queue = WindowQueue(10)
    late, same = LoggedNumbers({"loss": 1.0}), LoggedNumbers({"loss": 1.5})
    clock.advance(1)
    for numbers in (LoggedNumbers({"loss": 2.0}), late, LoggedNumbers({"loss": 2.5}), same):
        queue.put_numbers(numbers)
    mapping, points = WindowMapping("cumulative", 5, "both"), Points()
    assert 0 == mapping.write(queue.queue.take(10), points)
    (metric,) = points.request.resource_metrics[0].scope_metrics[0].metrics
    assert [1.5, 2.5] == [point.as_double for point in metric.gauge.data_points]
    assert (4, 0, 2) == (points.items, queue.coalesced, mapping.coalesced)


def test_further_sets_of_attributes_share_a_series(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, clock: monitel.testing.ManualClock
) -> None:
    """The limit counts numbers apart from the Stats of the same name."""
    pipeline = start(series_limit=2)
    for layer in range(4):
        clock.advance(1)
        monitel.log({"norm": layer}, layer=layer)
    stat = monitel.Stat("norm", [monitel.COUNT], 60.0, attributes={"layer": 9})
    stat.add(1)
    stat.flush()
    assert pipeline.force_flush(DEADLINE)
    overflow = {"otel.metric.overflow": True}
    assert [{"layer": 0}, {"layer": 1}, overflow, overflow] == [point.attributes for point in receiver.points("norm")]
    assert [{"layer": 9}] == [point.attributes for point in receiver.points("norm.count")]
    assert 1 == caplog.text.count("'norm' has more than 2 sets of attributes")


def test_values_that_are_not_numbers_are_reported(receiver: Receiver, start: Start) -> None:
    """The pipeline's own metrics count them."""
    pipeline = start()
    monitel.log({"loss": 0.5, "name": "small", "nothing": None})
    assert pipeline.force_flush(DEADLINE)
    assert [2] == receiver.values("monitel.log.left_out")[-1:]
    assert [] == receiver.points("name")


def test_value_that_cannot_be_encoded_is_counted(receiver: Receiver, start: Start) -> None:
    """An earlier handler may have changed the Event."""
    pipeline = start()
    odd: Any = LoggedNumbers({"loss": 0.5, "odd": 1.0})
    odd.data["odd"] = object()
    monitel.log_event(odd)
    pipeline.force_flush(DEADLINE)
    assert [0.5] == receiver.values("loss")
    assert {"encoding": 1} == dict(pipeline.account()["metrics"].dropped)


def test_full_queue_drops_the_oldest_numbers(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, clock: monitel.testing.ManualClock
) -> None:
    """A dropped number is not replaced by a later value of the same millisecond: that is a new item."""
    monkeypatch.setattr(engine, "LIMIT", 3)
    pipeline = start()
    with busy_encoder(pipeline):
        monitel.log({"loss": 1.0})
        monitel.log({"a": 1.0, "b": 1.0, "c": 1.0})  # drops loss
        monitel.log({"loss": 2.0})  # drops a
        clock.advance(1)
    assert {"metrics": 2} == reported_drops(receiver, pipeline, "queue_full")
    assert ([2.0], [], [1.0]) == tuple(map(receiver.values, ("loss", "a", "b")))
    assert [] == receiver.points("monitel.log.coalesced")


def test_threads_that_log_one_name_lose_nothing(receiver: Receiver, start: Start) -> None:
    """Each value has a point or is coalesced, and times ascend by a millisecond at least."""
    pipeline = start()

    def produce() -> None:
        for number in range(500):
            monitel.log({"loss": number})

    run_together(*[produce] * 4)
    assert pipeline.force_flush(DEADLINE)
    assert pipeline.force_flush(DEADLINE)
    times = [point.time_ns for point in receiver.points("loss")]
    assert all(after - before >= 1_000_000 for before, after in pairwise(times))
    coalesced = receiver.values("monitel.log.coalesced")
    assert 2000 == len(times) + (coalesced[-1] if coalesced else 0)
    assert 2000 == len(receiver.records("run.log"))
