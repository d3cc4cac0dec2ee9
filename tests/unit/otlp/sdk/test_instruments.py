"""Temporality of the application's instruments, and of those of the pipeline, by the standard variable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.metrics import Observation

from monitel_otlp.sdk.preferences import TEMPORALITY

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

DELTA, CUMULATIVE = 1, 2
MONOTONIC = {"counter", "observable.counter", "histogram"}
UP_AND_DOWN = {"up.down", "observable.up.down", "monitel.queue.size", "monitel.spool.size"}
SELF_COUNTERS = {"monitel.stat.discarded", "monitel.stat.nonfinite"}  # observable
SELF_HISTOGRAM = {"monitel.export.duration"}


def record(meter: Any, levels: list[int]) -> None:
    """Create an instrument of each kind, but no synchronous up-down counter; the observable one has the last level."""
    meter.create_counter("counter").add(1)
    meter.create_histogram("histogram").record(1)
    meter.create_observable_counter("observable.counter", [lambda _options: [Observation(7)]])
    meter.create_observable_up_down_counter("observable.up.down", [lambda _options: [Observation(levels[-1])]])


@pytest.mark.parametrize(
    ("preference", "delta"),
    [
        ("cumulative", set()),
        ("delta", {*MONOTONIC, *SELF_COUNTERS, *SELF_HISTOGRAM}),
        ("lowmemory", {"counter", "histogram", *SELF_HISTOGRAM}),  # observable counters hold their totals anyway
    ],
)
def test_sums_that_go_up_and_down_are_cumulative(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, *, preference: str, delta: set[str]
) -> None:
    """With each preference they have their level and one start; only monotonic sums and histograms become delta."""
    monkeypatch.setenv(TEMPORALITY, preference)
    pipeline = start()
    meter = pipeline.meter_provider.get_meter("mine")
    levels = [0]
    record(meter, levels)
    counter = meter.create_up_down_counter("up.down")
    for change in (5, -2):
        counter.add(change)
        levels.append(levels[-1] + change)
        assert pipeline.force_flush(60)
    kinds = {point.metric: point.temporality for point in receiver.all_points() if point.temporality is not None}
    expected = MONOTONIC | UP_AND_DOWN | SELF_COUNTERS | SELF_HISTOGRAM
    assert {name: DELTA if name in delta else CUMULATIVE for name in expected} == {
        name: kinds[name] for name in expected
    }
    for name in ("up.down", "observable.up.down"):
        points = receiver.points(name)
        assert [5, 3] == list(dict.fromkeys(each.value for each in points))
        assert {(False, points[0].start_ns)} == {(each.monotonic, each.start_ns) for each in points}
