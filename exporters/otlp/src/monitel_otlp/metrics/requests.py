"""Requests of windows, and of the metrics of the process and of the pipeline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel_otlp.messages.attributes import add_attributes
from monitel_otlp.messages.request_builder import BYTES_PER_REQUEST, RECORDS_PER_REQUEST
from monitel_otlp.metrics.points import Points, write_queue_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel_otlp.messages.request import FrozenRequest, UnfinishedRequest
    from monitel_otlp.metrics.mapping import WindowMapping
    from monitel_otlp.metrics.readings import Readings
    from monitel_otlp.metrics.self_metrics import SelfMetrics
    from monitel_otlp.metrics.window_queue import QueuedEntry

WINDOWS_PER_STEP = 8


class MetricRequests:
    """Encodes windows, logged numbers, and the metrics of process and pipeline, into requests of one resource.

    A request holds the metrics of the pipeline, the readings of counters, and windows. Windows that do not fit are put
    into further requests. Each request has the current queue size of the pipeline: Prometheus orders samples by
    resource, so each request needs a sample with the current time.

    A window that cannot be encoded is lost, and reported to ``lost`` with the reason ``encoding``. Use it from one
    thread at a time.

    Args:
        mapping: Turns windows into metrics.
        queue_size: Returns the number of waiting items in memory.
        resource: The resource and its schema; see :func:`monitel_otlp.messages.resource.encode_resource`.
        put: Receives each finished request.
        lost: Receives signal, reason and number of items.
        readings: Writes the process's counters.
        self_metrics: Writes the metrics of the pipeline.
        attributes: Added to every point of the pipeline itself.

    Attributes:
        mapping: The mapping.
        resource: The resource.
    """

    def __init__(
        self,
        mapping: WindowMapping,
        queue_size: Callable[[], int],
        resource: bytes,
        put: Callable[[FrozenRequest], None],
        lost: Callable[[str, str, int], None],
        *,
        readings: Readings | None = None,
        self_metrics: SelfMetrics | None = None,
        attributes: Sequence[KeyValue] = (),
    ) -> None:
        self.mapping = mapping
        self.resource = resource
        self._attributes = attributes
        self._readings = readings
        self._self_metrics = self_metrics
        self._due = False  # the metrics of the pipeline are not in a request of this round yet
        self._waiting: list[QueuedEntry] = []  # of the next group
        self._points = Points()  # of the next request
        self._queue_size = queue_size
        self._put = put
        self._lost = lost

    def add(self, entries: Sequence[QueuedEntry]) -> None:
        """Add windows, and encode them in groups of ``WINDOWS_PER_STEP``. Never raises.

        Windows of one group that end less than 1 ms apart are merged. The groups do not depend on the number of windows
        per call. A call with at most ``WINDOWS_PER_STEP`` windows takes less than 0.5 ms.
        """
        self._waiting.extend(entries)
        while len(self._waiting) >= WINDOWS_PER_STEP:
            self._encode_group()

    def read(self) -> None:
        """Write the metrics of the pipeline, and the readings of the process, into the next requests."""
        self._due = self._self_metrics is not None
        if self._readings is not None:
            self._readings.begin()

    def flush(self) -> None:
        """Put everything that is not in a request yet."""
        self.settle()
        readings = self._readings
        while self._due or self._points.windows or (readings is not None and readings.due):
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
        return self._points.unfinished(ResourceMetrics.FromString(self.resource))

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
        message = ResourceMetrics.FromString(self.resource)
        write_queue_size(message, self._queue_size(), self.mapping.start_ns, now_ns)
        own = message.scope_metrics[-1].metrics
        if self._due and self._self_metrics is not None:
            self._due = False
            self._self_metrics.write(own, now_ns)
        add_attributes(own, self._attributes)
        idle = True
        if self._readings is not None and self._readings.due:
            idle = not self._readings.write(message, now_ns)
        self._put(points.frozen(message, now_ns, idle=idle))
