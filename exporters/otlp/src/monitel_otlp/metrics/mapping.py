"""Conversion of windows to metric points, for cumulative and for delta temporality."""

from __future__ import annotations

import logging
import math
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from monitel_otlp.metrics.points import Points
from monitel_otlp.metrics.start_points import MILLISECOND_NS, start_point_ns
from monitel_otlp.metrics.window_row import NUMBER, ascending, plain_window, row_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import monitel
    from monitel_otlp.metrics.series import Series
    from monitel_otlp.metrics.window_queue import QueuedEntry
    from monitel_otlp.metrics.window_row import PlainWindow, WindowRow

__all__ = ["CumulativeMapping", "DeltaMapping", "Points", "WindowMapping", "choose_mapping", "mapping_of"]

_log = logging.getLogger("monitel.otlp")

_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


class WindowMapping(ABC):
    """Converts windows and logged numbers to metrics. The times of a series ascend over all calls.

    A logged number becomes a gauge with its name.

    The messages are filled directly: the SDK's metric classes and their encoder take four times as long, and the
    training loop may have to wait for that.

    Args:
        start_ns: Start of the totals, Unix ns. A series whose first window began earlier has an earlier start.
        distributions: The form of HISTOGRAM: ``"percentiles"``, ``"histogram"`` or ``"both"``.

    Attributes:
        coalesced: Number of logged numbers without a point, because a later one has the same millisecond.
    """

    kind: str

    def __init__(self, start_ns: int, distributions: str = "percentiles") -> None:
        self._start_ns = start_ns
        self._distributions = distributions
        self._percentiles = distributions != "histogram"
        self._histograms = distributions != "percentiles"
        self._failed = False
        self.coalesced = 0

    @property
    def plain(self) -> tuple[str, int, str]:
        """The arguments of :func:`mapping_of`."""
        return self.kind, self._start_ns, self._distributions

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
                row = self.with_totals(row_of(plain, series))
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
            for row in ordered:
                begun = series.begun
                try:
                    self._add_row(row, points)
                except Exception:
                    self._warn()
                    points.rollback()
                    series.begun = begun
                    lost += row.items
                else:
                    points.commit(row.items)
                    series.end_ns = row.end_ns
        return lost

    def _add_row(self, row: WindowRow, points: Points) -> None:
        if row.suffixes == NUMBER:
            points.add(row, row.series.name, "").as_double = row.last
            self.coalesced += row.items - 1
        else:
            self.add(row, points)

    @abstractmethod
    def add(self, row: WindowRow, points: Points) -> None:
        """Add the points of one window."""

    def with_totals(self, row: WindowRow) -> WindowRow:
        """Return the window with the totals that depend on the order of the queue."""
        return row

    def write_distribution(
        self, row: WindowRow, points: Points, histogram: monitel.Histogram | None, temporality: int, start_ns: int
    ) -> None:
        """Add the points of HISTOGRAM: the percentiles of the window, and ``histogram``, if they are enabled."""
        name, unit = row.series.name, row.series.definition.unit
        if row.histogram is not None and self._percentiles:
            for suffix, value in row.histogram.percentiles().items():
                points.add(row, f"{name}.{suffix}", unit).as_double = value
        if histogram is not None and histogram.count:  # empty if no sample is finite
            point = points.add(row, f"{name}.histogram", unit, "exponential_histogram", temporality)
            point.start_time_unix_nano = start_ns
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


