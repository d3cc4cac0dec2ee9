"""One attempt to deliver one request over HTTP."""

from __future__ import annotations

import gzip
import re
import socket
import ssl
import time
import zlib
from contextlib import suppress
from http.client import BadStatusLine, HTTPException, RemoteDisconnected
from typing import TYPE_CHECKING
from urllib.parse import quote

from monitel_otlp.config.endpoint import AddressError, parse_address, proxy_secrets
from monitel_otlp.config.secret import Secret, masker, parts_of_header
from monitel_otlp.transport.answer import (
    NO_CREDENTIALS,
    NO_PERMISSION,
    RESPONSE_BYTES,
    USER_AGENT,
    Answer,
    Consequence,
    Transport,
    count_rejected,
    delivered,
    describe,
    error_text,
    parse_retry_after,
)
from monitel_otlp.transport.connection import (
    AUTHORITY,
    CLIENT,
    CertificateFileError,
    ProxyRefusedError,
    Route,
    TooMuchError,
    Wire,
    basic,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPResponse

    from monitel_otlp.config.endpoint import Endpoint
    from monitel_otlp.messages.request import Request

_COMPRESS: dict[str, Callable[[bytes], bytes]] = {"none": bytes, "gzip": gzip.compress, "deflate": zlib.compress}
_FRAMING = {"content-type", "content-length", "content-encoding", "transfer-encoding", "connection", "accept-encoding"}
_SAFE_IN_TARGET = "!#$%&'()*+,/:;=?@[]~"  # in addition to letters, digits and _.-
_SUCCESS, _REDIRECTION = range(200, 300), range(300, 400)
_PROXY_CREDENTIALS_REQUIRED, _TOO_LARGE, _SERVER_ERROR = 407, 413, 500
_OF_CONTENT = {400, 413, 422}  # any other status below 500 is not about the items: of a proxy, a limiter
_RETRY = {408, 429, 502, 503, 504}
_REFUSED = {401: NO_CREDENTIALS, 403: NO_PERMISSION}
_NO_RECEIVER = {404, 405}
#: Answers of backends to data that is too old; Prometheus sometimes sends them with status 500. A retry cannot help.
TOO_OLD = re.compile("out[ -]of[ -](order|bounds)|too[ -]old", re.IGNORECASE)


class HttpTransport(Transport):
    """Sends over HTTP/1.1, on a connection that is kept open."""

    def __init__(self, endpoint: Endpoint) -> None:
        headers = _headers(endpoint)
        secrets = [*endpoint.secrets(), *proxy_secrets(), *parts_of_header(headers.get("authorization", ""))]
        super().__init__(endpoint, masker(secrets))
        self._wire: Wire | None = None
        self._route: Route | None = None
        try:
            self._route = route = Route(endpoint)
            self._head = Secret(_head(route, headers))
        except Exception as error:  # raised in requests: configure() must not fail because of a proxy
            why = str(error) if isinstance(error, AddressError) else describe(error)
            self._problem = f"the proxy's address (check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY) cannot be used: {why}"

    def close(self) -> None:
        """Close the connection. Idempotent."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        if self._route is not None:
            self._route.resolver.close()

    def _attempt(self, request: Request, timeout: float) -> Answer:
        deadline = time.monotonic() + timeout
        if self._route is None:
            return Answer(Consequence.REFUSED, self._problem)
        compression = self._endpoint.compression
        body = _COMPRESS[compression](request.body)
        coding = "" if compression == "none" else f"Content-Encoding: {compression}\r\n"
        head = self._head.reveal() + f"{coding}Content-Length: {len(body)}\r\n\r\n".encode()
        wire, self._wire = self._wire, None  # it is not kept while it is used
        is_sent: bool | None = None  # None: there is no connection
        try:
            if wire is not None and wire.is_stale():
                wire.close()
                wire = None
            if wire is None:
                wire = self._route.open(deadline)
            wire.begin(deadline)
            is_sent = False
            with suppress(BrokenPipeError, ConnectionResetError):  # a backend may answer before it has read everything
                wire.sendall(head + body)
                is_sent = True
            response = wire.read_response("POST")
            content, is_complete = _body(response)
            if is_sent and is_complete and not response.will_close:
                self._wire = wire
            return _answer(request, response, content, self._endpoint, is_complete=is_complete)
        except Exception as error:
            return _failed(error, self._route, is_sent=is_sent)
        finally:
            if wire is not None and self._wire is None:
                wire.close()


def _headers(endpoint: Endpoint) -> dict[str, str]:
    """Return the headers that do not depend on the body, by names in lower case. Credentials in the URL come first."""
    ours = {"host": endpoint.address.netloc, "user-agent": USER_AGENT, "accept": "*/*"}
    asked = {name.lower(): value.reveal() for name, value in endpoint.headers.items()}
    headers = ours | {name: value for name, value in asked.items() if name not in _FRAMING}
    if (credentials := endpoint.address.credentials) is not None:
        headers["authorization"] = basic(*credentials)
    return headers


def _head(route: Route, headers: dict[str, str]) -> bytes:
    """Return the constant part of a request: request line and headers."""
    query = route.address.query.reveal()
    target = quote((route.address.path or "/") + (f"?{query}" if query else ""), safe=_SAFE_IN_TARGET)
    if route.proxy is not None and not route.is_tunnelled:
        target = f"{route.address.scheme}://{route.address.netloc}{target}"
        if route.proxy.credentials is not None:
            headers = {**headers, "proxy-authorization": basic(*route.proxy.credentials)}
    ours = {"content-type": "application/x-protobuf", "accept-encoding": "identity", "connection": "keep-alive"}
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in {**headers, **ours}.items()), ""]
    return "\r\n".join(lines).encode("latin-1")


def _body(response: HTTPResponse) -> tuple[bytes, bool]:
    """Read at most 64 KiB of a body. Return the content, and whether it is complete."""
    found, length = bytearray(), response.length
    with suppress(OSError, HTTPException, ValueError):  # the status counts, even if the body is broken
        while len(found) < RESPONSE_BYTES:
            if not (piece := response.read1(RESPONSE_BYTES - len(found))):
                return bytes(found), length in {None, len(found)}
            found += piece
    return bytes(found), len(found) == length


def _failed(error: Exception, route: Route, *, is_sent: bool | None) -> Answer:
    """Return the answer to an attempt without a response; ``is_sent`` is None if there was no connection."""
    consequence, reason = Consequence.RETRY, describe(error)
    prefix = "" if route.proxy is None or is_sent else f"proxy {route.proxy.public}: "
    if isinstance(error, (ssl.SSLError, CertificateFileError)):
        prefix = ""
        consequence, reason = (
            (Consequence.REFUSED, str(error)) if isinstance(error, CertificateFileError) else _tls(error)
        )
    elif isinstance(error, ProxyRefusedError):
        reason = f"HTTP {error}"
        if error.args == (_PROXY_CREDENTIALS_REQUIRED,):
            consequence, reason = (
                Consequence.REFUSED,
                "it requires credentials: check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
            )
    elif isinstance(error, socket.gaierror):
        reason = f"cannot resolve {route.first.host}: {error.strerror}"
    elif isinstance(error, TimeoutError) and is_sent is None:
        reason = "no connection in time"
    elif isinstance(error, TooMuchError):
        reason = f"the answer is too long: {error}"
    elif isinstance(error, RemoteDisconnected):
        reason = f"{reason}: the connection was closed without an answer"
    elif isinstance(error, BadStatusLine):
        reason = f"the answer is not HTTP: {error!s:.80}"
    return Answer(consequence, f"{prefix}{reason}", answered=not is_sent or consequence is Consequence.REFUSED)


def _tls(error: ssl.SSLError) -> tuple[Consequence, str]:
    """Return consequence and reason of an attempt whose TLS connection failed."""
    cause = describe(error)
    if isinstance(error, ssl.SSLEOFError):  # the backend has gone, or it requires a client certificate
        return Consequence.RETRY, f"TLS connection closed ({cause}); if this persists, check {CLIENT}"
    if isinstance(error, ssl.SSLCertVerificationError):
        cause = f"{cause}: {error.verify_message}"
    of_client = "ALERT" in cause and ("CERTIFICATE" in cause or "UNKNOWN_CA" in cause)  # the peer has refused it
    return Consequence.REFUSED, f"TLS failed, check {CLIENT if of_client else AUTHORITY}: {cause}"


def _answer(request: Request, response: HTTPResponse, body: bytes, endpoint: Endpoint, *, is_complete: bool) -> Answer:
    status = response.status
    reason = f"HTTP {status}"
    if status in _SUCCESS:
        return delivered(body)
    if status in _RETRY:
        return Answer(Consequence.RETRY, reason, parse_retry_after(response.headers.get("Retry-After")))
    text = error_text(body)
    advice = _REFUSED.get(status)
    if status in _NO_RECEIVER:
        advice = endpoint.no_receiver(request.signal)
    elif status in _REDIRECTION:
        advice = f"redirected{_public_location(str(response.headers.get('Location', '')))}"
    elif advice is None and status < _SERVER_ERROR and status not in _OF_CONTENT:
        advice = text
    if advice is not None:
        return Answer(Consequence.REFUSED, f"{reason}: {advice}")
    reason = f"{reason}: {text}"
    if status == _TOO_LARGE:
        return Answer(Consequence.TOO_LARGE, reason)
    failed = status >= _SERVER_ERROR and not TOO_OLD.search(text)
    rejected = count_rejected(request, text) if is_complete and not failed else 0
    return Answer(Consequence.FAILED if failed else Consequence.REJECTED, reason, rejected=rejected)


def _public_location(location: str) -> str:
    """Return the public part of a redirection: an address without user, password and query, or a path without query."""
    try:
        shown = parse_address(location.partition("#")[0]).public
    except AddressError:
        shown = re.split("[?#@]", location)[0] if re.match("/(?!/)", location) else ""
    return f" to {shown!r}, set this address as the endpoint" if shown else ", set its target as the endpoint"
