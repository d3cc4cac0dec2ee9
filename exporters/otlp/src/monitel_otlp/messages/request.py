"""The unit of delivery: one encoded OTLP request, which nothing changes any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

#: The signals, in the order in which they are delivered.
SIGNALS = ("metrics", "logs", "traces")

REQUESTS: dict[str, type[Any]] = {
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
    "traces": ExportTraceServiceRequest,
}
RESPONSES: dict[str, type[Any]] = {
    "metrics": ExportMetricsServiceResponse,
    "logs": ExportLogsServiceResponse,
    "traces": ExportTraceServiceResponse,
}


@dataclass(frozen=True, slots=True)
class FrozenRequest:
    """One encoded request without address and headers, so that no token is in it.

    Attributes:
        signal: ``"metrics"``, ``"logs"`` or ``"traces"``.
        body: The protobuf message; it is compressed when it is sent, if at all.
        items: Recorded items (windows, log records, spans) that are delivered with this request.
        created_ns: Time of encoding, Unix ns.
        weights: For each metric point, log record or span of the message, in order, how many items end with it, as
            ``array("I").tobytes()``. Empty: one each, or none at all where ``items`` is 0.
        synthetic: Spans in it that the pipeline made itself; they are not items.
        idle: True if it holds nothing but the pipeline's own metrics, which are not worth a place on disk.
    """

    signal: str
    body: bytes
    items: int
    created_ns: int
    weights: bytes = b""
    synthetic: int = 0
    idle: bool = False

    def message(self) -> Message:
        """The message, decoded."""
        request: Message = REQUESTS[self.signal].FromString(self.body)
        return request
