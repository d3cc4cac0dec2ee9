"""Rows: windows and logged numbers of one series, in the order of their times, at least a millisecond apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import monitel
from monitel_otlp.metrics.points import MILLISECOND_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.export.totals import Series

#: The ``suffixes`` of a logged number, which is a row with one sample.
NUMBER = ("logged",)


class Row(NamedTuple):
    """A window, or several that were merged, with the totals of its series up to it.

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
        finite_sum: The part of ``total_sum`` that comes from this row; None if its sum is left out of it.
        total_count: Number of the series' samples up to this row.
        total_sum: Sum of the series' samples up to this row, see :meth:`Series.finite`.
        total_histogram: Distribution of the series' samples up to this row, if it is exported.
        items: Number of windows in the row.
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
    total_histogram: monitel.Histogram | None = None
    items: int = 1

    def value(self, suffix: str) -> float | None:
        """Return the number of an aggregation other than COUNT, SUM and HISTOGRAM."""
        return _VALUES[suffix](self)

    @property
    def delta_start_ns(self) -> int:
        """Start of points with delta temporality, Unix ns: before their time, not before the series' latest point."""
        start_ns = self.start_ns if self.start_ns < self.end_ns else self.end_ns - MILLISECOND_NS
        return max(start_ns, self.series.end_ns)


_VALUES: dict[str, Callable[[Row], float | None]] = {
    "mean": lambda row: row.sum / row.samples,
    "value": lambda row: row.last,
    "min": lambda row: row.min,
    "max": lambda row: row.max,
    "stddev": lambda row: row.stddev,
}


def number_row(series: Series, time_ns: int, value: float) -> Row:
    """Return the row of a logged number."""
    return Row(series, NUMBER, time_ns, time_ns, 1, value, value, value, value, None, None, None, 0, 0.0)


def ascending(rows: list[Row], earliest_ns: int) -> list[Row]:
    """Return rows of one series sorted by end, all of them at ``earliest_ns`` or later, and at least 1 ms apart.

    Rows that are less than 1 ms apart are merged. Two threads may have closed two windows of a series in the wrong
    order. Times and totals both have to rise, so they are sorted separately: the totals are in the order of the items.
    """
    if len(rows) == 1 and rows[0].end_ns >= earliest_ns:
        return rows
    found: list[Row] = []
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


def _merged(one: Row, other: Row) -> Row:
    """Return two windows of one series as one, with the totals of the later one; of two numbers, the later one.

    Numbers keep the time of the first one, so that a row of them does not become one number.

    It has the aggregations of both, because two Stats of one series may differ in them.
    """
    if other.suffixes == NUMBER:
        return other._replace(end_ns=one.end_ns, items=one.items + other.items)
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


_ANY = monitel.StatDefinition("merged", (), "", "", {}, monotonic=False)


def _window(row: Row) -> monitel.Window:
    return monitel.Window(
        _ANY,
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
