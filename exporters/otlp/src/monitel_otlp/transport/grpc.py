"""Transport over gRPC: the serialized request is sent through a generic channel."""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

# With fork support, the core of gRPC cancels the parent's calls at a fork, and starts threads in the child, which may
# crash. The Python layer disables it by default, the core does not. The core reads the variable at import. A forked
# child of this pipeline does not use gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # without a level it prints each handshake that fails

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]  # no stubs
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # no stubs

from monitel_otlp.config.endpoint import AddressError, Endpoint, parse_address
from monitel_otlp.config.secret import Secret
from monitel_otlp.transport.answer import (
    ADVICE,
    AUTHORITY,
    CLIENT,
    RESPONSE_BYTES,
    USER_AGENT,
    Answer,
    Consequence,
    FailedError,
    Transport,
    count_rejected,
    delivered,
    describe,
    setting_to_change,
    tls_failed,
)
from monitel_otlp.transport.http import basic, tls_context

if TYPE_CHECKING:
    from monitel_otlp.messages.request import Request

_SERVICES = {"metrics": "metrics.v1.Metrics", "logs": "logs.v1.Logs", "traces": "trace.v1.Trace"}
_CONSEQUENCES = {
    **dict.fromkeys(("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE"), Consequence.RETRY),
    **dict.fromkeys(("UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"), Consequence.REFUSED),
    **dict.fromkeys(("INTERNAL", "UNKNOWN"), Consequence.FAILED),
    "DATA_LOSS": Consequence.RETRY,
}
#: A server that does not speak gRPC, such as a proxy with a login page: that is not about the items.
_OTHER_SERVER = re.compile(r"(?<=http2 header with status: )\d+|No status received|Stream removed|RST_STREAM")
_BUSY = "408", "429", "502", "503", "504", "Stream removed", "RST_STREAM"  # the last ones: the connection is broken
_OF_HTTP = {"413": Consequence.TOO_LARGE, **dict.fromkeys(_BUSY, Consequence.RETRY)}
#: Texts of gRPC's cores in Go, C++, Java and C#; without one a limit of rate is exceeded, as when Loki answers 429.
_MESSAGE_TOO_LARGE = re.compile("(?i)larger than|too large|exceeds (the )?maximum")
_KEY, _VALUE = re.compile(r"[0-9a-z_.-]+(?<!-bin)"), re.compile(r"[\x20-\x7e]*")
_METADATA = "gRPC takes header names of a-z 0-9 _ . - and values of printable ASCII: check OTEL_EXPORTER_OTLP_HEADERS"
_TLS = (  # words of gRPC's core, the last two of older versions
    *("CERTIFICATE", "Hostname Verification", "WRONG_VERSION_NUMBER", "security handshaker"),
    *("Peer name", "empty address list"),
)
#: Maximum size of an answer. The core names it in its error, so the error differs from a backend's error about a
#: request. It is slightly less than 64 KiB, so that it differs from the limits of backends.
_RECEIVE_LIMIT = RESPONSE_BYTES - 7
_ANSWER_TOO_LARGE = re.compile(rf"larger than max \(\d+ vs\.? {_RECEIVE_LIMIT}\)")
_OPTIONS = [  # the sender decides about retries; gRPC's pause would grow to two minutes
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", _RECEIVE_LIMIT),
    ("grpc.max_metadata_size", RESPONSE_BYTES),  # else trailers above 8 KiB hide the answer
    ("grpc.absolute_max_metadata_size", RESPONSE_BYTES),
    ("grpc.primary_user_agent", USER_AGENT),  # before gRPC's own
    ("grpc.per_message_decompression", 0),  # its size error does not show which side raised it
]
_COMPRESSED = {b"\x1f", b"\x78"}  # first byte of gzip and zlib, and never of an OTLP message
_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")  # in the order of the core of gRPC


