"""Metric points of windows and logged numbers.

Each requested aggregation becomes one metric, e.g. ``train.loss.mean``: COUNT and SUM become sums, HISTOGRAM a
histogram or percentiles, others gauges. A logged number becomes a gauge with its name.

The temporality decides only the value and the start time of monotonic sums and of histograms: all samples since the
start of the series, or those of one window. Sums that are not monotonic are always cumulative. A cumulative sum begins
with a point of value zero at the start of the series' first window.

The messages are filled directly: the SDK's metric classes and their encoder take four times as long.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel_otlp.metrics.points import CUMULATIVE, DELTA, MILLISECOND_NS, UNSPECIFIED, Points, fill, start_point_ns
from monitel_otlp.metrics.totals import NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from monitel.blackbox.record import Item
    from monitel_otlp.metrics.totals import Draft, Row

_log = logging.getLogger("monitel.otlp")


class Mapping(NamedTuple):
    """The settings with which windows become points.

    Attributes:
        temporality: ``"cumulative"``, ``"delta"`` or ``"lowmemory"``, which is delta: windows are handed over as they
            close, as samples to a synchronous instrument.
        start_ns: Start of the totals, Unix ns. A series whose first window began earlier has an earlier start.
        distributions: The form of HISTOGRAM: ``"percentiles"``, ``"histogram"`` or ``"both"``.
        after_ns: No point is earlier, Unix ns.
    """

    temporality: str
    start_ns: int
    distributions: str
    after_ns: int = 0

    @property
    def delta(self) -> bool:
        """True for delta temporality."""
        return self.temporality != "cumulative"

    @property
    def totals_of_histograms(self) -> bool:
        """True if the distributions of a series are added up."""
        return not self.delta and self.distributions != "percentiles"


class WindowPoints:
    """Writes windows and logged numbers. The times of a series ascend over all requests.

    Args:
        mapping: How windows become points.

    Attributes:
        mapping: The argument.
        coalesced: Number of logged numbers without a point, because a later one has the same millisecond.
    """

    def __init__(self, mapping: Mapping) -> None:
        self.mapping = mapping
        self.coalesced = 0
        self._delta = mapping.delta
        self._percentiles = mapping.distributions != "histogram"
        self._histograms = mapping.distributions != "percentiles"
        self._failed = False

    def write(
        self, items: Iterable[Item], draft: Draft, metrics: Any, pause: Callable[[], object] = lambda: None
    ) -> tuple[int, int]:
        """Add the points of some items.

        Args:
            items: Items, in order.
            draft: The totals, which are changed.
            metrics: A list of metrics.
            pause: Called between slices of work.

        Returns:
            The number of points, and of items that are lost because they cannot be encoded.
        """
        lost = 0
        by_series: dict[Hashable, list[Row]] = {}
        for item in items:
            try:
                rows = draft.rows(item, histograms=self.mapping.totals_of_histograms)
            except Exception:
                self._warn()
                lost += item.items
                continue
            for row in rows:
                by_series.setdefault(row.series.described.key, []).append(row)
            pause()
        points = Points(metrics)
        for rows in by_series.values():
            lost += self._write_series(rows, points)
            pause()
        return points.number, lost

    def _write_series(self, rows: list[Row], points: Points) -> int:
        series = rows[0].series
        try:
            ordered = _ascending(rows, series.end_ns + MILLISECOND_NS)
        except Exception:  # numbers that cannot be merged: too large for a float
            self._warn()
            return len(rows)
        if not series.start_ns:
            first = ordered[0].window
            start_ns = min(self.mapping.start_ns, series.begin_ns or first.start_ns, first.end_ns - MILLISECOND_NS)
            series.start_ns = max(start_ns, series.end_ns)
        lost = 0
        for row in ordered:
            begun = series.begun
            try:
                self._write(row, points)
            except Exception:
                self._warn()
                points.rollback()
                series.begun = begun
                lost += row.items
            else:
                points.commit()
                series.end_ns = row.window.end_ns
        return lost

    def _write(self, row: Row, points: Points) -> None:
        """Add the points of one row."""
        definition, window = row.series.definition, row.window
        name, unit = definition.metric, definition.unit
        if row.suffixes == NUMBER:
            _add(row, points, name, unit).as_double = window.last
            self.coalesced += row.items - 1
            return
        for suffix in row.suffixes:
            if suffix == "count":
                if self._delta:
                    self._add_delta(row, points, suffix, "{sample}", window.count)
                else:
                    self._add_total(row, points, suffix, "{sample}", row.total_count, monotonic=True)
            elif suffix == "sum":
                if not self._delta or not definition.monotonic:
                    self._add_total(row, points, suffix, unit, row.total_sum, monotonic=definition.monotonic)
                elif row.finite_sum is not None:
                    self._add_delta(row, points, suffix, unit, row.finite_sum)
            elif suffix == "histogram":
                self._add_distribution(row, points)
            else:
                value = window.last if suffix == "value" else getattr(window, suffix)
                if value is not None:  # a merged window may lack it
                    _add(row, points, f"{name}.{suffix}", unit).as_double = value

    @staticmethod
    def _add_delta(row: Row, points: Points, suffix: str, unit: str, value: float) -> None:
        """Add the point of a monotonic sum, of one window."""
        point = _add(row, points, f"{row.series.definition.metric}.{suffix}", unit, "sum", DELTA, True)
        point.start_time_unix_nano = _delta_start_ns(row)
        fill(point, value)

    @staticmethod
    def _add_total(row: Row, points: Points, suffix: str, unit: str, total: float, *, monotonic: bool) -> None:
        """Add the point of a sum up to a window, after the start point if it is the first one."""
        series, name, end_ns = row.series, f"{row.series.definition.metric}.{suffix}", row.window.end_ns
        if suffix not in series.begun:
            series.begun |= {suffix}
            at_ns = start_point_ns(series.start_ns, series.begin_ns, end_ns)
            point = _add(_moved(row, at_ns), points, name, unit, "sum", CUMULATIVE, monotonic)
            point.start_time_unix_nano = series.start_ns
            fill(point, type(total)(0))
        point = _add(row, points, name, unit, "sum", CUMULATIVE, monotonic)
        point.start_time_unix_nano = series.start_ns
        fill(point, total)

    def _add_distribution(self, row: Row, points: Points) -> None:
        """Add the points of HISTOGRAM: the percentiles of the window, and a histogram, if they are enabled."""
        name, unit, of_window = row.series.definition.metric, row.series.definition.unit, row.window.histogram
        if of_window is not None and self._percentiles:
            for suffix, value in of_window.percentiles().items():
                _add(row, points, f"{name}.{suffix}", unit).as_double = value
        histogram = of_window if self._delta else row.total_histogram
        if self._histograms and histogram is not None and histogram.count:  # empty if no sample is finite
            temporality = DELTA if self._delta else CUMULATIVE
            point = _add(row, points, f"{name}.histogram", unit, "exponential_histogram", temporality)
            point.start_time_unix_nano = _delta_start_ns(row) if self._delta else row.series.start_ns
            point.count = histogram.count
            point.scale = histogram.scale
            point.zero_count = histogram.zero_count
            point.positive.offset = histogram.positive_offset
            point.positive.bucket_counts.extend(histogram.positive)
            point.negative.offset = histogram.negative_offset
            point.negative.bucket_counts.extend(histogram.negative)
            point.min, point.max = histogram.min, histogram.max
            if not histogram.negative and math.isfinite(histogram.sum):  # the protocol demands it
                point.sum = histogram.sum

    def _warn(self) -> None:
        if not self._failed:
            self._failed = True
            _log.exception("a window cannot be encoded and is dropped (further windows are only counted)")


def _add(  # noqa: PLR0917  called for each point: keywords would cost a tenth of it
    row: Row,
    points: Points,
    name: str,
    unit: str,
    shape: str = "gauge",
    temporality: int = UNSPECIFIED,
    monotonic: bool = False,
) -> Any:
    """Return a new, empty point with the end time of a row."""
    described = row.series.described
    description = described.definition.description
    return points.add(row.window.end_ns, described.attributes, name, unit, description, shape, temporality, monotonic)


def _delta_start_ns(row: Row) -> int:
    """Return the start of points with delta temporality: before their time, not before the series' latest point."""
    start_ns, end_ns = row.window.start_ns, row.window.end_ns
    return max(start_ns if start_ns < end_ns else end_ns - MILLISECOND_NS, row.series.end_ns)


