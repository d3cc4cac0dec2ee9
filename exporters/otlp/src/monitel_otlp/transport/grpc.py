"""One attempt to deliver one request over gRPC: the same frozen body, through a plain channel."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

# At a fork gRPC's core cancels the parent's calls and starts threads in the child, which crash at times. Its Python
# layer has that off by default, the core on; the core reads this at its import. A forked child of ours uses no gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]  # no stubs
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # no stubs

from monitel_otlp.sdk.encoder import public_url
from monitel_otlp.transport.http import Answer, Verdict, partial_success

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel_otlp.request import FrozenRequest

_METHODS = {
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
}
_CODES = {
    grpc.StatusCode.UNAVAILABLE: Verdict.RETRY,
    grpc.StatusCode.CANCELLED: Verdict.RETRY,
    grpc.StatusCode.DEADLINE_EXCEEDED: Verdict.RETRY,
    grpc.StatusCode.ABORTED: Verdict.RETRY,
    grpc.StatusCode.OUT_OF_RANGE: Verdict.RETRY,
    grpc.StatusCode.DATA_LOSS: Verdict.RETRY,
    grpc.StatusCode.UNAUTHENTICATED: Verdict.REFUSED,
    grpc.StatusCode.PERMISSION_DENIED: Verdict.REFUSED,
    grpc.StatusCode.UNIMPLEMENTED: Verdict.REFUSED,
    grpc.StatusCode.INTERNAL: Verdict.FAILED,
    grpc.StatusCode.UNKNOWN: Verdict.FAILED,
}
_ADVICE = {
    grpc.StatusCode.UNAUTHENTICATED: "the endpoint wants credentials: set OTEL_EXPORTER_OTLP_HEADERS",
    grpc.StatusCode.PERMISSION_DENIED: "the credentials may not write: check OTEL_EXPORTER_OTLP_HEADERS",
    grpc.StatusCode.UNIMPLEMENTED: "there is no OTLP receiver for this signal at this address",
}
_KEY, _VALUE = re.compile(r"[0-9a-z_.-]+(?<!-bin)"), re.compile(r"[\x20-\x7e]*")
_METADATA = "gRPC takes header names of a-z 0-9 _ . - and values of printable ASCII: check OTEL_EXPORTER_OTLP_HEADERS"
_TLS = ("CERTIFICATE", "Hostname Verification", "WRONG_VERSION_NUMBER", "security handshaker")  # as gRPC's core says it
_CLOSED = "if this stays, check http or https, and OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"
_OPTIONS = [  # how often to try is the outbox's business; gRPC's own pause grows to two minutes
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
_UNANSWERED = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


class GrpcSender:
    """Sends over gRPC, on a channel that is opened with the first request.

    Args:
        signal: Whose requests these are.
        url: ``http://host:4317``; with https the channel is encrypted.
        headers: Sent as metadata.
        timeout: Seconds that an attempt may take.
        certificates: PEM files: ``certificate`` (the authorities'), ``client_certificate`` and ``client_key``.
        compression: ``"gzip"``, ``"deflate"`` or ``""``.
    """

    def __init__(
        self,
        signal: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        certificates: Mapping[str, bytes],
        compression: str = "",
    ) -> None:
        self.url = f"{public_url(url)} ({signal})"  # one address for all signals: a log line says which
        self._encrypted = urlsplit(url).scheme == "https"
        self._target = urlsplit(url).netloc.rpartition("@")[2]  # gRPC would take a user for part of the name, and tell
        self._method = _METHODS[signal]
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._timeout = timeout
        self._certificates = certificates
        self._compression = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}.get(compression)
        self._channel: grpc.Channel | None = None

    def send(self, request: FrozenRequest, timeout: float | None = None) -> Answer:
        """Make one attempt."""
        if not all(_KEY.fullmatch(name) and _VALUE.fullmatch(value) for name, value in self._metadata):
            return Answer(Verdict.REFUSED, _METADATA)
        if self._channel is None:
            self._channel = self._open()
        call = self._channel.unary_unary(self._method, None, None)  # None: bytes go as they are
        try:
            content: bytes = call(
                request.body,
                timeout=min(timeout or self._timeout, self._timeout),
                metadata=self._metadata,
                compression=self._compression,
            )
        except grpc.RpcError as error:
            return _answer(error)
        return partial_success(request.signal, content)

    def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _open(self) -> grpc.Channel:
        if not self._encrypted:
            return grpc.insecure_channel(self._target, _OPTIONS)
        chain = self._certificates.get("client_certificate")
        key = self._certificates.get("client_key", chain)  # one file may hold both
        credentials = grpc.ssl_channel_credentials(
            self._certificates.get("certificate"), key if chain else None, chain or None
        )  # one without the other would have gRPC abort the process
        return grpc.secure_channel(self._target, credentials, _OPTIONS)


def _answer(error: Any) -> Answer:
    code, details = error.code(), (error.details() or "").rpartition("last error: ")[2][:300]
    reason = f"gRPC {code.name}: {_ADVICE.get(code, details)}"
    if code is grpc.StatusCode.UNAVAILABLE:
        if any(word in details for word in _TLS):
            return Answer(Verdict.REFUSED, f"TLS failed, check OTEL_EXPORTER_OTLP_CERTIFICATE: {details}")
        if "Socket closed" in details:
            reason = f"{reason}; {_CLOSED}"
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        pause = _retry_delay(error)
        return Answer(Verdict.TOO_LARGE, reason) if pause is None else Answer(Verdict.RETRY, reason, pause)
    answered = code not in _UNANSWERED and "Socket closed" not in details
    return Answer(_CODES.get(code, Verdict.REJECTED), reason, _retry_delay(error), answered=answered)


def _retry_delay(error: Any) -> float | None:
    """The RetryInfo that the backend attached (google.rpc), in seconds."""
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        try:
            details = Status.FromString(value).details
        except DecodeError:
            return None
        for detail in details:
            info = RetryInfo()
            if detail.Unpack(info):
                return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    return None
