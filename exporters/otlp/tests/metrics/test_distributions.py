"""HISTOGRAM and STDDEV as metric points: percentiles, exponential histograms, totals of all windows."""

from __future__ import annotations

import math
from collections import deque
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import monitel
import monitel_otlp
from monitel import COUNT, HISTOGRAM, STDDEV, Histogram, Stat
from monitel_otlp.metrics.mapping import CumulativeMapping, DeltaMapping, Points
from monitel_otlp.metrics.window_queue import WindowQueue

from .inbox import points_of

if TYPE_CHECKING:
    from monitel.testing import ManualClock

    from .conftest import Start
    from .inbox import Point
    from .receiver import Receiver

START_NS = 1_767_225_600_000_000_000  # where the clock of the tests starts
MINUTE_NS = 60_000_000_000
DELTA, CUMULATIVE = 1, 2
PERCENTILES = ["x.p50", "x.p90", "x.p95", "x.p99"]
AGGREGATION = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"


def close_windows(stat: Stat, clock: ManualClock, *windows: list[float]) -> None:
    """Fill one window after the other."""
    for samples in windows:
        for sample in samples:
            stat.add(sample)
        clock.advance(60)


def decoded(point: Point) -> Histogram:
    """A point as it was made, without what a histogram point does not have."""
    proto = point.proto
    positive, negative = proto.positive, proto.negative
    made = Histogram(
        scale=proto.scale,
        zero_count=proto.zero_count,
        positive_offset=positive.offset,
        positive=tuple(positive.bucket_counts),
        negative_offset=negative.offset,
        negative=tuple(negative.bucket_counts),
        sum=proto.sum,
        min=proto.min,
        max=proto.max,
        nonfinite=0,
    )
    assert made.count == proto.count
    return made


@pytest.mark.parametrize(
    ("chosen", "variable", "metrics"),
    [
        (None, "", PERCENTILES),
        (None, "explicit_bucket_histogram", PERCENTILES),
        (None, "base2_exponential_bucket_histogram", ["x.histogram"]),
        ("percentiles", "base2_exponential_bucket_histogram", PERCENTILES),
        ("histogram", "", ["x.histogram"]),
        ("both", "", [*PERCENTILES, "x.histogram"]),
    ],
)
@pytest.mark.parametrize("temporality", ["", "delta"])
def test_what_is_sent(
    receiver: Receiver,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    *,
    chosen: str | None,
    variable: str,
    metrics: list[str],
    temporality: str,
) -> None:
    """Percentiles unless the argument or the standard variable says that the backend takes more."""
    monkeypatch.setenv(AGGREGATION, variable)
    monkeypatch.setenv(TEMPORALITY, temporality)
    pipeline = start(distributions=chosen)
    stat = Stat("x", [HISTOGRAM, STDDEV], 60.0, unit="s", description="a step", attributes={"split": "val"})
    for sample in (1.0, 3.0):
        stat.add(sample)
    stat.flush()
    assert pipeline.force_flush(10)
    points = [point for point in receiver.all_points() if point.metric.startswith("x")]
    assert sorted([*metrics, "x.stddev"]) == sorted(point.metric for point in points)
    assert {("s", "a step", "split=val")} == {
        (point.unit, point.description, "split=" + point.attributes["split"]) for point in points
    }
    assert [1.0] == receiver.values("x.stddev")
    assert [1.0] * (metrics != ["x.histogram"]) == receiver.values("x.p50")


def test_another_word_is_refused() -> None:
    """What is allowed is in the message."""
    with pytest.raises(ValueError, match="distributions must be one of 'percentiles', 'histogram', 'both', got 'p99'"):
        monitel_otlp.configure(distributions="p99")


def test_cumulative_histograms_hold_all_samples_so_far(
    receiver: Receiver, start: Start, clock: ManualClock
) -> None:
    """Each window is a point at its own end, of all samples since the pipeline's start; NaN is in none."""
    pipeline = start(distributions="both")
    stat = Stat("x", [HISTOGRAM, COUNT], 60.0)
    windows = [[1.0, 4.0], [math.nan], [0.0, 1e9, math.inf], [2.0]]
    close_windows(stat, clock, *windows)
    assert pipeline.force_flush(10)
    points = receiver.points("x.histogram")
    totals = list(accumulate(windows))
    expected = [Histogram.of([sample for sample in samples if math.isfinite(sample)]) for samples in totals]
    assert expected == [decoded(point) for point in points]
    assert [START_NS + n * MINUTE_NS for n in (1, 2, 3, 4)] == [point.time_ns for point in points]
    assert {("exponential_histogram", CUMULATIVE)} == {(point.kind, point.temporality) for point in points}
    assert {receiver.points("x.count")[0].start_ns} == {point.start_ns for point in points}
    medians = receiver.values("x.p50")
    assert math.isnan(medians[1])
    assert [1.0, 0.0, 2.0] == [medians[0], round(medians[2]), medians[3]]


