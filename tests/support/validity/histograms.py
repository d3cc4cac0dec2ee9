"""Points of histograms: counts, buckets, min, max and sum."""

import math
from itertools import pairwise
from typing import Any

from tests.support.validity.rules import Findings

_SLACK = 1e-9  # relative: bounds are powers, which two implementations round differently
_SCALES = range(-10, 21)


def check_explicit(point: Any, path: str, findings: Findings) -> None:
    bounds, counts = list(point.explicit_bounds), list(point.bucket_counts)
    findings.check(all(one < other for one, other in pairwise(bounds)), "histogram.bounds", path, bounds)
    findings.check(len(counts) == len(bounds) + 1, "histogram.buckets", path, (len(bounds), len(counts)))
    findings.check(sum(counts) == point.count, "histogram.count", path, f"{sum(counts)} of {point.count}")
    filled = [number for number, count in enumerate(counts) if count]
    if filled and len(counts) == len(bounds) + 1:
        edges = [*pairwise([-math.inf, *bounds, math.inf])]
        _check_within(point, edges[filled[0]], edges[filled[-1]], path, findings)
    _check_sum(point, point.HasField("min") and point.min < 0, path, findings)


def check_exponential(point: Any, path: str, findings: Findings) -> None:
    positive, negative = point.positive, point.negative
    total = point.zero_count + sum(positive.bucket_counts) + sum(negative.bucket_counts)
    findings.check(total == point.count, "histogram.count", path, f"{total} of {point.count}")
    findings.check(point.scale in _SCALES, "histogram.scale", path, point.scale)
    findings.check(point.zero_threshold >= 0, "histogram.zero", path, point.zero_threshold)
    if point.scale in _SCALES and point.count:
        ranges = [
            *((-high, -low) for low, high in reversed(_filled(negative, point.scale))),
            *([(-point.zero_threshold, point.zero_threshold)] if point.zero_count else []),
            *_filled(positive, point.scale),
        ]
        if ranges:
            _check_within(point, ranges[0], ranges[-1], path, findings)
    _check_sum(point, any(negative.bucket_counts), path, findings)


def _filled(buckets: Any, scale: int) -> list[tuple[float, float]]:
    counts = list(buckets.bucket_counts)
    return [
        (_bound(index, scale), _bound(index + 1, scale)) for index, count in enumerate(counts, buckets.offset) if count
    ]


def _bound(index: int, scale: int) -> float:
    try:
        return float(2.0 ** (index * 2.0**-scale))
    except OverflowError:
        return math.inf


def _check_within(
    point: Any, first: tuple[float, float], last: tuple[float, float], path: str, findings: Findings
) -> None:
    for name, low, high in (("min", *first), ("max", *last)):
        if point.HasField(name):
            value = getattr(point, name)
            slack = abs(value) * _SLACK
            findings.check(
                low - slack <= value <= high + slack, "histogram.minmax", path, f"{name} {value} of {low}..{high}"
            )


def _check_sum(point: Any, has_negative: bool, path: str, findings: Findings) -> None:
    if not point.HasField("sum"):
        return
    findings.check(not has_negative, "histogram.sum", path, point.sum)
    findings.check(not math.isnan(point.sum), "point.nan", path, "sum")
    if point.count and point.HasField("min") and point.HasField("max"):
        low, high = point.count * point.min, point.count * point.max
        slack = max(abs(low), abs(high)) * _SLACK
        is_between = low - slack <= point.sum <= high + slack
        findings.check(is_between or math.isinf(slack), "histogram.sum.range", path, (low, point.sum, high))
