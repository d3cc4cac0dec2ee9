"""Requests of windows and of the metrics that a reader has collected."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics as ResourceMetricsMessage

from monitel_otlp.messages.attributes import add_attributes
from monitel_otlp.messages.request import is_own
from monitel_otlp.messages.request_builder import BYTES_PER_REQUEST, RECORDS_PER_REQUEST
from monitel_otlp.metrics.points import SELF_METRICS, Points, write_queue_size
from monitel_otlp.sdk.official_encoders import (
    append_metrics,
    encode_resource,
    resource_metrics,
    scope_metrics,
    steps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.sdk.metrics.export import Metric, MetricsData, ScopeMetrics
    from opentelemetry.sdk.resources import Resource

    from monitel_otlp.messages.request import FrozenRequest, UnfinishedRequest
    from monitel_otlp.metrics.mapping import WindowMapping
    from monitel_otlp.metrics.readings import Readings
    from monitel_otlp.metrics.window_queue import QueuedEntry

_log = logging.getLogger("monitel.otlp")

WINDOWS_PER_STEP = 8


class MetricRequests:
    """Encodes windows, logged numbers, and the metrics that a reader has collected, into requests of one resource.

    A request holds the metrics of the reader, the readings of counters, and windows. Windows that do not fit are put
    into further requests. Each request has the current queue size of the pipeline: Prometheus orders samples by
    resource, so each request needs a sample with the current time.

    A window that cannot be encoded is lost, and reported to ``lost`` with the reason ``encoding``. Add windows from one
    thread at a time; :meth:`export` and :meth:`collected` may run in another thread.

    Args:
        mapping: Turns windows into metrics.
        queue_size: Returns the number of waiting items in memory.
        resource: The resource of requests, until a reader provides another one.
        put: Receives each finished request.
        lost: Receives signal, reason and number of items.
        readings: Writes the process's counters.
        attributes: Added to every point of the reader and of the pipeline itself.

    Attributes:
        mapping: The mapping.
        resource: The current resource and its schema; see :func:`monitel_otlp.sdk.official_encoders.encode_resource`.
    """

    def __init__(
        self,
        mapping: WindowMapping,
        queue_size: Callable[[], int],
        resource: Resource,
        put: Callable[[FrozenRequest], None],
        lost: Callable[[str, str, int], None],
        *,
        readings: Readings | None = None,
        attributes: Sequence[KeyValue] = (),
    ) -> None:
        self.mapping = mapping
        self._attributes = attributes
        self._readings = readings
        self.resource = encode_resource(resource)
        self._waiting: list[QueuedEntry] = []  # of the next group
        self._points = Points()  # of the next request
        self._collected: deque[Any] = deque()  # ResourceMetrics messages
        self._queue_size = queue_size
        self._put = put
        self._lost = lost
        self._failed = False

    def add(self, entries: Sequence[QueuedEntry]) -> None:
        """Add windows, and encode them in groups of ``WINDOWS_PER_STEP``. Never raises.

        Windows of one group that end less than 1 ms apart are merged. The groups do not depend on the number of windows
        per call. A call with at most ``WINDOWS_PER_STEP`` windows takes less than 0.5 ms.
        """
        self._waiting.extend(entries)
        while len(self._waiting) >= WINDOWS_PER_STEP:
            self._encode_group()

    def read(self) -> None:
        """Write the counters, wait counters and step of the process into the next requests, if there are any."""
        if self._readings is not None:
            self._readings.begin()

    def flush(self) -> None:
        """Put everything that is not in a request yet. This takes no lock of the SDK."""
        self.settle()
        readings = self._readings
        while self._collected or self._points.windows or (readings is not None and readings.due):
            self._put_next()

    def settle(self) -> None:
        """Encode the windows that wait to be encoded together."""
        while self._waiting:
            self._encode_group()

    @property
    def has_windows(self) -> bool:
        """True if a window is not in a finished request yet."""
        return bool(self._waiting or self._points.windows)

    def unfinished(self) -> UnfinishedRequest | None:
        """Return the request under construction; None if it has no windows."""
        return self._points.unfinished(ResourceMetricsMessage.FromString(self.resource))

    def collected(self, metrics_data: MetricsData) -> Iterator[None]:
        """Encode the metrics that a reader has collected into the next request, and yield after each step.

        A metric that cannot be encoded is left out. A warning is logged once.
        """
        for data in metrics_data.resource_metrics[:1]:
            message = resource_metrics(data.resource)
            self.resource = message.SerializeToString()
            for scope in data.scope_metrics:
                target = message.scope_metrics.add()
                for metrics in steps(scope.metrics):
                    for part in self._encoded(scope, metrics):
                        add_attributes(part.metrics, self._attributes)
                        target.scope.CopyFrom(part.scope)
                        target.schema_url = part.schema_url
                        append_metrics(target, part)
                    yield
                if not target.metrics:
                    del message.scope_metrics[-1]
            if message.scope_metrics:
                self._collected.append(message)

    def export(self, metrics_data: MetricsData) -> None:
        """Encode the metrics that a reader has collected into the next request."""
        for _ in self.collected(metrics_data):
            pass

    def _encoded(self, scope: ScopeMetrics, metrics: Sequence[Metric]) -> list[Any]:
        try:
            return [scope_metrics(scope, metrics)]
        except Exception:
            if len(metrics) > 1:
                return [part for metric in metrics for part in self._encoded(scope, [metric])]
            if not self._failed:
                self._failed = True
                name = metrics[0].name
                _log.exception("metric %r cannot be encoded and is left out (further ones are not logged)", name)
            return []

    def _encode_group(self) -> None:
        group, self._waiting = self._waiting[:WINDOWS_PER_STEP], self._waiting[WINDOWS_PER_STEP:]
        points = self._points
        lost = self.mapping.write(group, points)
        if lost:
            self._lost("metrics", "encoding", lost)
        if points.windows >= RECORDS_PER_REQUEST or points.bytes >= BYTES_PER_REQUEST:
            self._put_next()

    def _put_next(self) -> None:
        points, self._points = self._points, Points()
        now_ns = time.time_ns()
        if self._collected:
            metrics = self._collected.popleft()
            idle = all(map(_describes_pipeline, metrics.scope_metrics))
        else:
            metrics, idle = ResourceMetricsMessage.FromString(self.resource), False
        write_queue_size(metrics, self._queue_size(), self.mapping.start_ns, now_ns)
        add_attributes(metrics.scope_metrics[-1].metrics, self._attributes)
        if self._readings is not None and self._readings.due:
            idle &= not self._readings.write(metrics, now_ns)
        self._put(points.frozen(metrics, now_ns, idle=idle))


def _describes_pipeline(scope: Any) -> bool:
    """Return True if the scope has only self-metrics of the pipeline."""
    return is_own(scope) and all(metric.name.startswith(SELF_METRICS) for metric in scope.metrics)
