"""Requests: items ``i`` to ``j`` of a journal, encoded for a backend. A request is split by items, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel_otel.scope import SCHEMA_URL, SCOPE
from monitel_otlp.messages.attributes import plain_attributes, write_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from google.protobuf.message import Message
    from opentelemetry.sdk.resources import Resource

    from monitel.blackbox.record import Item
    from monitel_otlp.metrics.windows import Draft, Totals

REQUESTS: dict[str, type[Any]] = {
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
    "traces": ExportTraceServiceRequest,
}
#: Field names from a request down to its records.
LEVELS = {
    "metrics": ("resource_metrics", "scope_metrics", "metrics", "data_points"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
    "traces": ("resource_spans", "scope_spans", "spans"),
}


@dataclass(frozen=True, slots=True)
class Request:
    """Items of a journal as one message. It has neither address nor headers, so it contains no token."""

    signal: str
    body: bytes  # not compressed; empty if there is nothing to send for the items
    items: Sequence[Item] = ()
    records: int = 0  # points, log records or spans
    draft: Any = None  # the running totals after it

    @property
    def number(self) -> int:
        """Number of the items."""
        return sum(item.items for item in self.items)

    def message(self) -> Message:
        """Return the decoded message."""
        request: Message = REQUESTS[self.signal].FromString(self.body)
        return request


class Encoder:
    """Makes the requests of one journal; a subclass for each kind of record writes them.

    ``write_queue_size`` adds the queue size of the pipeline to a list of metrics: Prometheus orders samples by
    resource, so each request of metrics needs one with the current time.
    """

    most = 500  #: Number of records in a request.

    def __init__(
        self,
        signal: str,
        resource: bytes,
        totals: Totals | None = None,
        write_queue_size: Callable[[Any], object] | None = None,
    ) -> None:
        self.signal = signal
        self.totals = totals
        self._resource = resource
        self._write_queue_size = write_queue_size

    def encode(self, items: Sequence[Item]) -> Request:
        """Encode some items, in order. Raises if one of them cannot be encoded."""
        message = REQUESTS[self.signal]()
        resource = getattr(message, LEVELS[self.signal][0]).add()
        resource.ParseFromString(self._resource)
        draft = self.draft()
        records = self._write(items, resource, draft)
        if records and self._write_queue_size is not None:
            self._write_queue_size(resource.scope_metrics[0].metrics)
        return Request(self.signal, message.SerializeToString() if records else b"", items, records, draft)

    def draft(self) -> Draft | None:
        """Return the totals for a request to change; None without totals."""
        return None if self.totals is None else self.totals.draft()

    def _write(self, items: Sequence[Item], resource: Any, draft: Any) -> int:
        """Add the records of some items below a resource, and return their number."""
        raise NotImplementedError


def record_lists(message: Any, levels: tuple[str, ...]) -> Iterator[Any]:
    """Yield the repeated fields that hold the records, in order."""
    level, *deeper = levels
    if level == "data_points":
        kind = message.WhichOneof("data")
        if kind is not None:
            yield getattr(message, kind).data_points
        return
    if not deeper:
        yield getattr(message, level)
        return
    for each in getattr(message, level):
        yield from record_lists(each, tuple(deeper))


def count_records(message: Any, levels: tuple[str, ...]) -> int:
    """Return the number of records below a message."""
    return sum(len(records) for records in record_lists(message, levels))


def write_scope(target: Any, scope: tuple[str, str, str] = SCOPE) -> None:
    """Fill the header of a ``ScopeMetrics``, ``ScopeLogs`` or ``ScopeSpans`` with name, version and schema."""
    target.scope.name, target.scope.version, target.schema_url = scope


def encode_resource(resource: Resource) -> bytes:
    """Return a resource and its schema as a serialized ``ResourceMetrics`` without metrics.

    The message has the same form as a ``ResourceLogs`` without log records, and a ``ResourceSpans`` without spans.
    """
    message = ResourceMetrics(schema_url=resource.schema_url or SCHEMA_URL)
    message.resource.SetInParent()
    write_attributes(message.resource.attributes, plain_attributes(resource.attributes))
    return message.SerializeToString()
