"""Conversion of windows and logged numbers to metric points."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from monitel_otlp.metrics.series import MILLISECOND_NS, start_point_ns
from monitel_otlp.metrics.window_row import NUMBER, ascending, plain_window, row_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitel_otlp.metrics.points import Points
    from monitel_otlp.metrics.series import Series
    from monitel_otlp.metrics.window_queue import QueuedEntry
    from monitel_otlp.metrics.window_row import PlainWindow, WindowRow

__all__ = ["WindowMapping"]

_log = logging.getLogger("monitel.otlp")

_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


class WindowMapping:
    """Converts windows and logged numbers to metrics. The times of a series ascend over all calls.

    Each requested aggregation becomes one metric, e.g. ``train.loss.mean``: COUNT and SUM become sums, HISTOGRAM a
    histogram or percentiles, others gauges. A logged number becomes a gauge with its name.

    The temporality decides only the value and the start time of monotonic sums and of histograms: all samples since the
    start of the series, or those of one window. Sums that are not monotonic are always cumulative. A cumulative sum
    begins with a point of value zero at the start of the series' first window.

    The messages are filled directly: the SDK's metric classes and their encoder take four times as long, and the
    training loop may have to wait for that.

    Args:
        temporality: ``"cumulative"``, ``"delta"`` or ``"lowmemory"``, which is delta: windows are handed over as they
            close, as samples to a synchronous instrument.
        start_ns: Start of the totals, Unix ns. A series whose first window began earlier has an earlier start.
        distributions: The form of HISTOGRAM: ``"percentiles"``, ``"histogram"`` or ``"both"``.

    Attributes:
        plain: The arguments.
        start_ns: The start of the totals.
        delta: True for delta temporality.
        newest_ns: Time of the latest point so far, Unix ns; 0 without a point.
        coalesced: Number of logged numbers without a point, because a later one has the same millisecond.
    """

    def __init__(self, temporality: str, start_ns: int, distributions: str = "percentiles") -> None:
        self.plain = temporality, start_ns, distributions
        self.delta = temporality != "cumulative"
        self.start_ns = start_ns
        self._percentiles = distributions != "histogram"
        self._histograms = distributions != "percentiles"
        self._failed = False
        self.newest_ns = 0
        self.coalesced = 0

    def write(self, entries: Iterable[QueuedEntry], points: Points) -> int:
        """Add the points of windows, in the order of the queue.

        Returns:
            The number of windows that were lost because they cannot be encoded.
        """
        plains, lost = [], 0
        for entry in entries:
            try:
                plains.append((plain_window(entry), entry.series))
            except Exception:
                self._warn()
                lost += 1
        return lost + self.write_plain(plains, points)

    def write_plain(self, windows: Iterable[tuple[PlainWindow, Series]], points: Points) -> int:
        """Add the points of windows in the form of plain values, with their series; see :meth:`write`."""
        lost = 0
        by_series: dict[Series, list[WindowRow]] = {}
        for plain, series in windows:
            try:
                row = self._with_totals(row_of(plain, series))
            except Exception:
                self._warn()
                lost += 1
            else:
                by_series.setdefault(series, []).append(row)
        for series, rows in by_series.items():
            try:
                ordered = ascending(rows, series.end_ns + MILLISECOND_NS)
            except Exception:  # numbers that cannot be merged: too large for a float
                self._warn()
                lost += sum(row.items for row in rows)
                continue
            if not series.start_ns:  # it is constant from the first point on
                start_ns = min(self.start_ns, series.begin_ns, ordered[0].end_ns - MILLISECOND_NS)
                series.start_ns = max(start_ns, series.end_ns)
            for row in ordered:
                begun = series.begun
                try:
                    self.add(row, points)
                except Exception:
                    self._warn()
                    points.rollback()
                    series.begun = begun
                    lost += row.items
                else:
                    points.commit(row.items)
                    series.end_ns = row.end_ns
            self.newest_ns = max(self.newest_ns, series.end_ns)
        return lost

    def _with_totals(self, row: WindowRow) -> WindowRow:
        """Return the window with the distribution of all windows up to it, in the order of the queue."""
        if row.histogram is None or self.delta or not self._histograms:
            return row
        return row._replace(total_histogram=row.series.total(row.histogram))

    def add(self, row: WindowRow, points: Points) -> None:
        """Add the points of one window or logged number."""
        series = row.series
        if row.suffixes == NUMBER:
            points.add(row, series.name, series.definition.unit).as_double = row.last
            self.coalesced += row.items - 1
            return
        definition = series.definition
        for suffix in row.suffixes:
            if suffix == "count":
                if self.delta:
                    self._add_delta(row, points, suffix, "{sample}", row.samples)
                else:
                    self._add_total(row, points, suffix, "{sample}", row.total_count, monotonic=True)
            elif suffix == "sum":
                if not self.delta or not definition.monotonic:
                    monotonic = definition.monotonic
                    self._add_total(row, points, suffix, definition.unit, row.total_sum, monotonic=monotonic)
                elif row.finite_sum is not None:
                    self._add_delta(row, points, suffix, definition.unit, row.finite_sum)
            elif suffix == "histogram":
                self._add_distribution(row, points)
            else:
                self.write_value(row, points, suffix)

    @staticmethod
    def _add_delta(row: WindowRow, points: Points, suffix: str, unit: str, value: float) -> None:
        """Add the point of a monotonic sum, of one window."""
        point = points.add(row, f"{row.series.name}.{suffix}", unit, "sum", _DELTA, True)
        point.start_time_unix_nano = row.delta_start_ns
        _fill(point, value)

    @staticmethod
    def _add_total(row: WindowRow, points: Points, suffix: str, unit: str, total: float, *, monotonic: bool) -> None:
        """Add the point of a sum up to a window, after the start point if it is the first one."""
        series, name = row.series, f"{row.series.name}.{suffix}"
        if suffix not in series.begun:
            series.begun |= {suffix}
            at_ns = start_point_ns(series.start_ns, series.begin_ns, row.end_ns)
            point = points.add(row._replace(end_ns=at_ns), name, unit, "sum", _CUMULATIVE, monotonic)
            point.start_time_unix_nano = series.start_ns
            _fill(point, type(total)(0))
        point = points.add(row, name, unit, "sum", _CUMULATIVE, monotonic)
        point.start_time_unix_nano = series.start_ns
        _fill(point, total)

    def _add_distribution(self, row: WindowRow, points: Points) -> None:
        """Add the points of HISTOGRAM: the percentiles of the window, and a histogram, if they are enabled."""
        name, unit = row.series.name, row.series.definition.unit
        if row.histogram is not None and self._percentiles:
            for suffix, value in row.histogram.percentiles().items():
                points.add(row, f"{name}.{suffix}", unit).as_double = value
        histogram = row.histogram if self.delta else row.total_histogram
        if self._histograms and histogram is not None and histogram.count:  # empty if no sample is finite
            temporality = _DELTA if self.delta else _CUMULATIVE
            point = points.add(row, f"{name}.histogram", unit, "exponential_histogram", temporality)
            point.start_time_unix_nano = row.delta_start_ns if self.delta else row.series.start_ns
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

    @staticmethod
    def write_value(row: WindowRow, points: Points, suffix: str) -> None:
        """Add the gauge of an aggregation, unless a merged window lacks its value."""
        if (value := row.value(suffix)) is not None:
            points.add(row, f"{row.series.name}.{suffix}", row.series.definition.unit).as_double = value

    def _warn(self) -> None:
        if not self._failed:
            self._failed = True
            _log.exception("a window cannot be encoded and is dropped (further windows are only counted)")


def _fill(point: Any, value: float) -> None:
    """Set the value of a point: an int for a number of samples, else a double."""
    if isinstance(value, int):
        point.as_int = value
    else:
        point.as_double = value
