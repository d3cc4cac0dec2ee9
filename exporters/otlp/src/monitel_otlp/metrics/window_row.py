"""Row: one closed window with its series' totals, as exact built-in values."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import KeyValue

import monitel
from monitel.attributes import escape_surrogates
from monitel_otlp.metrics.series import MILLISECOND_NS, LoggedNumber, Series

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.metrics.window_queue import QueuedEntry

# The fields of monitel.Histogram.
PlainHistogram = tuple[int, int, int, tuple[int, ...], int, tuple[int, ...], float, float, float, int]

#: A window: the number of its series, and the fields of :class:`WindowRow` from ``suffixes`` to ``items``.
PlainWindow = tuple[Any, ...]

_AFTER_HISTOGRAM = 11  # index into a window's plain values

#: The ``suffixes`` of a logged number, which is a row with one sample.
NUMBER = ("logged",)


class WindowRow(NamedTuple):
    """A window with its series' totals up to this window.

    Attributes:
        series: The series of the window.
        suffixes: Requested aggregations, such as ``"mean"``.
        start_ns: Start, Unix ns.
        end_ns: End, and time of the points, Unix ns.
        samples: Number of samples.
        sum: Sum of the samples.
        min: The smallest sample.
        max: The largest sample.
        last: The last sample.
        stddev: Standard deviation of the samples, if requested.
        histogram: Distribution of the samples, if requested.
        finite_sum: The part of ``total_sum`` that comes from this window, or from the merged windows; None if their
            sums are left out of it.
        total_count: Number of the series' samples up to this window.
        total_sum: Sum of the series' samples up to this window, see :attr:`Series.sum`.
        items: Number of merged windows.
        total_histogram: Distribution of the series' samples up to this window; set by the mapping.
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
        """Return the number of an aggregation other than COUNT, SUM and HISTOGRAM."""
        return _VALUES[suffix](self)

    @property
    def delta_start_ns(self) -> int:
        """Start of points with delta temporality, Unix ns: before their time, not before the series' latest point."""
        start_ns = self.start_ns if self.start_ns < self.end_ns else self.end_ns - MILLISECOND_NS
        return max(start_ns, self.series.end_ns)


_VALUES: dict[str, Callable[[WindowRow], float | None]] = {
    "mean": lambda row: row.sum / row.samples,
    "value": lambda row: row.last,
    "min": lambda row: row.min,
    "max": lambda row: row.max,
    "stddev": lambda row: row.stddev,
}


def plain_window(entry: QueuedEntry, series: int = 0) -> PlainWindow:
    """Return a queued window or number as exact built-in values.

    Args:
        entry: The window or number as queued.
        series: The number of its series in the header of a raw segment.

    Raises:
        Exception: A value is not of the type that a window has.
    """
    if isinstance(entry, LoggedNumber):
        time_ns, value = int(entry.time_ns), float(entry.take())
        return series, NUMBER, time_ns, time_ns, 1, *(value,) * 4, *(None,) * 3, 0, 0.0, 1
    window = entry.window
    suffixes = _suffixes(window.definition.aggregations)
    return plain_numbers(window, series, suffixes, entry.finite_sum, entry.total_count, entry.total_sum)


