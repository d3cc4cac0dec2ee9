"""Requests of windows and of everything that the SDK's providers hand over."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics as ResourceMetricsMessage

from monitel_otlp.leaves import LEVELS
from monitel_otlp.metrics.points import Points
from monitel_otlp.metrics.queue_size import PIPELINE_SCOPE, write_queue_size
from monitel_otlp.open_request import BYTES_PER_REQUEST, RECORDS_PER_REQUEST
from monitel_otlp.request import REQUESTS, FrozenRequest
from monitel_otlp.sdk.encoder import (
    ENCODERS,
    append_metrics,
    encode_resource,
    resource_metrics,
    scope_metrics,
    steps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.sdk.metrics.export import Metric, MetricsData, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from monitel_otlp.metrics.mapping import WindowMapping
    from monitel_otlp.metrics.window_queue import Entry
    from monitel_otlp.sdk._compat import ReadableLogRecord

_log = logging.getLogger("monitel.otlp")

WINDOWS_PER_STEP = 8
RECORDS_PER_STEP = 8


class WindowExporter:
    """Puts windows, and the metrics that a reader collected, into requests of one resource.

    Windows travel with the metrics of the reader; if there are more of them than fit into one request, the others go
    in requests of their own, each with the pipeline's queue size stamped now: Prometheus orders samples by resource,
    so each request needs a sample of the present.

    A window that cannot be encoded is lost, and reported to ``lost`` with the reason ``encoding``. Windows are for one
    thread at a time; :meth:`export` and :meth:`collected` may run in another one.

    Args:
        mapping: Turns windows into metrics.
        queue_size: Returns the number of items that wait in memory.
        resource: The resource until a reader gives its own.
        put: Receives each finished request.
        lost: Receives signal, reason and number of items.

    Attributes:
        mapping: The mapping given.
        resource: The present resource as a message, serialized.
    """

    def __init__(
        self,
        mapping: WindowMapping,
        queue_size: Callable[[], int],
        resource: Resource,
        put: Callable[[FrozenRequest], None],
        lost: Callable[[str, str, int], None],
    ) -> None:
        self.mapping = mapping
        self.resource = encode_resource(resource)
        self._waiting: list[Entry] = []  # windows of the next group
        self._points = Points()  # of the next request
        self._collected: deque[Any] = deque()  # ResourceMetrics messages
        self._queue_size = queue_size
        self._put = put
        self._lost = lost
        self._failed = False

    def add(self, entries: Sequence[Entry]) -> None:
        """Take some windows, and encode them in groups of ``WINDOWS_PER_STEP``; never raises.

        Windows of one group that are less than 1 ms apart become one: groups do not depend on how many windows the
        caller adds at a time. A call with that many at most takes less than 0.5 ms.
        """
        self._waiting.extend(entries)
        while len(self._waiting) >= WINDOWS_PER_STEP:
            self._encode_group()

    def flush(self) -> None:
        """Put what is not in a request yet; it takes none of the SDK's locks."""
        if self._waiting:
            self._encode_group()
        while self._collected or self._points.windows:
            self._put_next()

    def collected(self, metrics_data: MetricsData) -> Iterator[None]:
        """Encode what a reader collected, a step for each value yielded; it goes into the next request.

        A metric that cannot be encoded is left out, and logged once.
        """
        for data in metrics_data.resource_metrics[:1]:
            message = resource_metrics(data.resource, data.schema_url)
            for scope in data.scope_metrics:
                target = message.scope_metrics.add()
                for metrics in steps(scope.metrics):
                    for part in self._encoded(scope, metrics):
                        target.scope.CopyFrom(part.scope)
                        target.schema_url = part.schema_url
                        append_metrics(target, part)
                    yield
                if not target.metrics:
                    del message.scope_metrics[-1]
            self.resource = message.resource.SerializeToString()
            if message.scope_metrics:
                self._collected.append(message)

    def export(self, metrics_data: MetricsData) -> None:
        """Encode what a reader collected, all at once; it goes into the next request."""
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
            company = self._collected.popleft()
            idle = all(scope.scope.name == PIPELINE_SCOPE for scope in company.scope_metrics)
        else:
            company, idle = alone(self.resource, self._queue_size(), now_ns), False
        self._put(points.frozen(company, now_ns, idle=idle))