class GrpcTransport(Transport):
    """Sends over gRPC, on a channel that is opened with the first request. Path and query are not used."""

    def __init__(self, signal: str, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.url += f" ({signal})"  # the address is the same for all signals
        self._method = f"/opentelemetry.proto.collector.{_SERVICES[signal]}Service/Export"
        metadata = {name.lower(): value.reveal() for name, value in endpoint.headers.items()}
        if endpoint.address.credentials is not None:  # they come first
            metadata["authorization"] = basic(*endpoint.address.credentials)
        self._metadata = Secret(tuple(metadata.items()))
        compressions = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
        self._compression = compressions.get(endpoint.compression)
        self._channel: grpc.Channel | None = None

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _attempt(self, request: Request, timeout: float) -> Answer:
        metadata = self._metadata.reveal()
        if not all(_KEY.fullmatch(name) and _VALUE.fullmatch(value) for name, value in metadata):
            raise FailedError(_METADATA)
        _check_proxy(self._endpoint.address.public)
        if self._channel is None:
            self._channel = _open(self._endpoint)
        call = self._channel.unary_unary(self._method, None, None)  # None: bytes are not converted
        try:
            content: bytes = call(request.body, timeout=timeout, metadata=metadata, compression=self._compression)
        except grpc.RpcError as error:
            answer = _answer(request, error, self._endpoint)
            if answer.consequence is Consequence.REFUSED or not answer.answered:
                self.close()  # the next channel reads the files, resolves and connects again
            return answer
        return delivered(_decompressed(content))


def _open(endpoint: Endpoint) -> grpc.Channel:
    target = endpoint.address.netloc  # without the user: gRPC would treat it as a part of the name, and log it
    if endpoint.address.scheme == "http":
        return grpc.insecure_channel(target, _OPTIONS)
    given = endpoint.certificates
    if any(given):
        tls_context(given)  # because the core reports neither the file nor the reason
    try:
        authority, chain, key = (None if each is None else Path(each).read_bytes() for each in given)
    except OSError as error:
        raise FailedError(f"check {AUTHORITY}: {given.certificate}: {describe(error)}") from None  # it is a folder
    credentials = grpc.ssl_channel_credentials(authority, key or chain, chain)  # one file may contain both
    return grpc.secure_channel(target, credentials, _OPTIONS)


def _check_proxy(url: str) -> None:
    """Refuse an address of the proxy that is malformed: the core of gRPC would print it with its password.

    Refuse a proxy with TLS, too, if the URL is to use it: the core would connect past the proxy.
    """
    for variable in _PROXY_VARIABLES:
        if text := os.environ.get(variable):
            from requests.utils import should_bypass_proxies  # late: it takes 0.1 s

            try:
                if parse_address(text).scheme != "http" and not should_bypass_proxies(url, None):
                    raise AddressError("gRPC supports only proxies that begin with http://")
            except AddressError as error:
                raise FailedError(f"the proxy's address in {variable} cannot be used: {error}") from None
            return


def _decompressed(content: bytes) -> bytes:
    if content[:1] not in _COMPRESSED:
        return content
    with suppress(zlib.error):
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(content, RESPONSE_BYTES)  # gzip or zlib
    return b""


def _answer(request: Request, error: Any, endpoint: Endpoint) -> Answer:
    code, details = error.code().name, (error.details() or "").rpartition("last error: ")[2]
    if code == "RESOURCE_EXHAUSTED" and _ANSWER_TOO_LARGE.search(details):
        return Answer(Consequence.DELIVERED, f"the answer is larger than {_RECEIVE_LIMIT} bytes, and was not read")
    if code == "RESOURCE_EXHAUSTED" and "metadata size exceeds" in details:  # the limit of this side
        return Answer(Consequence.RETRY, f"the answer cannot be read: {details}", answered=False)
    other = endpoint.no_receiver(request.signal) if code == "UNIMPLEMENTED" else ADVICE.get(code, details)
    advice = setting_to_change(details) or other
    reason, pause = f"gRPC {code}: {advice}", _retry_delay(error)
    is_closed = any(words in details for words in ("Socket closed", "Unwrap failed", "Stream removed", "RST_STREAM"))
    consequence = _CONSEQUENCES.get(code, Consequence.REJECTED)
    if (found := _OTHER_SERVER.search(details)) is not None:
        consequence = _OF_HTTP.get(found[0], Consequence.REFUSED)
    if code == "UNAVAILABLE" and any(word in details for word in _TLS):
        return tls_failed(details, AUTHORITY)
    if code == "UNAVAILABLE" and is_closed:
        reason = f"{reason}; if this persists, check http or https, and {CLIENT}"
    if code == "RESOURCE_EXHAUSTED":
        is_large = pause is None and _MESSAGE_TOO_LARGE.search(details)
        consequence = Consequence.TOO_LARGE if is_large else Consequence.RETRY
    rejected = count_rejected(request, details) if consequence is Consequence.REJECTED else 0
    is_answered = code not in {"DEADLINE_EXCEEDED", "CANCELLED"} and not is_closed
    return Answer(consequence, reason, pause, rejected, is_answered)


def _retry_delay(error: Any) -> float | None:
    info = RetryInfo()
    with suppress(KeyError, DecodeError):
        status = Status.FromString(dict(error.trailing_metadata() or ())["grpc-status-details-bin"])
        if any(detail.Unpack(info) for detail in status.details):
            return max(0.0, float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
    return None
