"""Histogram: error bound of quantiles, and buckets equal to those of the OpenTelemetry SDK."""

import dataclasses
import json
import math
import pickle
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from monitel import Histogram

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


@settings(max_examples=50)
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


@settings(max_examples=50)
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


@settings(max_examples=50)
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
    ours = Histogram.of(samples)
    return [ours.scale, ours.zero_count, ours.positive_offset, ours.positive, ours.min, ours.max]


def at_an_end(sample: float) -> bool:
    """Return True if a sample is so close to a bound that the SDK's rounding may choose the next bucket.

    The SDK takes one logarithm of the whole number, whose error grows with the distance of the sample from 1.
    """
    place = math.log2(sample) * 2**20
    return abs(place - round(place)) <= abs(place) * 2**-50 and math.frexp(sample)[0] != 0.5


@settings(max_examples=50)
@given(st.lists(st.floats(sys.float_info.min, sys.float_info.max), min_size=1) | narrow.filter(bool))
@example([0.003906249999999999])  # below 2 ** -8, and above it for the SDK
@example([math.ldexp(1, exponent) for exponent in (-1022, -8, -1, 0, 1, 52)])  # they belong to the bucket below
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