def alone(resource: bytes, queue_size: int, time_ns: int) -> Any:
    """Return the ``ResourceMetrics`` that windows travel with when no reader has collected: the queue's size."""
    message = ResourceMetricsMessage()
    message.resource.ParseFromString(resource)
    write_queue_size(message.scope_metrics.add(), queue_size, time_ns)
    return message


class BatchExporter:
    """Puts log records, or spans, of the SDK's providers into requests; for one thread at a time.

    A request has at most 500 of them or about 1 MiB, and one entry for each resource and scope. A record that cannot be
    encoded is lost, and reported to ``lost`` with the reason ``encoding``.

    Args:
        signal: ``"logs"`` or ``"traces"``.
        put: Receives each finished request.
        lost: Receives signal, reason and number of items.
        created_ns: The requests' time, Unix ns; None: the time at which each is finished.
    """

    def __init__(
        self,
        signal: str,
        put: Callable[[FrozenRequest], None],
        lost: Callable[[str, str, int], None],
        created_ns: int | None = None,
    ) -> None:
        self._signal = signal
        self._put = put
        self._lost = lost
        self._created_ns = created_ns
        self._encode = ENCODERS[signal]
        self._failed = False
        self._batch: list[Any] = []
        self._open()

    def add(self, record: ReadableLogRecord | ReadableSpan) -> None:
        """Take one record, and encode it with the next few: that is cheaper; never raises."""
        self._batch.append(record)
        if len(self._batch) >= RECORDS_PER_STEP:
            self._encode_batch()

    def export(self, batch: Sequence[ReadableLogRecord] | Sequence[ReadableSpan]) -> None:
        """Encode a batch of any size, and put it."""
        for record in batch:
            self.add(record)
        self.flush()

    def flush(self) -> None:
        """Put the records that are not in a request yet."""
        if self._batch:
            self._encode_batch()
        if self._items:
            self._put_open()

    def _put_open(self) -> None:
        body, items = self._message.SerializeToString(), self._items
        self._open()
        self._put(
            FrozenRequest(self._signal, body, items, time.time_ns() if self._created_ns is None else self._created_ns)
        )

    def _open(self) -> None:
        self._message = REQUESTS[self._signal]()
        self._resources: dict[tuple[bytes, str], Any] = {}
        self._scopes: dict[tuple[bytes, str, bytes, str], Any] = {}
        self._items = 0
        self._bytes = 0

    def _encode_batch(self) -> None:
        batch, self._batch = self._batch, []
        try:
            self._append(self._encode(batch))
        except Exception:
            batch = [record for record in batch if self._encode_alone(record)]
        self._items += len(batch)
        if self._items >= RECORDS_PER_REQUEST or self._bytes >= BYTES_PER_REQUEST:
            self._put_open()

    def _encode_alone(self, record: Any) -> bool:
        try:
            self._append(self._encode([record]))
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception(
                    "a record of %s cannot be encoded and is dropped (further ones are only counted)", self._signal
                )
            self._lost(self._signal, "encoding", 1)
            return False
        return True

    def _append(self, encoded: Any) -> None:
        """Append the records of a request to those of the same resource and scope."""
        resources, scopes, records = LEVELS[self._signal]
        for of_resource in getattr(encoded, resources):
            outer = of_resource.resource.SerializeToString(), of_resource.schema_url
            for of_scope in getattr(of_resource, scopes):
                key = *outer, of_scope.scope.SerializeToString(), of_scope.schema_url
                found = self._scopes.get(key)
                if found is None:
                    resource = self._resources.get(outer)
                    if resource is None:
                        resource = self._resources[outer] = getattr(self._message, resources).add()
                        resource.resource.CopyFrom(of_resource.resource)
                        resource.schema_url = of_resource.schema_url
                    scope = getattr(resource, scopes).add()
                    scope.scope.CopyFrom(of_scope.scope)
                    scope.schema_url = of_scope.schema_url
                    found = self._scopes[key] = getattr(scope, records)
                found.extend(getattr(of_scope, records))
        self._bytes += encoded.ByteSize()