def plain_numbers(  # noqa: PLR0917  called for each window
    window: Any,
    series: int,
    suffixes: tuple[str, ...],
    finite_sum: float | None,
    total_count: int,
    total_sum: float,
) -> PlainWindow:
    """Return the numbers of a window, closed or open, and the totals of its series up to it, as exact values."""
    return (
        series,
        suffixes,
        int(window.start_ns),
        int(window.end_ns),
        int(window.count),
        float(window.sum),
        float(window.min),
        float(window.max),
        float(window.last),
        None if window.stddev is None else float(window.stddev),
        None if window.histogram is None else plain_histogram(window.histogram),
        None if finite_sum is None else float(finite_sum),
        int(total_count),
        float(total_sum),
        1,  # item
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
    # The sum has another type if one of the counts is a NumPy number; only then all counts are converted.
    return counts if type(counts) is tuple and type(sum(counts)) is int else tuple(map(int, counts))


def histogram_of(plain: PlainHistogram) -> monitel.Histogram:
    """Return a distribution from its plain values."""
    return monitel.Histogram(*plain)


@lru_cache(maxsize=256)
def _suffixes(aggregations: tuple[monitel.Aggregation, ...]) -> tuple[str, ...]:
    return tuple(aggregation.suffix for aggregation in aggregations)


def ascending(rows: list[WindowRow], earliest_ns: int) -> list[WindowRow]:
    """Return windows of one series sorted by end, all of them at ``earliest_ns`` or later, and at least 1 ms apart.

    Windows that are less than 1 ms apart are merged. Two threads may queue two windows of a series in the wrong order.
    Times and totals both have to rise, so they are sorted separately: the totals are already in the order of arrival.
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
        if found and moved.end_ns < found[-1].end_ns + MILLISECOND_NS:
            moved = _merged(found.pop(), moved)
        found.append(moved)
    return found


def _merged(one: WindowRow, other: WindowRow) -> WindowRow:
    """Return two windows of one series as one, with the totals of the later one; of two numbers, the later one.

    It has the aggregations of both, because two Stats of one series may differ in them.
    """
    if other.suffixes == NUMBER:
        return other._replace(items=one.items + other.items)
    both = _window(one).merge(_window(other))
    sums = [row.finite_sum for row in (one, other) if row.finite_sum is not None]
    return other._replace(
        suffixes=tuple(dict.fromkeys(one.suffixes + other.suffixes)),
        start_ns=both.start_ns,
        samples=both.count,
        sum=both.sum,
        min=both.min,
        max=both.max,
        last=both.last,
        stddev=both.stddev,
        histogram=both.histogram or other.histogram or one.histogram,
        finite_sum=sum(sums) if sums else None,
        items=one.items + other.items,
        total_histogram=other.total_histogram or one.total_histogram,
    )


def _window(row: WindowRow) -> monitel.Window:
    return monitel.Window(
        row.series.definition,
        start_ns=row.start_ns,
        end_ns=row.end_ns,
        count=row.samples,
        sum=row.sum,
        min=row.min,
        max=row.max,
        last=row.last,
        discarded=0,
        first_step=None,
        last_step=None,
        stddev=row.stddev,
        histogram=row.histogram,
    )


# Metric name, Stat name, unit, description, monotonic, serialized attributes, end of the last point in Unix ns, total
# distribution, distributions of dropped windows, earliest start of a window in Unix ns, suffixes of begun sums, start
# of cumulative points in Unix ns.
PlainSeries = tuple[
    str, str, str, str, bool, list[bytes], int, "PlainHistogram | None", "list[PlainHistogram]", int, list[str], int
]


def plain_series(series: Series) -> PlainSeries:
    """Return the current state of a series."""
    definition = series.definition
    return (
        series.name,
        escape_surrogates(definition.name),
        escape_surrogates(definition.unit),
        escape_surrogates(definition.description),
        bool(definition.monotonic),
        [pair.SerializeToString() for pair in series.attributes],
        int(series.end_ns),
        None if series.histogram is None else plain_histogram(series.histogram),
        [plain_histogram(histogram) for histogram in series.dropped],
        int(series.begin_ns),
        sorted(series.begun),
        int(series.start_ns),
    )


def series_of(plain: PlainSeries) -> Series:
    """Return a series with the given state."""
    name, stat, unit, description, monotonic, attributes, end_ns, histogram, dropped, begin_ns, begun, start_ns = plain
    definition = monitel.StatDefinition(stat, (), unit, description, {}, monotonic)
    return Series(
        name,
        definition,
        tuple(KeyValue.FromString(pair) for pair in attributes),
        end_ns=end_ns,
        histogram=None if histogram is None else histogram_of(histogram),
        dropped=deque(histogram_of(each) for each in dropped),
        begin_ns=begin_ns,
        begun=frozenset(begun),
        start_ns=start_ns,
    )
