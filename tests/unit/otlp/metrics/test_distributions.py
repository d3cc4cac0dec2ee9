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
from tests.support.inbox import TEMPORALITY, points_of
from tests.support.producers import close_windows

import monitel
import monitel_otlp
from monitel import COUNT, HISTOGRAM, STDDEV, Histogram, Stat
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.points import Points
from monitel_otlp.metrics.window_queue import WindowQueue

if TYPE_CHECKING:
    from tests.support.inbox import Point
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel.testing import ManualClock

START_NS = 1_767_225_600_000_000_000  # initial time of the fixture ``clock``
MINUTE_NS = 60_000_000_000
DELTA, CUMULATIVE = 1, 2
PERCENTILES = ["x.p50", "x.p90", "x.p95", "x.p99"]
AGGREGATION = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"


def decoded(point: Point) -> Histogram:
    """Return the histogram of a point, without the fields that a histogram point does not have."""
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
def test_form_of_distributions(
    receiver: Receiver,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    *,
    chosen: str | None,
    variable: str,
    metrics: list[str],
    temporality: str,
) -> None:
    """Percentiles are sent unless the argument or the standard variable selects histograms."""
    monkeypatch.setenv(AGGREGATION, variable)
    monkeypatch.setenv(TEMPORALITY, temporality)
    pipeline = start(distributions=chosen)
    stat = Stat("x", [HISTOGRAM, STDDEV], 60.0, unit="s", description="a step", attributes={"split": "val"})
    for sample in (1.0, 3.0):
        stat.add(sample)
    stat.flush()
    assert pipeline.force_flush(60)
    points = [point for point in receiver.all_points() if point.metric.startswith("x")]
    assert sorted([*metrics, "x.stddev"]) == sorted(point.metric for point in points)
    assert {("s", "a step", "split=val")} == {
        (point.unit, point.description, "split=" + point.attributes["split"]) for point in points
    }
    assert [1.0] == receiver.values("x.stddev")
    assert [1.0] * (metrics != ["x.histogram"]) == receiver.values("x.p50")


def test_unknown_distributions_are_refused() -> None:
    """The message has the allowed values."""
    with pytest.raises(ValueError, match="distributions must be one of 'percentiles', 'histogram', 'both', got 'p99'"):
        monitel_otlp.configure(distributions="p99")


def test_cumulative_histograms_contain_all_samples_so_far(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Each window adds a point at its end, with all finite samples since the start of the pipeline."""
    pipeline = start(distributions="both")
    stat = Stat("x", [HISTOGRAM, COUNT], 60.0)
    windows = [[1.0, 4.0], [math.nan], [0.0, 1e9, math.inf], [2.0]]
    close_windows(stat, clock, *windows)
    assert pipeline.force_flush(60)
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


def test_delta_histograms_contain_one_window(
    receiver: Receiver, start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The period of the point is that of the window; a window without finite samples has no point."""
    monkeypatch.setenv(TEMPORALITY, "delta")
    pipeline = start(distributions="histogram")
    stat = Stat("x", [HISTOGRAM, COUNT], 60.0)
    close_windows(stat, clock, [1.0, 4.0], [math.nan], [2.0])
    assert pipeline.force_flush(60)
    points = receiver.points("x.histogram")
    assert [Histogram.of([1.0, 4.0]), Histogram.of([2.0])] == [decoded(point) for point in points]
    assert {("exponential_histogram", DELTA)} == {(point.kind, point.temporality) for point in points}
    assert [(0, 1), (2, 3)] == [
        ((point.start_ns - START_NS) // MINUTE_NS, (point.time_ns - START_NS) // MINUTE_NS) for point in points
    ]
    assert [2, 1, 1] == receiver.values("x.count")


def test_histogram_with_negative_samples_has_no_sum(receiver: Receiver, start: Start) -> None:
    """OTLP does not allow a sum then; negative samples are in the negative buckets."""
    pipeline = start(distributions="histogram")
    stat = Stat("x", [HISTOGRAM], 60.0)
    for sample in (-3.0, 1.0, -3.5):
        stat.add(sample)
    stat.flush()
    assert pipeline.force_flush(60)
    (point,) = receiver.points("x.histogram")
    assert not point.proto.HasField("sum")
    assert (-3.5, 1.0, 2) == (point.proto.min, point.proto.max, sum(point.proto.negative.bucket_counts))


def test_windows_less_than_a_millisecond_apart_are_one_point(
    receiver: Receiver, start: Start, clock: ManualClock
) -> None:
    """The point has the distribution and the standard deviation of all their samples."""
    pipeline = start(distributions="both")
    stat = Stat("x", [HISTOGRAM, STDDEV], 60.0)
    for samples in ([1.0, 4.0, 9.0], [100.0, 50.0]):
        for sample in samples:
            stat.add(sample)
        stat.flush()
        clock.advance(0.0004)
    assert pipeline.force_flush(60)
    (point,) = receiver.points("x.histogram")
    every = [1.0, 4.0, 9.0, 100.0, 50.0]
    assert Histogram.of(every) == decoded(point)
    assert [Histogram.of(every).quantile(0.5)] == receiver.values("x.p50")
    mean = sum(every) / 5
    expected = math.sqrt(sum((sample - mean) ** 2 for sample in every) / 5)
    assert [expected] == pytest.approx(receiver.values("x.stddev"))


def test_merged_standard_deviation_may_be_infinite(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """If the variance of merged windows exceeds the range of floats, the standard deviation is infinite."""
    pipeline = start()
    stat = Stat("x", [COUNT, STDDEV], 60.0)
    for samples in ([1e300, 1e300], [1.0]):
        for sample in samples:
            stat.add(sample)
        stat.flush()
        clock.advance(0.0004)
    assert pipeline.force_flush(60)
    assert ([3], [math.inf]) == (receiver.values("x.count"), receiver.values("x.stddev"))


def test_stats_of_one_series_share_their_totals(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """A new Stat continues the totals of the previous one, even after a Stat without HISTOGRAM."""
    pipeline = start(distributions="histogram")
    for aggregations in ([HISTOGRAM], [COUNT], [HISTOGRAM]):
        close_windows(Stat("x", aggregations, 60.0), clock, [2.0])
        assert pipeline.force_flush(60)
    assert [1, 2] == [point.proto.count for point in receiver.points("x.histogram")]


def window(samples: list[float], end_ns: int, name: str = "x") -> monitel.Window:
    """Return a window with these samples."""
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
def test_dropped_windows_are_in_the_totals(windows: list[tuple[str, list[float]]], takes: list[int]) -> None:
    """If a full queue drops windows, the next point of the series has the distribution of all windows so far."""
    queue, mapping, plan = WindowQueue(3, 1 << 30), WindowMapping("cumulative", 0, "histogram"), deque(takes)
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


def test_nothing_is_merged_without_cumulative_histograms() -> None:
    """Percentiles and delta histograms need only one window."""
    for mapping in (WindowMapping("cumulative", 0), WindowMapping("delta", 0, "both")):
        queue = WindowQueue(10, 1 << 30)
        queue.put(window([1.0], 1))
        (entry,) = queue.queue.take(1)
        mapping.write([entry], Points())
        assert entry.series.histogram is None
