"""The unit of delivery: one encoded, immutable OTLP request, its records and its scopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitel_otel.scope import SCOPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

REQUESTS: dict[str, type[Any]] = {
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
    "traces": ExportTraceServiceRequest,
}


@dataclass(frozen=True, slots=True)
class FrozenRequest:
    """One encoded request. It has neither address nor headers, so it contains no token.

    Attributes:
        signal: ``"metrics"``, ``"logs"`` or ``"traces"``.
        body: The protobuf message, not compressed.
        items: Number of recorded items (windows, log records, spans) in this request.
    """

    signal: str
    body: bytes
    items: int

    def message(self) -> Message:
        """Return the decoded message."""
        request: Message = REQUESTS[self.signal].FromString(self.body)
        return request


#: Field names from a request down to its records.
LEVELS = {
    "metrics": ("resource_metrics", "scope_metrics", "metrics", "data_points"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
    "traces": ("resource_spans", "scope_spans", "spans"),
}


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
