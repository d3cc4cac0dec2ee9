"""Start points of counters, and counters of several pipelines, one after another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.inbox import DEADLINE, TEMPORALITY, points_of
from tests.support.series import increase

import monitel
import monitel_otlp
from monitel.testing import ManualClock
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    import pytest
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

MILLISECOND_NS = 1_000_000
HOUR_NS = 3_600 * 10**9


def test_series_begins_with_zero_at_the_start_of_the_counter(receiver: Receiver, start: Start) -> None:
    """The start point is in the request of the first total, and in no other one."""
    samples = monitel.counter("samples")
    samples.add(60)
    pipeline = start()
    for _ in range(3):
        assert pipeline.force_flush(DEADLINE)
    (zero,) = receiver.start_points("samples")
    first = receiver.points("samples")[0]
    assert (0, zero.start_ns, first.start_ns) == (zero.value, zero.time_ns, samples.reading().start_ns)
    assert zero.proto.HasField("as_int")
    assert 60 == increase(receiver, "samples")


def test_total_of_zero_is_its_own_start_point(receiver: Receiver, start: Start) -> None:
    """The first point of a counter without an amount is a zero, so that there is no other one."""
    samples = monitel.counter("samples")
    pipeline = start()
    assert pipeline.force_flush(DEADLINE)
    samples.add(60)
    assert pipeline.force_flush(DEADLINE)
    values = receiver.values("samples")
    assert [] == receiver.start_points("samples")
    assert ([0, 60], 0, 60) == (sorted(set(values)), values[0], increase(receiver, "samples"))


def test_start_point_is_not_too_old(receiver: Receiver, start: Start) -> None:
    """A backend may refuse a request with samples that are an hour old; the start time of the points stays."""
    with ManualClock(time.time_ns() - 5 * HOUR_NS):
        samples = monitel.counter("samples")
    samples.add(60)
    pipeline = start()
    assert pipeline.force_flush(DEADLINE)
    (zero,) = receiver.start_points("samples")
    first = receiver.points("samples")[0]
    assert HOUR_NS // 2 == first.time_ns - zero.time_ns
    assert {samples.reading().start_ns} == {zero.start_ns, first.start_ns}


def test_start_in_the_future_is_just_before_the_first_point(receiver: Receiver, start: Start) -> None:
    """A clock that was set back must not produce a point that ends before it starts, or starts that change."""
    with ManualClock(time.time_ns() + HOUR_NS):
        samples = monitel.counter("samples")
    for _ in range(2):
        pipeline = start()
        samples.add(60)
        assert pipeline.force_flush(DEADLINE)
        pipeline.shutdown()
    (zero,) = receiver.start_points("samples")
    points = receiver.points("samples")
    assert {zero.time_ns} == {point.start_ns for point in points}
    assert MILLISECOND_NS == points[0].time_ns - zero.time_ns
    assert 120 == increase(receiver, "samples")


def test_second_pipeline_continues(receiver: Receiver, start: Start) -> None:
    """With the same resource, another zero would look like a reset, and would be out of order."""
    samples = monitel.counter("samples")
    samples.add(60)
    start().shutdown()
    samples.add(10)
    start().shutdown()
    assert (1, 70) == (len(receiver.start_points("samples")), increase(receiver, "samples"))
    assert 1 == len({str(point.resource) for point in receiver.points("samples")})


def test_deltas_of_two_pipelines_add_up(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pipeline sends the difference from the last total of the first one."""
    monkeypatch.setenv(TEMPORALITY, "delta")
    samples = monitel.counter("samples")
    for amount in (60, 10):
        samples.add(amount)
        start().shutdown()
    assert [60, 10] == receiver.values("samples")


def test_deltas_add_up_if_the_second_pipeline_has_other_series(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters that shared a series have separate ones, and the other way round."""
    monkeypatch.setenv(TEMPORALITY, "delta")
    for limit in (1, 5, 2):
        pipeline = start(series_limit=limit)
        for layer in range(4):
            monitel.counter("gradients", attributes={"layer": layer}).add(10**layer)
        pipeline.shutdown()
    assert min(receiver.values("gradients")) > 0
    assert 3_333 == sum(receiver.values("gradients"))


def test_first_zero_is_stored(tmp_path: Path) -> None:
    """The spool of a pipeline without a backend has the whole increase of a counter that starts to count later."""
    with monitel_otlp.configure(spool_dir=tmp_path) as pipeline:
        samples = monitel.counter("samples")
        for amount in (0, 0, 60):
            samples.add(amount)
            assert pipeline.force_flush(DEADLINE)
    requests = Spool(Path(pipeline.spool_dir)).peek()
    points = [each for request in requests for each in points_of(request.message()) if each.metric == "samples"]
    assert (0, 60) == (points[0].value, points[-1].value)
