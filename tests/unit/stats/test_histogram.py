"""Histogram: exact merging, error bound of quantiles, and buckets equal to those of the OpenTelemetry SDK."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import random
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitel import Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

TINY = 1e-307  # floats below are subnormal, and have fewer digits
finite = st.floats(allow_nan=False, allow_infinity=False)
wide = st.lists(finite | st.sampled_from([0.0, -0.0, 5e-324, -5e-324, sys.float_info.min, sys.float_info.max]))
narrow = st.builds(
    lambda middle, spread: [middle * (1 + part) for part in spread],
    st.floats(1e-6, 1e6),
    st.lists(st.floats(-0.9, 1.0)),
)
numbers = wide | narrow | st.lists(st.floats(-10, 10))
anything = st.lists(st.floats())


def exact(histogram: Histogram) -> list[Any]:
    """Return all fields except the sum, whose last digits depend on the order of addition."""
    return [value for name, value in dataclasses.asdict(histogram).items() if name != "sum"]


@given(anything, anything)
def test_merged_histogram_has_all_samples(one: list[float], other: list[float]) -> None:
    """Two merged histograms have the buckets, counts and extremes of one histogram of all samples."""
    merged, all_at_once = Histogram.of(one).merge(Histogram.of(other)), Histogram.of(one + other)
    assert exact(all_at_once) == exact(merged)
    size = sum(abs(sample) for sample in one + other if math.isfinite(sample))
    assert size == math.inf or abs(all_at_once.sum - merged.sum) <= 1e-9 * size


@given(numbers, numbers, numbers)
def test_merge_is_associative_and_commutative(a: list[float], b: list[float], c: list[float]) -> None:
    """The order of merging does not change the result."""
    one, two, three = map(Histogram.of, (a, b, c))
    assert exact(one.merge(two)) == exact(two.merge(one))
    assert exact(one.merge(two).merge(three)) == exact(one.merge(two.merge(three)))


@given(anything)
def test_merge_with_an_empty_one_changes_nothing(samples: list[float]) -> None:
    """The empty histogram is the neutral element."""
    histogram, empty = Histogram.of(samples), Histogram.of([])
    assert exact(histogram) == exact(histogram.merge(empty)) == exact(empty.merge(histogram))


@given(numbers.filter(bool), st.floats(0, 1))
@example([1.0, 2.0, 4.0, 8.0], 0.5)
@example([5e-324, 1.0, sys.float_info.max], 0.5)
@example([-sys.float_info.max, 3.0, sys.float_info.max], 1.0)
@example([0.1] * 7, 0.3)
@example([0.0, 1.0, 1.0], 0.5)
def test_quantile_is_within_its_error_bound(samples: list[float], q: float) -> None:
    """The sample of rank ``ceil(q * count)`` is within ``relative_error``; the extremes are exact."""
    histogram, ordered = Histogram.of(samples), sorted(samples)
    expected = ordered[max(1, math.ceil(q * len(samples))) - 1]
    found = histogram.quantile(q)
    rounding = 4 * math.ulp(expected) + TINY * 1e-10
    assert abs(found - expected) <= histogram.relative_error * abs(expected) + rounding
    assert (ordered[0], ordered[-1]) == (histogram.quantile(0), histogram.quantile(1))
    assert ordered[0] <= found <= ordered[-1]
    assert 0 < histogram.relative_error < 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.001, 0.1, 1.0, 4.0])
def test_percentiles_are_numpys(seed: int, spread: float) -> None:
    """Percentiles of 10,000 samples are within the error bound of NumPy's exact percentiles."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    samples = numpy.random.default_rng(seed).lognormal(0, spread, 10_000)
    histogram = Histogram.of(samples)
    percents = [1, 10, 25, 50, 75, 90, 95, 99, 99.9]
    expected = numpy.percentile(samples, percents, method="inverted_cdf")
    found = numpy.array([histogram.quantile(percent / 100) for percent in percents])
    assert (abs(found / expected - 1) <= histogram.relative_error).all()
    assert histogram.relative_error < {0.001: 1e-4, 0.1: 0.006, 1.0: 0.05, 4.0: 0.2}[spread]
    assert [histogram.quantile(percent / 100) for percent in (50, 90, 95, 99)] == list(histogram.percentiles().values())