def _ascending(rows: list[Row], earliest_ns: int) -> list[Row]:
    """Return rows of one series sorted by end, all of them at ``earliest_ns`` or later, and at least 1 ms apart.

    Rows that are less than 1 ms apart are merged. Two threads may have closed two windows of a series in the wrong
    order. Times and totals both have to rise, so they are sorted separately: the totals are in the order of the items.
    """
    if len(rows) == 1 and rows[0].window.end_ns >= earliest_ns:
        return rows
    found: list[Row] = []
    for row, (*_, count, total, histogram, _) in zip(
        sorted(rows, key=lambda row: row.window.end_ns), rows, strict=True
    ):
        moved = _moved(row, max(row.window.end_ns, earliest_ns))
        moved = moved._replace(total_count=count, total_sum=total, total_histogram=histogram)
        if found and moved.window.end_ns < found[-1].window.end_ns + MILLISECOND_NS:
            moved = _merged(found.pop(), moved)
        found.append(moved)
    return found


def _moved(row: Row, end_ns: int) -> Row:
    return row._replace(window=row.window._replace(end_ns=end_ns))


def _merged(one: Row, other: Row) -> Row:
    """Return two windows of one series as one, with the totals of the later one; of two numbers, the later one.

    Numbers keep the time of the first one, so that a row of them does not become one number.

    It has the aggregations of both, because two Stats of one series may differ in them.
    """
    items = one.items + other.items
    if other.suffixes == NUMBER:
        return _moved(other, one.window.end_ns)._replace(items=items)
    both = one.window.merge(other.window)
    histogram = both.histogram or other.window.histogram or one.window.histogram
    sums = [row.finite_sum for row in (one, other) if row.finite_sum is not None]
    return other._replace(
        suffixes=tuple(dict.fromkeys(one.suffixes + other.suffixes)),
        window=both._replace(end_ns=other.window.end_ns, histogram=histogram),
        finite_sum=sum(sums) if sums else None,
        items=items,
        total_histogram=other.total_histogram or one.total_histogram,
    )
