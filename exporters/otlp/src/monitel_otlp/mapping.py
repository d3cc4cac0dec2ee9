"""Windows into metric points: each at its own time, in the shape that the backend's temporality asks for."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)

import monitel
from monitel_otel import MetricNames, describe

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping

    from monitel_otlp.windows import Entry

    #: What makes points one metric: name, unit, and the kind of data (with what must not be mixed in it).
    Kind = tuple[str, str, type[Gauge | Sum | Histogram], AggregationTemporality | None, bool]

_MILLISECOND_NS = 1_000_000  # Prometheus keeps the first of two points that are closer
_CUMULATIVE, _DELTA = AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA


@dataclass(slots=True)
class Point:
    """One window, or several that end too close together to be told apart."""

    definition: monitel.StatDefinition
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int
    count: int
    sum: float
    min: float
    max: float
    last: float
    total_count: int
    total_sum: float

    def merge(self, later: Point) -> None:
        """Take in a window that ends less than a millisecond after this one."""
        self.end_ns = later.end_ns
        self.count += later.count
        self.sum += later.sum
        self.min = min(self.min, later.min)
        self.max = max(self.max, later.max)
        self.last = later.last
        self.total_count = later.total_count
        self.total_sum = later.total_sum

    def gauge(self, aggregation: monitel.Aggregation) -> float:
        """MEAN, MAX, MIN or VALUE."""
        if aggregation is monitel.MEAN:
            return self.sum / self.count
        if aggregation is monitel.MAX:
            return self.max
        return self.min if aggregation is monitel.MIN else self.last


class WindowMapping(ABC):
    """Turns windows into metrics; points of a series ascend in time, over all calls.

    Args:
        start_ns: When counting began, Unix ns.
        attributes: Put on every point, e.g. the rank.
    """

    def __init__(self, start_ns: int, attributes: Mapping[str, str | int] | None = None) -> None:
        self._start_ns = start_ns
        self._attributes = dict(attributes or {})
        self._names = MetricNames()
        self._last_end: dict[Hashable, int] = {}

    @abstractmethod
    def numbers(self, name: str, series: Hashable, point: Point) -> Iterator[tuple[Kind, Any]]:
        """The data points of one window, each with the metric that it belongs to."""

    def metrics(self, entries: Iterable[Entry]) -> list[Metric]:
        """The metrics of some windows, in the order in which the queue gave them."""
        by_series: dict[Hashable, list[Entry]] = {}
        for entry in entries:
            by_series.setdefault(entry.series, []).append(entry)
        found: dict[Kind, tuple[str, list[Any]]] = {}
        for series, own in by_series.items():
            definition = own[0].window.definition
            name = self._names.of(definition.name)
            description = describe(definition.name, definition.description)
            for point in self._points(series, own):
                for kind, number in self.numbers(name, series, point):
                    found.setdefault(kind, (description, []))[1].append(number)
        return [_metric(kind, description, points) for kind, (description, points) in found.items()]

    def _points(self, series: Hashable, entries: list[Entry]) -> list[Point]:
        # Two threads may hand over two windows of a series in the wrong order. Times and totals both only rise, so
        # each is put in order by itself: the totals are in the order of arrival already.
        windows = sorted((entry.window for entry in entries), key=lambda window: window.end_ns)
        points: list[Point] = []
        earliest = self._last_end.get(series, 0) + _MILLISECOND_NS
        for window, entry in zip(windows, entries, strict=True):
            point = Point(
                window.definition,
                {**window.attributes, **self._attributes},
                window.start_ns,
                max(window.end_ns, earliest),
                window.count,
                window.sum,
                window.min,
                window.max,
                window.last,
                entry.total_count,
                entry.total_sum,
            )
            if points and point.end_ns < points[-1].end_ns + _MILLISECOND_NS:
                points[-1].merge(point)
            else:
                points.append(point)
        self._last_end[series] = points[-1].end_ns
        return points


class CumulativeMapping(WindowMapping):
    """For cumulative temporality: COUNT and SUM are sums since the start, the rest are gauges.

    One metric for each aggregation that was asked for, under the name that it has everywhere: ``train.loss.mean``.
    """

    def numbers(self, name: str, series: Hashable, point: Point) -> Iterator[tuple[Kind, NumberDataPoint]]:  # noqa: ARG002
        """One number for each aggregation."""
        unit = point.definition.unit
        for aggregation in point.definition.aggregations:
            full = f"{name}.{aggregation.suffix}"
            if aggregation is monitel.COUNT:
                kind: Kind = full, "{sample}", Sum, _CUMULATIVE, True
                yield kind, _number(point, point.total_count, self._start_ns)
            elif aggregation is monitel.SUM:
                kind = full, unit, Sum, _CUMULATIVE, point.definition.monotonic
                yield kind, _number(point, point.total_sum, self._start_ns)
            else:
                yield (full, unit, Gauge, None, False), _number(point, point.gauge(aggregation))


class DeltaMapping(WindowMapping):
    """For delta temporality: one histogram a window, with one bucket, count, sum, min and max; VALUE is a gauge.

    A series that ever had a negative sample has no sum in its histogram from then on (the protocol wants it so), and
    ``<stat>.total`` beside it. A sum that is not finite is left out.
    """

    def __init__(self, start_ns: int, attributes: Mapping[str, str | int] | None = None) -> None:
        super().__init__(start_ns, attributes)
        self._signed: set[Hashable] = set()

    def numbers(self, name: str, series: Hashable, point: Point) -> Iterator[tuple[Kind, Any]]:
        """A histogram point, and what it cannot hold."""
        unit = point.definition.unit
        asked = set(point.definition.aggregations)
        if monitel.VALUE in asked:
            yield (f"{name}.value", unit, Gauge, None, False), _number(point, point.last)
        if not asked - {monitel.VALUE}:
            return
        if point.min < 0:
            self._signed.add(series)
        finite = math.isfinite(point.sum)
        signed = series in self._signed
        histogram = HistogramDataPoint(
            attributes=point.attributes,
            start_time_unix_nano=point.start_ns,
            time_unix_nano=point.end_ns,
            count=point.count,
            sum=None if signed or not finite else point.sum,  # type: ignore[arg-type]  # optional on the wire
            bucket_counts=[point.count],
            explicit_bounds=[],
            min=point.min,
            max=point.max,
        )
        yield (name, unit, Histogram, _DELTA, False), histogram
        if signed and finite:
            yield (f"{name}.total", unit, Sum, _DELTA, False), _number(point, point.sum, point.start_ns)


def choose_mapping(start_ns: int, attributes: Mapping[str, str | int] | None = None) -> WindowMapping:
    """The mapping that OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE asks for."""
    preference = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().lower()
    chosen = DeltaMapping if preference in {"delta", "lowmemory"} else CumulativeMapping
    return chosen(start_ns, attributes)


def _number(point: Point, value: float, start_ns: int | None = None) -> NumberDataPoint:
    return NumberDataPoint(point.attributes, start_ns, point.end_ns, value)  # type: ignore[arg-type]  # gauges have none


def _metric(kind: Kind, description: str, points: list[Any]) -> Metric:
    name, unit, shape, temporality, monotonic = kind
    if len(points) > 1:
        points.sort(key=attrgetter("time_unix_nano"))
    data: Gauge | Sum | Histogram
    if shape is Gauge or temporality is None:
        data = Gauge(points)
    elif shape is Histogram:
        data = Histogram(points, temporality)
    else:
        data = Sum(points, temporality, monotonic)
    return Metric(name, description, unit, data)