def test_delta_histograms_are_of_one_window(
    receiver: Receiver, start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the window's start to its end; a window without a finite sample has none."""
    monkeypatch.setenv(TEMPORALITY, "delta")
    pipeline = start(distributions="histogram")
    stat = Stat("x", [HISTOGRAM, COUNT], 60.0)
    close_windows(stat, clock, [1.0, 4.0], [math.nan], [2.0])
    assert pipeline.force_flush(10)
    points = receiver.points("x.histogram")
    assert [Histogram.of([1.0, 4.0]), Histogram.of([2.0])] == [decoded(point) for point in points]
    assert {("exponential_histogram", DELTA)} == {(point.kind, point.temporality) for point in points}
    assert [(0, 1), (2, 3)] == [
        ((point.start_ns - START_NS) // MINUTE_NS, (point.time_ns - START_NS) // MINUTE_NS) for point in points
    ]
    assert [2, 1, 1] == [point.proto.count for point in receiver.points("x")]


def test_negative_samples_leave_the_sum_out(receiver: Receiver, start: Start) -> None:
    """The protocol wants no sum in a histogram of such samples; the buckets are on the negative side."""
    pipeline = start(distributions="histogram")
    stat = Stat("x", [HISTOGRAM], 60.0)
    for sample in (-3.0, 1.0, -3.5):
        stat.add(sample)
    stat.flush()
    assert pipeline.force_flush(10)
    (point,) = receiver.points("x.histogram")
    assert not point.proto.HasField("sum")
    assert (-3.5, 1.0, 2) == (point.proto.min, point.proto.max, sum(point.proto.negative.bucket_counts))


def test_windows_less_than_a_millisecond_apart_are_one_point(
    receiver: Receiver, start: Start, clock: ManualClock
) -> None:
    """Their distributions and standard deviations become those of all their samples."""
    pipeline = start(distributions="both")
    stat = Stat("x", [HISTOGRAM, STDDEV], 60.0)
    for samples in ([1.0, 4.0, 9.0], [100.0, 50.0]):
        for sample in samples:
            stat.add(sample)
        stat.flush()
        clock.advance(0.0004)
    assert pipeline.force_flush(10)
    (point,) = receiver.points("x.histogram")
    every = [1.0, 4.0, 9.0, 100.0, 50.0]
    assert Histogram.of(every) == decoded(point)
    assert [Histogram.of(every).quantile(0.5)] == receiver.values("x.p50")
    mean = sum(every) / 5
    expected = math.sqrt(sum((sample - mean) ** 2 for sample in every) / 5)
    assert [expected] == pytest.approx(receiver.values("x.stddev"))


def test_windows_far_apart_in_value_become_one_point(
    receiver: Receiver, start: Start, clock: ManualClock
) -> None:
    """A standard deviation whose square no float holds is infinite, and costs no window."""
    pipeline = start()
    stat = Stat("x", [COUNT, STDDEV], 60.0)
    for samples in ([1e300, 1e300], [1.0]):
        for sample in samples:
            stat.add(sample)
        stat.flush()
        clock.advance(0.0004)
    assert pipeline.force_flush(10)
    assert ([3], [math.inf]) == (receiver.values("x.count"), receiver.values("x.stddev"))


def test_stats_of_one_series_share_a_total(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """A Stat that is local to a function goes on where the one before it stopped; one without HISTOGRAM is no gap."""
    pipeline = start(distributions="histogram")
    for aggregations in ([HISTOGRAM], [COUNT], [HISTOGRAM]):
        close_windows(Stat("x", aggregations, 60.0), clock, [2.0])
        assert pipeline.force_flush(10)
    assert [1, 2] == [point.proto.count for point in receiver.points("x.histogram")]


def window(samples: list[float], end_ns: int, name: str = "x") -> monitel.Window:
    """A window of these samples."""
    definition = monitel.StatDefinition(name, (HISTOGRAM,), "", "", MappingProxyType({}), monotonic=False)
    finite = [sample for sample in samples if math.isfinite(sample)] or [0.0]
    return monitel.Window(
        *(definition, end_ns - 1, end_ns, len(samples), sum(samples), min(finite), max(finite), samples[-1]),
        *(0, None, None, None, Histogram.of(samples)),
    )


@given(
    st.lists(st.tuples(st.sampled_from("xy"), st.lists(st.sampled_from([0.5, 7.0, 1e6]), min_size=1)), max_size=30),
    st.lists(st.sampled_from([0, 0, 0, 1, 3])),
)
def test_what_is_dropped_is_in_the_total(windows: list[tuple[str, list[float]]], takes: list[int]) -> None:
    """Whatever a full queue drops, the next point of the series has the distribution of all windows up to it."""
    queue, mapping, plan = WindowQueue(3, 1 << 30), CumulativeMapping(0, "histogram"), deque(takes)
    plan.extend([0] * (len(windows) - len(takes) - 1) + [3])
    so_far: dict[str, list[float]] = {"x": [], "y": []}
    waiting: list[tuple[str, Histogram]] = []
    for number, (name, samples) in enumerate(windows):
        so_far[name] += samples
        waiting.append((name, Histogram.of(so_far[name])))
        del waiting[:-3]
        queue.put(window(samples, number * MINUTE_NS + 1, name))
        taken = plan.popleft()
        points = Points()
        mapping.write(queue.queue.take(taken), points)
        expected, waiting = waiting[:taken], waiting[taken:]
        for each in "xy":
            assert [histogram for name, histogram in expected if name == each] == [
                decoded(point) for point in points_of(points.request) if point.metric == f"{each}.histogram"
            ]


def test_totals_cost_nothing_where_no_histogram_is_sent() -> None:
    """Percentiles and delta histograms are of one window: nothing is merged for them."""
    for mapping in (CumulativeMapping(0), DeltaMapping(0, "both")):
        queue = WindowQueue(10, 1 << 30)
        queue.put(window([1.0], 1))
        (entry,) = queue.queue.take(1)
        mapping.write([entry], Points())
        assert entry.series.histogram is None
