"""The unit of delivery: one encoded OTLP request, which nothing changes any more."""

from __future__ import annotations

import gzip
import zlib
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
    from collections.abc import Callable

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

_DECODERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}


@dataclass(frozen=True, slots=True)
class FrozenRequest:
    """One request as the official exporter encoded it, without address and headers: no token is in here.

    Attributes:
        signal: ``"metrics"``, ``"logs"`` or ``"traces"``.
        body: The protobuf message, compressed as ``encoding`` says.
        encoding: ``""``, ``"gzip"`` or ``"deflate"``.
        items: Windows, log records or spans in it.
        created_ns: When it was encoded, Unix ns.
    """

    signal: str
    body: bytes
    encoding: str
    items: int
    created_ns: int

    def message_bytes(self) -> bytes:
        """The encoded message, not compressed."""
        return _DECODERS[self.encoding](self.body)

    def message(self) -> Message:
        """The message, decoded."""
        request: Message = REQUESTS[self.signal].FromString(self.message_bytes())
        return request
