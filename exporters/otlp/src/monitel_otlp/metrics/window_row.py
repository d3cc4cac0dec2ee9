"""One closed window on its way to metric points, as exact built-in values."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import monitel
from monitel_otlp.metrics.pooled_stddev import pooled_stddev

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.metrics.window_queue import Entry, Series

# Scale, zeros, offset and counts of the positive and the negative side, sum, min, max, not finite.
PlainHistogram = tuple[int, int, int, tuple[int, ...], int, tuple[int, ...], float, float, float, int]

#: A window: its series' number, then the fields of :class:`WindowRow` from ``suffixes`` to ``items``.
PlainWindow = tuple[Any, ...]

_AFTER_HISTOGRAM = 11  # in a window's plain values

_MILLISECOND_NS = 1_000_000  # Prometheus keeps the first of two points that are closer


class WindowRow(NamedTuple):
    """A window with its series' totals, those of the moment at which it was queued.

    Attributes:
        series: The series that it belongs to.
        suffixes: Aggregations that were asked for, such as ``"mean"``.
        start_ns: Start, Unix ns.
        end_ns: End, Unix ns; that of the points.
        samples: Number of samples.
        sum: The samples added up.
        min: The smallest sample.
        max: The largest sample.
        last: The last sample.
        stddev: Their standard deviation, if asked for.
        histogram: Their distribution, if asked for.
        finite_sum: The sum where it is finite.
        total_count: Samples of the series so far.
        total_sum: Sum of the series so far.
        items: Windows in it: several after a merge.
        total_histogram: Distribution of the series so far; set in the order in which windows are encoded.
    """

    series: Series
    suffixes: tuple[str, ...]
    start_ns: int
    end_ns: int
    samples: int
    sum: float
    min: float
    max: float
    last: float
    stddev: float | None
    histogram: monitel.Histogram | None
    finite_sum: float | None
    total_count: int
    total_sum: float
    items: int
    total_histogram: monitel.Histogram | None = None

    def value(self, suffix: str) -> float | None:
        """Return the number of an aggregation that has one."""
        return _VALUES[suffix](self)


_VALUES: dict[str, Callable[[WindowRow], float | None]] = {
    "mean": lambda row: row.sum / row.samples,
    "value": lambda row: row.last,
    "min": lambda row: row.min,
    "max": lambda row: row.max,
    "stddev": lambda row: row.stddev,
}


def plain_window(entry: Entry, series: int = 0) -> PlainWindow:
    """Return a queued window as exact built-in values.

    Args:
        entry: The window as queued.
        series: The number of its series in the header of a raw segment.

    Raises:
        Exception: A value is not of the type that a window has.
    """
    window = entry.window
    return (
        series,
        _suffixes(window.definition.aggregations),
        int(window.start_ns),
        int(window.end_ns),
        int(window.count),
        float(window.sum),
        float(window.min),
        float(window.max),
        float(window.last),
        None if window.stddev is None else float(window.stddev),
        None if window.histogram is None else plain_histogram(window.histogram),
        None if entry.finite_sum is None else float(entry.finite_sum),
        int(entry.total_count),
        float(entry.total_sum),
        int(entry.items),
    )


def row_of(plain: PlainWindow, series: Series) -> WindowRow:
    """Return a window from its plain values."""
    *before, histogram = plain[1:_AFTER_HISTOGRAM]
    made = None if histogram is None else histogram_of(histogram)
    fields: tuple[Any, ...] = (series, *before, made, *plain[_AFTER_HISTOGRAM:])
    return WindowRow(*fields)


def plain_histogram(histogram: monitel.Histogram) -> PlainHistogram:
    """Return a distribution as exact built-in values."""
    return (
        int(histogram.scale),
        int(histogram.zero_count),
        int(histogram.positive_offset),
        _counts(histogram.positive),
        int(histogram.negative_offset),
        _counts(histogram.negative),
        float(histogram.sum),
        float(histogram.min),
        float(histogram.max),
        int(histogram.nonfinite),
    )


def _counts(counts: tuple[int, ...]) -> tuple[int, ...]:
    # The sum has another type if one of them is a NumPy number: they are not converted one by one without need.
    return counts if type(counts) is tuple and type(sum(counts)) is int else tuple(map(int, counts))


def histogram_of(plain: PlainHistogram) -> monitel.Histogram:
    """Return a distribution from its plain values."""
    return monitel.Histogram(*plain)


@lru_cache(maxsize=256)
def _suffixes(aggregations: tuple[monitel.Aggregation, ...]) -> tuple[str, ...]:
    return tuple(aggregation.suffix for aggregation in aggregations)


def ascending(rows: list[WindowRow], earliest_ns: int) -> list[WindowRow]:
    """Return windows of one series by their ends, none before ``earliest_ns``; those less than 1 ms apart become one.

    Two threads may hand over two windows of a series in the wrong order. Times and totals both only rise, so each is
    put in order by itself: the totals are in the order of arrival already.
    """
    if len(rows) == 1 and rows[0].end_ns >= earliest_ns:
        return rows
    found: list[WindowRow] = []
    for row, arrived in zip(sorted(rows, key=lambda row: row.end_ns), rows, strict=True):
        moved = row._replace(
            end_ns=max(row.end_ns, earliest_ns),
            total_count=arrived.total_count,
            total_sum=arrived.total_sum,
            total_histogram=arrived.total_histogram,
        )
        if found and moved.end_ns < found[-1].end_ns + _MILLISECOND_NS:
            moved = _merged(found.pop(), moved)
        found.append(moved)
    return found


def _merged(one: WindowRow, other: WindowRow) -> WindowRow:
    sums = [row.finite_sum for row in (one, other) if row.finite_sum is not None]
    return other._replace(
        start_ns=one.start_ns,
        samples=one.samples + other.samples,
        sum=one.sum + other.sum,
        min=min(one.min, other.min),
        max=max(one.max, other.max),
        stddev=_merged_stddev(one, other),
        histogram=_merged_histogram(one.histogram, other.histogram),
        finite_sum=sum(sums) if sums else None,
        items=one.items + other.items,
    )


def _merged_stddev(one: WindowRow, other: WindowRow) -> float | None:
    """Of both; two Stats of one name may differ in the aggregations that they collect."""
    if one.stddev is None or other.stddev is None:
        return other.stddev
    mean = (one.sum + other.sum) / (one.samples + other.samples)
    parts = ((row.samples, row.sum / row.samples, row.stddev) for row in (one, other) if row.stddev is not None)
    return pooled_stddev(mean, parts)


def _merged_histogram(one: monitel.Histogram | None, other: monitel.Histogram | None) -> monitel.Histogram | None:
    return one.merge(other) if one is not None and other is not None else other
