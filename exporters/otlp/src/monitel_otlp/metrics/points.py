"""Metric points of one request, and the number of windows that each point completes."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from monitel_otel.names import describe
from monitel_otel.scope import SCOPE
from monitel_otlp.messages.request import LEVELS, FrozenRequest, UnfinishedRequest, count_records, write_scope

if TYPE_CHECKING:
    from monitel_otlp.metrics.window_row import WindowRow

#: Name, unit and description of the metric.
QUEUE_SIZE = "monitel.queue.size", "{item}", "Items that wait in memory"


def write_queue_size(resource_metrics: Any, items: int, start_ns: int, time_ns: int) -> None:
    """Add the queue size to a ``ResourceMetrics`` message.

    Args:
        resource_metrics: The message.
        items: Number of waiting items.
        start_ns: Start of the pipeline in this process, Unix ns.
        time_ns: Time of the number, Unix ns. If it is before the start, because the clock was set back, the point
            starts at this time.
    """
    scope = resource_metrics.scope_metrics.add()
    write_scope(scope)
    metric = scope.metrics.add()
    metric.name, metric.unit, metric.description = QUEUE_SIZE
    metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    metric.sum.data_points.add(start_time_unix_nano=min(start_ns, time_ns), time_unix_nano=time_ns, as_int=items)


UNSPECIFIED = AggregationTemporality.AGGREGATION_TEMPORALITY_UNSPECIFIED


class Points:
    """The points of one request; all points with the same name are in one metric.

    The points of a window are added by several calls of :meth:`add`, followed by :meth:`commit`, or by
    :meth:`rollback`, which removes them. A window is delivered when its last point in message order is delivered.

    Args:
        scope: Name, version and schema of the scope.

    Attributes:
        request: The message with the points.
        windows: Number of windows; merged windows count once.
        items: Number of windows as recorded; merged windows count separately.
        bytes: Estimated size of the points.
    """

    def __init__(self, scope: tuple[str, str, str] = SCOPE) -> None:
        self.windows = 0
        self.items = 0
        self.bytes = 0
        self.request = ExportMetricsServiceRequest()
        of_scope = self.request.resource_metrics.add().scope_metrics.add()
        write_scope(of_scope, scope)
        self._metrics = of_scope.metrics
        # A tuple or a list for each metric would cause garbage collections.
        self._numbers: dict[str, int] = {}  # of metrics
        self._points: list[Any] = []  # by number of the metric
        self._weights: dict[int, int] = {}  # of points that complete windows, by metric << 32 | place in the metric
        self._added: list[int] = []  # metrics of the uncommitted window
        self._unplaced = 0  # windows without a point, counted with the next point

    def add(  # noqa: PLR0917  called for each point: keywords would cost a tenth of it
        self,
        row: WindowRow,
        name: str,
        unit: str,
        shape: str = "gauge",
        temporality: int = UNSPECIFIED,
        monotonic: bool = False,
    ) -> Any:
        """Return a new, empty point with the end time of a window; ``shape`` is a field of ``Metric``."""
        series = row.series
        key = f"{shape} {name}"
        number = self._numbers.get(key)
        if number is None:
            definition = series.definition
            metric = self._metrics.add()
            metric.name = name
            metric.unit = unit
            metric.description = describe("Stat", definition.name, series.name, definition.description)
            data = getattr(metric, shape)
            if temporality:
                data.aggregation_temporality = temporality
            if monotonic:
                data.is_monotonic = True
            number = self._numbers[key] = len(self._points)
            self._points.append(data.data_points)
        point = self._points[number].add()
        self._added.append(number)
        point.time_unix_nano = row.end_ns
        if series.attributes:
            point.attributes.extend(series.attributes)
        return point

    def commit(self, items: int) -> None:
        """Keep the points of a window; its last point in message order completes ``items`` windows."""
        added = self._added
        self.windows += 1
        self.items += items
        self._unplaced += items
        if not added:
            return
        last = max(added)
        points = self._points[last]
        self._weights[last << 32 | len(points) - 1] = self._unplaced
        self._unplaced = 0
        self.bytes += points[-1].ByteSize() * len(added)
        added.clear()

    def rollback(self) -> None:
        """Remove the points of a window that could not be encoded."""
        for number in self._added:
            del self._points[number][-1]
        self._added.clear()

    def frozen(self, other_metrics: Any, created_ns: int, *, idle: bool = False) -> FrozenRequest:
        """Return the finished request. The other metrics are put in the scope of the windows, after those.

        Args:
            other_metrics: ``ResourceMetrics`` with the resource and all other metrics of the request; it is copied.
            created_ns: Time of encoding, Unix ns.
            idle: True if nothing in ``other_metrics`` has changed but the pipeline's own metrics; used for a request
                without windows.
        """
        target = self.request.resource_metrics[0]
        target.resource.CopyFrom(other_metrics.resource)
        target.schema_url = other_metrics.schema_url
        if not self.windows:
            del self._metrics[:]  # of windows that could not be encoded
        for scope in other_metrics.scope_metrics:
            self._metrics.extend(scope.metrics)
        if not self.windows:
            return FrozenRequest("metrics", self.request.SerializeToString(), 0, created_ns, idle=idle)
        weights = self._weights_of_points(count_records(other_metrics, LEVELS["metrics"][1:]))
        return FrozenRequest("metrics", self.request.SerializeToString(), self.items, created_ns, weights)

    def unfinished(self, resource_metrics: Any) -> UnfinishedRequest | None:
        """Return the request with the windows so far; None without a window.

        Args:
            resource_metrics: ``ResourceMetrics`` with the resource of the request.
        """
        if not self.windows:
            return None
        target = self.request.resource_metrics[0]
        target.resource.CopyFrom(resource_metrics.resource)
        target.schema_url = resource_metrics.schema_url
        return UnfinishedRequest("metrics", self.request.SerializeToString(), self.items, self._weights_of_points(0), 0)

    def _weights_of_points(self, others: int) -> bytes:
        """Return the number of windows that each point completes, for the points of windows and some others."""
        begins = [0, *accumulate(map(len, self._points))]
        weights = array("I", [0]) * (begins[-1] + others)
        for place, items in self._weights.items():
            weights[begins[place >> 32] + (place & 0xFFFFFFFF)] = items
        if self._unplaced and weights:
            weights[-1] += self._unplaced
        return weights.tobytes()
