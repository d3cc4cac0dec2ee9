"""Windows into metric points: each at its own time, in the shape that every backend takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

import monitel
from monitel_otel import MetricNames, describe

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from monitel_otlp.windows import Entry

_MILLISECOND_NS = 1_000_000  # Prometheus keeps the first of two points that are closer


@dataclass(slots=True)
class _Point:
    """One window, or several that end too close together to be told apart."""

    definition: monitel.StatDefinition
    end_ns: int
    count: int
    sum: float
    min: float
    max: float
    last: float
    total_count: int
    total_sum: float

    def merge(self, later: _Point) -> None:
        self.end_ns = later.end_ns
        self.count += later.count
        self.sum += later.sum
        self.min = min(self.min, later.min)
        self.max = max(self.max, later.max)
        self.last = later.last
        self.total_count = later.total_count
        self.total_sum = later.total_sum


class CumulativeMapping:
    """The shape for cumulative temporality: COUNT and SUM are sums since ``start_ns``, the rest are gauges.

    Points of a series ascend in time, over all calls. Metrics keep the Stat's name, one for each aggregation that was
    asked for: ``train.loss.mean``.

    Args:
        start_ns: When counting began, Unix ns.
    """

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._names = MetricNames()
        self._last_end: dict[Hashable, int] = {}

    def metrics(self, entries: Iterable[Entry]) -> list[Metric]:
        """The metrics of some windows, in the order in which the queue gave them."""
        by_series: dict[Hashable, list[Entry]] = {}
        for entry in entries:
            by_series.setdefault(entry.series, []).append(entry)
        found: dict[tuple[str, str], tuple[monitel.StatDefinition, monitel.Aggregation, list[NumberDataPoint]]] = {}
        for series, own in by_series.items():
            for point in self._points(series, own):
                attributes = dict(point.definition.attributes)
                for aggregation in point.definition.aggregations:
                    name = f"{self._names.of(point.definition.name)}.{aggregation.suffix}"
                    unit = "{sample}" if aggregation is monitel.COUNT else point.definition.unit
                    points = found.setdefault((name, unit), (point.definition, aggregation, []))[2]
                    points.append(self._number(point, aggregation, attributes))
        return [_metric(name, unit, *rest) for (name, unit), rest in found.items()]

    def _points(self, series: Hashable, entries: list[Entry]) -> list[_Point]:
        # Two threads may hand over two windows of a series in the wrong order. Times and totals both only rise, so
        # each is put in order by itself: the totals are in the order of arrival already.
        windows = sorted((entry.window for entry in entries), key=lambda window: window.end_ns)
        points: list[_Point] = []
        last_end = self._last_end.get(series, 0)
        for window, entry in zip(windows, entries, strict=True):
            end_ns = max(window.end_ns, last_end + _MILLISECOND_NS) if not points else window.end_ns
            point = _Point(
                window.definition,
                end_ns,
                window.count,
                window.sum,
                window.min,
                window.max,
                window.last,
                entry.total_count,
                entry.total_sum,
            )
            if points and end_ns < points[-1].end_ns + _MILLISECOND_NS:
                point.end_ns = max(end_ns, points[-1].end_ns)
                points[-1].merge(point)
            else:
                points.append(point)
        self._last_end[series] = points[-1].end_ns
        return points

    def _number(self, point: _Point, aggregation: monitel.Aggregation, attributes: dict[str, Any]) -> NumberDataPoint:
        value: float
        start_ns: int | None = None
        if aggregation is monitel.COUNT:
            value, start_ns = point.total_count, self._start_ns
        elif aggregation is monitel.SUM:
            value, start_ns = point.total_sum, self._start_ns
        elif aggregation is monitel.MEAN:
            value = point.sum / point.count
        else:
            value = {monitel.MAX: point.max, monitel.MIN: point.min, monitel.VALUE: point.last}[aggregation]
        return NumberDataPoint(attributes, start_ns, point.end_ns, value)  # type: ignore[arg-type]  # gauges have none


def _metric(
    name: str,
    unit: str,
    definition: monitel.StatDefinition,
    aggregation: monitel.Aggregation,
    points: list[NumberDataPoint],
) -> Metric:
    points.sort(key=lambda point: point.time_unix_nano)
    data: Gauge | Sum = Gauge(points)
    if aggregation is monitel.COUNT or aggregation is monitel.SUM:
        monotonic = aggregation is monitel.COUNT or definition.monotonic
        data = Sum(points, AggregationTemporality.CUMULATIVE, monotonic)
    return Metric(name, describe(definition.name, definition.description), unit, data)