class CumulativeMapping(WindowMapping):
    """For cumulative temporality: COUNT and SUM are sums since the start, other aggregations are gauges.

    Each requested aggregation becomes one metric with its usual name: ``train.loss.mean``. A distribution becomes one
    histogram of all samples since the start, ``train.loss.histogram``, or percentiles of each window. A sum begins with
    a point of value zero at the start of its first window.
    """

    kind = "cumulative"

    def with_totals(self, row: WindowRow) -> WindowRow:
        """Return the window with the distribution of all windows up to it."""
        if row.histogram is None or not self._histograms:
            return row
        return row._replace(total_histogram=row.series.total(row.histogram))

    def add(self, row: WindowRow, points: Points) -> None:
        """Add one point for each aggregation."""
        series = row.series
        unit = series.definition.unit
        for suffix in row.suffixes:
            if suffix == "count":
                self._sum(row, points, suffix, "{sample}", monotonic=True).as_int = row.total_count
            elif suffix == "sum":
                self._sum(row, points, suffix, unit, monotonic=series.definition.monotonic).as_double = row.total_sum
            elif suffix == "histogram":
                self.write_distribution(row, points, row.total_histogram, _CUMULATIVE, self._start_of(series))
            else:
                self.write_value(row, points, suffix)

    def _sum(self, row: WindowRow, points: Points, suffix: str, unit: str, *, monotonic: bool) -> Any:
        """Return a new, empty point of a sum, after the start point if it is the first one."""
        series, name = row.series, f"{row.series.name}.{suffix}"
        start_ns = self._start_of(series)
        if suffix not in series.begun:
            series.begun |= {suffix}
            at_ns = start_point_ns(start_ns, series.begin_ns, row.end_ns)
            if at_ns is not None:
                point = points.add(row._replace(end_ns=at_ns), name, unit, "sum", _CUMULATIVE, monotonic)
                point.start_time_unix_nano = start_ns
                if suffix == "count":
                    point.as_int = 0
                else:
                    point.as_double = 0.0
        point = points.add(row, name, unit, "sum", _CUMULATIVE, monotonic)
        point.start_time_unix_nano = start_ns
        return point

    def _start_of(self, series: Series) -> int:
        """Return the start of a series: its first window may have ended before the pipeline existed."""
        return min(self._start_ns, series.begin_ns)


class DeltaMapping(WindowMapping):
    """For delta temporality: one histogram per window, with one bucket, count, sum, min and max, and gauges.

    VALUE and STDDEV become gauges. HISTOGRAM becomes another histogram, ``train.loss.histogram``, or percentiles.

    From its first negative sample on, a series has no sum in its histogram, as the protocol demands, and has the metric
    ``<stat>.total`` instead; this includes windows that are not encoded yet. A sum that is not finite is left out.
    """

    kind = "delta"

    def add(self, row: WindowRow, points: Points) -> None:
        """Add a histogram point, and the points of the other aggregations."""
        series, summary = row.series, False
        start_ns = max(row.start_ns, series.end_ns)  # windows of two Stats with the same name may overlap
        for suffix in row.suffixes:
            if suffix in {"value", "stddev"}:
                self.write_value(row, points, suffix)
            elif suffix == "histogram":
                self.write_distribution(row, points, row.histogram if self._histograms else None, _DELTA, start_ns)
            else:
                summary = True
        if summary:
            self._add_summary(row, points, start_ns)

    @staticmethod
    def _add_summary(row: WindowRow, points: Points, start_ns: int) -> None:
        series = row.series
        unit = series.definition.unit
        point = points.add(row, series.name, unit, "histogram", _DELTA)
        point.start_time_unix_nano = start_ns
        point.count = row.samples
        point.bucket_counts.append(row.samples)
        point.min, point.max = row.min, row.max
        if row.finite_sum is None:
            return
        if series.signed:
            point = points.add(row, f"{series.name}.total", unit, "sum", _DELTA)
            point.start_time_unix_nano = start_ns
            point.as_double = row.finite_sum
        else:
            point.sum = row.finite_sum


def mapping_of(kind: str, start_ns: int, distributions: str) -> WindowMapping:
    """Return a new mapping, ``"cumulative"`` or ``"delta"``, with empty totals."""
    return {"cumulative": CumulativeMapping, "delta": DeltaMapping}[kind](start_ns, distributions)


def choose_mapping(start_ns: int, distributions: str) -> WindowMapping:
    """Return the mapping for OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE."""
    preference = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().lower()
    return mapping_of("delta" if preference in {"delta", "lowmemory"} else "cumulative", start_ns, distributions)