@pytest.mark.parametrize("value", [3.0, -0.3, 0.0, -0.0, 5e-324, sys.float_info.max])
def test_all_equal(value: float) -> None:
    """A single value gives exact quantiles, at the largest scale."""
    histogram = Histogram.of([value] * 1000)
    assert {value} == {histogram.quantile(q) for q in (0, 0.01, 0.5, 0.99, 1)}
    assert (1000, 20, value, value) == (histogram.count, histogram.scale, histogram.min, histogram.max)


def test_no_samples() -> None:
    """Without samples, quantiles are NaN; sums and counts are 0."""
    histogram = Histogram.of([])
    assert math.isnan(histogram.quantile(0.5))
    assert [True] * 4 == [math.isnan(value) for value in histogram.percentiles().values()]
    assert (0, 0.0, [], math.inf, -math.inf) == (
        histogram.count,
        histogram.sum,
        list(histogram.buckets()),
        histogram.min,
        histogram.max,
    )


def test_samples_that_are_not_finite_are_counted_separately() -> None:
    """NaN and infinities are counted, and do not affect buckets, sum, minimum, maximum or quantiles."""
    histogram = Histogram.of([math.nan, 1.0, math.inf, 2.0, -math.inf, 4.0])
    assert exact(dataclasses.replace(Histogram.of([1.0, 2.0, 4.0]), nonfinite=3)) == exact(histogram)
    assert (3, 7.0, 2.0) == (histogram.count, histogram.sum, round(histogram.quantile(0.5), 1))


@pytest.mark.parametrize("q", [-0.1, 1.1, 50, math.nan, math.inf])
def test_q_is_a_fraction(q: float) -> None:
    """The error for a percentage shows a valid value."""
    with pytest.raises(ValueError, match=r"q must be between 0 and 1, such as 0\.5 for the median, got"):
        Histogram.of([1.0]).quantile(q)


@pytest.mark.parametrize("scale", range(-4, 21))
@pytest.mark.parametrize("exponent", [-1074, -1023, -1022, -1, 0, 1, 52, 1023])
def test_a_power_of_two_belongs_to_the_bucket_below(scale: int, exponent: int) -> None:
    """Upper bounds are inclusive, and exact at powers of two (data model, "Exponential Scale")."""
    index = Histogram.of([math.ldexp(1, exponent)]).positive_offset
    assert (exponent << 20) - 1 == index
    assert (exponent * 2**scale if scale > 0 else -(-exponent // 2**-scale)) - 1 == index >> 20 - scale


@pytest.mark.parametrize("exponent", [-1021, -8, -1, 0, 1, 52, 1023])
def test_the_neighbours_of_a_power_of_two(exponent: int) -> None:
    """The number just below a power of two is in the same bucket, the one just above in the next."""
    power = math.ldexp(1, exponent)
    below, above = (Histogram.of([math.nextafter(power, to)]).positive_offset for to in (0, math.inf))
    assert ((exponent << 20) - 1, exponent << 20) == (below, above)


@given(numbers)
def test_bounds_hold_the_samples(samples: list[float]) -> None:
    """Buckets are in order, do not overlap, stay within the extremes, and count their samples."""
    buckets = list(Histogram.of(samples).buckets())
    assert len(samples) == sum(count for *_, count in buckets)
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(buckets))
    if samples:
        assert (min(samples), max(samples)) == (buckets[0][0], buckets[-1][1]) or len(set(map(abs, samples))) < 3
    for low, high, _ in buckets:
        assert min(samples) <= low <= high <= max(samples)


@given(anything)
def test_histogram_is_a_plain_value(samples: list[float]) -> None:
    """Pickle and JSON restore an equal histogram with the same hash."""
    histogram = Histogram.of([sample for sample in samples if abs(sample) < 1e300])
    copies = pickle.loads(pickle.dumps(histogram)), Histogram(**json.loads(json.dumps(dataclasses.asdict(histogram))))
    assert (histogram, histogram) == copies
    assert {histogram} == set(copies)


def of_sdk(samples: Sequence[float]) -> list[Any]:
    """Return the SDK's aggregation of the samples, in the order of monitel's fields, without the sum."""
    metrics = pytest.importorskip("opentelemetry.sdk.metrics", reason="the OpenTelemetry SDK is not installed")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

    aggregation = {metrics.Histogram: ExponentialBucketHistogramAggregation()}
    reader = InMemoryMetricReader(preferred_aggregation=aggregation)  # type: ignore[arg-type]
    histogram = metrics.MeterProvider([reader], shutdown_on_exit=False).get_meter("test").create_histogram("x")
    for sample in samples:
        histogram.record(sample)
    data = reader.get_metrics_data()
    assert data is not None
    point: Any = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]
    counts = list(point.positive.bucket_counts)
    first = next((place for place, count in enumerate(counts) if count), 0)
    while counts and not counts[-1]:
        counts.pop()
    return [point.scale, point.zero_count, point.positive.offset + first, tuple(counts[first:]), point.min, point.max]


