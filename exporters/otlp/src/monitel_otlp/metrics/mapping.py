"""Windows into metric points: each at its own time, in the shape that the backend's temporality asks for."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

import monitel
from monitel_otel import describe
from monitel_otlp.metrics.pooled_stddev import pooled_stddev

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitel_otlp.metrics.window_queue import Entry, Series

_MILLISECOND_NS = 1_000_000  # Prometheus keeps the first of two points that are closer
_UNSPECIFIED = AggregationTemporality.AGGREGATION_TEMPORALITY_UNSPECIFIED
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


class Points:
    """The points of one request, those of one name in one metric.

    Attributes:
        request: What they are in.
        windows: How many windows they are of.
    """

    def __init__(self) -> None:
        self.windows = 0
        self.request = ExportMetricsServiceRequest()
        scope = InstrumentationScope(name="monitel", version=monitel.__version__)
        self._metrics = self.request.resource_metrics.add().scope_metrics.add(scope=scope).metrics
        self._found: dict[str, Any] = {}

    def add(  # noqa: PLR0917  called for each point: keywords would cost a tenth of it
        self,
        entry: Entry,
        name: str,
        unit: str,
        shape: str = "gauge",
        temporality: int = _UNSPECIFIED,
        monotonic: bool = False,
    ) -> Any:
        """A new point at the end of a window, to be filled in; ``shape`` is a field of the message ``Metric``."""
        key = f"{shape} {name}"  # a tuple of the two would have the garbage collector at work
        points = self._found.get(key)
        if points is None:
            definition = entry.series.definition
            metric = self._metrics.add()
            metric.name = name
            metric.unit = unit
            metric.description = describe(definition.name, definition.description)
            data = getattr(metric, shape)
            if temporality:
                data.aggregation_temporality = temporality
            if monotonic:
                data.is_monotonic = True
            points = self._found[key] = data.data_points
        point = points.add()
        point.time_unix_nano = entry.window.end_ns
        if entry.series.attributes:
            point.attributes.extend(entry.series.attributes)
        return point


class WindowMapping(ABC):
    """Turns windows into metrics; points of a series ascend in time, over all calls.

    The messages are made directly: by way of the SDK's metric classes and their encoder it takes four times as long,
    in which the training loop may have to wait.

    Args:
        start_ns: When counting began, Unix ns.
        distributions: What becomes of HISTOGRAM: ``"percentiles"``, ``"histogram"`` or ``"both"``.
    """

    def __init__(self, start_ns: int, distributions: str = "percentiles") -> None:
        self._start_ns = start_ns
        self._percentiles = distributions != "histogram"
        self._histograms = distributions != "percentiles"

    @abstractmethod
    def add(self, entry: Entry, points: Points) -> None:
        """Add the points of one window."""

    def settled(self, entry: Entry) -> Entry:
        """The entry with what is settled in the order in which windows came in."""
        return entry

    def write_distribution(
        self, entry: Entry, points: Points, histogram: monitel.Histogram | None, temporality: int, start_ns: int
    ) -> None:
        """Add what HISTOGRAM gives: percentiles of the window, and the histogram of the window or of all so far."""
        name, unit = entry.series.name, entry.series.definition.unit
        if entry.window.histogram is not None and self._percentiles:
            for suffix, value in entry.window.histogram.percentiles().items():
                points.add(entry, f"{name}.{suffix}", unit).as_double = value
        if histogram is not None and histogram.count:  # there may be none that is finite
            point = points.add(entry, f"{name}.histogram", unit, "exponential_histogram", temporality)
            point.start_time_unix_nano = start_ns
            point.count = histogram.count
            point.scale = histogram.scale
            point.zero_count = histogram.zero_count
            point.positive.offset = histogram.positive_offset
            point.positive.bucket_counts.extend(histogram.positive)
            point.negative.offset = histogram.negative_offset
            point.negative.bucket_counts.extend(histogram.negative)
            point.min, point.max = histogram.min, histogram.max
            if not histogram.negative and math.isfinite(histogram.sum):  # the protocol wants none of negative samples
                point.sum = histogram.sum

    def write(self, entries: Iterable[Entry], points: Points) -> None:
        """Add the points of some windows, in the order in which the queue gave them."""
        by_series: dict[Series, list[Entry]] = {}
        for entry in entries:
            by_series.setdefault(entry.series, []).append(self.settled(entry))
        for series, own in by_series.items():
            for entry in _ascending(own, series.end_ns + _MILLISECOND_NS):
                self.add(entry, points)
                series.end_ns = entry.window.end_ns


class CumulativeMapping(WindowMapping):
    """For cumulative temporality: COUNT and SUM are sums since the start, the rest are gauges.

    One metric for each aggregation that was asked for, under the name that it has everywhere: ``train.loss.mean``. A
    distribution is one of all samples since the start, ``train.loss.histogram``, or percentiles of each window.
    """

    def settled(self, entry: Entry) -> Entry:
        """The entry with the distribution of all windows up to it."""
        if entry.window.histogram is None or not self._histograms:
            return entry
        return entry._replace(total_histogram=entry.series.total(entry.window.histogram))

    def add(self, entry: Entry, points: Points) -> None:
        """One point for each aggregation."""
        window, series = entry.window, entry.series
        unit = series.definition.unit
        for aggregation in window.definition.aggregations:
            name = f"{series.name}.{aggregation.suffix}"
            if aggregation is monitel.COUNT:
                point = points.add(entry, name, "{sample}", "sum", _CUMULATIVE, True)
                point.start_time_unix_nano = self._start_ns
                point.as_int = entry.total_count
            elif aggregation is monitel.SUM:
                point = points.add(entry, name, unit, "sum", _CUMULATIVE, series.definition.monotonic)
                point.start_time_unix_nano = self._start_ns
                point.as_double = entry.total_sum
            elif aggregation is monitel.HISTOGRAM:
                self.write_distribution(entry, points, entry.total_histogram, _CUMULATIVE, self._start_ns)
            else:
                points.add(entry, name, unit).as_double = window.value(aggregation)


class DeltaMapping(WindowMapping):
    """For delta temporality: one histogram a window, with one bucket, count, sum, min and max; the others are gauges.

    HISTOGRAM gives one more, ``train.loss.histogram``, or percentiles.

    A series that ever had a negative sample has no sum in its histogram from then on (the protocol wants it so), nor in
    what is not sent yet, and ``<stat>.total`` beside it. A sum that is not finite is left out.
    """

    def add(self, entry: Entry, points: Points) -> None:
        """A histogram point, and what it cannot hold."""
        window, series = entry.window, entry.series
        unit = series.definition.unit
        asked = set(window.definition.aggregations)
        start_ns = max(window.start_ns, series.end_ns)  # two Stats of one name may have windows that overlap
        for aggregation in asked & {monitel.VALUE, monitel.STDDEV}:
            points.add(entry, f"{series.name}.{aggregation.suffix}", unit).as_double = window.value(aggregation)
        if monitel.HISTOGRAM in asked:
            histogram = window.histogram if self._histograms else None
            self.write_distribution(entry, points, histogram, _DELTA, start_ns)
        if not asked - {monitel.VALUE, monitel.STDDEV, monitel.HISTOGRAM}:
            return
        point = points.add(entry, series.name, unit, "histogram", _DELTA)
        point.start_time_unix_nano = start_ns
        point.count = window.count
        point.bucket_counts.append(window.count)
        point.min, point.max = window.min, window.max
        if entry.finite_sum is None:
            return
        if series.signed:
            point = points.add(entry, f"{series.name}.total", unit, "sum", _DELTA)
            point.start_time_unix_nano = start_ns
            point.as_double = entry.finite_sum
        else:
            point.sum = entry.finite_sum


def choose_mapping(start_ns: int, distributions: str) -> WindowMapping:
    """The mapping that OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE asks for."""
    preference = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().lower()
    mapping = DeltaMapping if preference in {"delta", "lowmemory"} else CumulativeMapping
    return mapping(start_ns, distributions)


def _ascending(entries: list[Entry], earliest_ns: int) -> list[Entry]:
    """Windows of one series by their ends, none before ``earliest_ns``; those less than 1 ms apart become one."""
    if len(entries) == 1 and entries[0].window.end_ns >= earliest_ns:
        return entries
    # Two threads may hand over two windows of a series in the wrong order. Times and totals both only rise, so each is
    # put in order by itself: the totals are in the order of arrival already.
    found: list[Entry] = []
    for entry, arrived in zip(sorted(entries, key=lambda entry: entry.window.end_ns), entries, strict=True):
        window = replace(entry.window, end_ns=max(entry.window.end_ns, earliest_ns))
        moved = arrived._replace(window=window, finite_sum=entry.finite_sum)
        if found and window.end_ns < found[-1].window.end_ns + _MILLISECOND_NS:
            moved = _merged(found.pop(), moved)
        found.append(moved)
    return found


def _merged(earlier: Entry, later: Entry) -> Entry:
    one, other = earlier.window, later.window
    window = replace(
        other,
        start_ns=one.start_ns,
        count=one.count + other.count,
        sum=one.sum + other.sum,
        min=min(one.min, other.min),
        max=max(one.max, other.max),
        stddev=_merged_stddev(one, other),
        histogram=_merged_histogram(one.histogram, other.histogram),
    )
    sums = [entry.finite_sum for entry in (earlier, later) if entry.finite_sum is not None]
    return later._replace(window=window, finite_sum=sum(sums) if sums else None)


def _merged_stddev(one: monitel.Window, other: monitel.Window) -> float | None:
    """Of both; two Stats of one name may differ in what they collect."""
    if one.stddev is None or other.stddev is None:
        return other.stddev
    mean = (one.sum + other.sum) / (one.count + other.count)
    return pooled_stddev(mean, ((one.count, one.mean, one.stddev), (other.count, other.mean, other.stddev)))


def _merged_histogram(one: monitel.Histogram | None, other: monitel.Histogram | None) -> monitel.Histogram | None:
    return one.merge(other) if one is not None and other is not None else other