def of_ours(samples: Sequence[float]) -> list[Any]:
    """Return the same fields of monitel's histogram."""
    ours = Histogram.of(samples)
    return [ours.scale, ours.zero_count, ours.positive_offset, ours.positive, ours.min, ours.max]


def at_an_end(sample: float) -> bool:
    """Return True if a sample is so close to a bound that the SDK's rounding may choose the next bucket.

    The SDK takes one logarithm of the whole number, whose error grows with the distance of the sample from 1.
    """
    place = math.log2(sample) * 2**20
    return abs(place - round(place)) <= abs(place) * 2**-50 and math.frexp(sample)[0] != 0.5


@given(st.lists(st.floats(sys.float_info.min, sys.float_info.max), min_size=1) | narrow.filter(bool))
@example([0.003906249999999999])  # below 2 ** -8, and above it for the SDK
def test_buckets_are_those_of_the_sdk(samples: list[float]) -> None:
    """Scale, offset and counts are equal to those of the OpenTelemetry SDK's aggregation.

    This includes powers of two. Other samples at the bound of a bucket may be in the neighbouring one.
    """
    clear = [sample for sample in samples if not at_an_end(sample)]
    if clear:
        assert of_sdk(clear) == of_ours(clear)
    for sample in filter(at_an_end, samples):
        (scale, zeros, theirs, *rest), (_, _, ours, *_) = of_sdk([sample]), of_ours([sample])
        assert theirs in {ours - 1, ours, ours + 1}
        assert [scale, zeros, ours, *rest] == of_ours([sample])


def test_many_samples_give_the_buckets_of_the_sdk() -> None:
    """20,000 samples over many orders of magnitude, with zeros, give the same buckets."""
    rng = random.Random(7)
    samples = [rng.choice([0.0, math.exp(rng.gauss(0, 5))]) for _ in range(20_000)]
    assert of_sdk(samples) == of_ours(samples)


@given(samples=anything)
def test_twins_collect_the_same(both_twins: dict[str, ModuleType], samples: list[float]) -> None:
    """Both twins give the histogram of the samples, and the same standard deviation."""
    found = []
    for package in both_twins.values():
        stat = package.Stat("x", [package.HISTOGRAM, package.STDDEV], math.inf)
        with package.testing.capture_events() as events:
            for sample in samples:
                stat.add(sample)
            stat.flush()
        found += [(repr(event.window.histogram), repr(event.window.stddev)) for event in events]
    expected = repr(Histogram.of(samples))
    assert [expected] * len(found) == [histogram for histogram, _ in found]
    assert len(found) == (2 if samples else 0)
    assert len(set(found)) == min(1, len(samples))


@pytest.mark.parametrize("scale", [3, 8, 11, 12, 13, 20])
def test_samples_at_the_ends_of_buckets(both_twins: dict[str, ModuleType], scale: int) -> None:
    """Numbers at the bounds of buckets, and one ulp beside, are in the same buckets in both twins."""
    per_octave = 2**scale
    at_once = min(per_octave, 100)  # that many buckets have their own scale
    for first in range(0, per_octave, at_once if scale < 13 else per_octave // 40):
        ends = [2.0 ** (index / per_octave) for index in range(first, first + at_once)]
        samples = [near for end in ends for near in (math.nextafter(end, 0), end, math.nextafter(end, math.inf))]
        histograms = []
        for package in both_twins.values():
            stat = package.Stat("x", [package.HISTOGRAM], math.inf)
            with package.testing.capture_events() as events:
                for sample in samples:
                    stat.add(sample)
                stat.flush()
            histograms.append(dataclasses.asdict(events[0].window.histogram))
        assert histograms[0] == histograms[1]
        assert abs(histograms[0]["scale"] - scale) <= 4
