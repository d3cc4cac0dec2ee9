"""One attempt to deliver one request over HTTP."""

from __future__ import annotations

import gzip
import os
import re
import time
import zlib
from contextlib import suppress
from http.client import BadStatusLine, HTTPException, RemoteDisconnected
from typing import TYPE_CHECKING
from urllib.parse import quote

from requests.utils import NETRC_FILES, get_netrc_auth

from monitel_otlp.config.endpoint import Address, AddressError, parse_address, proxy_secrets
from monitel_otlp.config.secret import Secret, masker, parts_of_header
from monitel_otlp.transport import resolver
from monitel_otlp.transport.answer import (
    RESPONSE_BYTES,
    USER_AGENT,
    Answer,
    Verdict,
    count_rejected,
    delivered,
    describe,
    error_text,
    guarded,
    parse_retry_after,
)
from monitel_otlp.transport.connection import Route, basic, proxy_of, read_response
from monitel_otlp.transport.tls import may_block
from monitel_otlp.transport.wire import TooMuchError, Wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPResponse

    from monitel_otlp.config.endpoint import Endpoint
    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.transport.connection import Lookup
    from monitel_otlp.transport.tls import Certificates

_COMPRESS: dict[str, Callable[[bytes], bytes]] = {"none": bytes, "gzip": gzip.compress, "deflate": zlib.compress}
_FRAMING = {"content-type", "content-length", "content-encoding", "transfer-encoding", "connection", "accept-encoding"}
_SAFE_IN_TARGET = "!#$%&'()*+,/:;=?@[]~"  # in addition to letters, digits and _.-
_SUCCESS, _REDIRECTION = range(200, 300), range(300, 400)
_TOO_LARGE = 413
_SERVER_ERROR = 500
_RETRY = {408, 429, 502, 503, 504}
_REFUSED = {
    401: "the endpoint requires credentials: set OTEL_EXPORTER_OTLP_HEADERS",
    403: "the credentials do not permit writing: check OTEL_EXPORTER_OTLP_HEADERS",
}
_NO_RECEIVER = {404, 405}
#: Answers of backends to data that is too old; Prometheus sometimes sends them with status 500. A retry cannot help.
TOO_OLD = re.compile("out[ -]of[ -](order|bounds)|too[ -]old", re.IGNORECASE)


class HttpTransport:
    """Sends over HTTP/1.1, on a connection that is kept open.

    Args:
        endpoint: The destination.
        certificates: The certificates for TLS.
        lookup: Resolves a host and a port by a deadline.
    """

    def __init__(self, endpoint: Endpoint, certificates: Certificates, lookup: Lookup = resolver.lookup) -> None:
        self.url = endpoint.public_url
        self._endpoint = endpoint
        self._timeout = endpoint.timeout
        self._compression = endpoint.compression
        self._problem: str | None = None
        proxy: Address | None = None
        try:
            proxy = proxy_of(endpoint.address)
        except Exception as error:  # raised in requests: configure() must not fail because of a proxy
            why = str(error) if isinstance(error, AddressError) else describe(error)
            self._problem = f"the proxy's address (check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY) cannot be used: {why}"
        self._route = Route(endpoint.address, proxy, certificates, lookup)
        headers = _headers(endpoint)
        secrets = [*endpoint.secrets(), *proxy_secrets(), *parts_of_header(headers.get("authorization", ""))]
        self._mask = masker(secrets)
        self._head = Secret(_head(self._route, headers))
        self._wire: Wire | None = None
        if self._route.first.is_name:
            resolver.start()

    def send(self, request: FrozenRequest, timeout: float | None = None) -> Answer:
        """Make one attempt; see :class:`~monitel_otlp.transport.answer.Transport`."""
        return guarded(lambda: self._attempt(request, timeout), self._mask)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _attempt(self, request: FrozenRequest, timeout: float | None) -> Answer:
        deadline = time.monotonic() + (self._timeout if timeout is None else min(timeout, self._timeout))
        if self._problem is not None:
            return Answer(Verdict.REFUSED, self._problem)
        body = _COMPRESS[self._compression](request.body)
        coding = "" if self._compression == "none" else f"Content-Encoding: {self._compression}\r\n"
        framing = f"{coding}Content-Length: {len(body)}\r\n\r\n".encode()
        try:
            wire = self._connected(deadline)
        except Exception as error:
            return self._route.failed(error)
        kept = False
        try:
            content = b"".join([self._head.reveal(), framing, body])
            answer, kept = _exchange(wire, request, content, self._route, self._endpoint)
        finally:
            if kept:
                wire.rest()
                self._wire = wire
            else:
                wire.close()
        return answer

    def _connected(self, deadline: float) -> Wire:
        """Return the kept connection, or a new one. It is not kept while it is used."""
        wire, self._wire = self._wire, None
        if wire is not None:
            if not wire.is_stale():
                wire.begin(deadline)
                return wire
            wire.close()
        return self._route.open(deadline)


def _headers(endpoint: Endpoint) -> dict[str, str]:
    """Return the headers that do not depend on the body, by names in lower case.

    Credentials are taken from the URL, from the configured headers or from a ``.netrc`` file, in this order.
    """
    ours = {"host": endpoint.address.netloc, "user-agent": USER_AGENT, "accept": "*/*"}
    asked = {name.lower(): value.reveal() for name, value in endpoint.headers.items()}
    headers = ours | {name: value for name, value in asked.items() if name not in _FRAMING}
    credentials = endpoint.address.credentials
    if credentials is None and "authorization" not in headers:
        paths = [os.environ["NETRC"]] if "NETRC" in os.environ else [f"~/{name}" for name in NETRC_FILES]
        with suppress(Exception):  # an unreadable file is ignored
            if not any(may_block(os.path.expanduser(path)) for path in paths):  # noqa: PTH111  as requests
                credentials = get_netrc_auth(endpoint.public_url)
    if credentials is not None:
        headers["authorization"] = basic(*credentials)
    return headers


def _head(route: Route, headers: dict[str, str]) -> bytes:
    """Return the constant part of a request: request line and headers."""
    query = route.address.query.reveal()
    target = quote((route.address.path or "/") + (f"?{query}" if query else ""), safe=_SAFE_IN_TARGET)
    if route.proxy is not None and not route.tunnelled:
        target = f"{route.address.scheme}://{route.address.netloc}{target}"
        if route.proxy.credentials is not None:
            headers = {**headers, "proxy-authorization": basic(*route.proxy.credentials)}
    ours = {"content-type": "application/x-protobuf", "accept-encoding": "identity", "connection": "keep-alive"}
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in {**headers, **ours}.items()), ""]
    return "\r\n".join(lines).encode("latin-1")


def _exchange(
    wire: Wire, request: FrozenRequest, content: bytes, route: Route, endpoint: Endpoint
) -> tuple[Answer, bool]:
    """Send a request and read the response.

    Returns:
        The answer, and whether the connection can be used again.
    """
    sent = False
    try:
        try:
            wire.sendall(content)
            sent = True
        except (BrokenPipeError, ConnectionResetError):
            response = read_response(wire, "POST")  # a backend may answer before it has read the whole request
        else:
            response = read_response(wire, "POST")
    except Exception as error:
        return _unanswered(error, route, sent=sent), False
    body, complete = _body(response)
    answer = _answer(request, response, body, endpoint, complete=complete)
    return answer, sent and complete and not response.will_close


def _body(response: HTTPResponse) -> tuple[bytes, bool]:
    """Read at most 64 KiB of a body.

    Returns:
        The content, and whether it is complete.
    """
    length = response.length
    limit = RESPONSE_BYTES if length is None else min(length, RESPONSE_BYTES)
    found = bytearray()
    try:
        while len(found) < limit:
            if not (piece := response.read1(limit - len(found))):
                return bytes(found), length is None
            found += piece
    except (OSError, HTTPException, ValueError):  # the status counts, even if the body is broken
        return bytes(found), False
    return bytes(found), length is not None and len(found) == length


def _unanswered(error: Exception, route: Route, *, sent: bool) -> Answer:
    """Return the answer to a request without a response."""
    failed = route.failed(error)
    if failed.verdict is Verdict.REFUSED:  # TLS: a client certificate may be refused after the handshake
        return failed
    if isinstance(error, TimeoutError):
        reason = "timed out" if sent else "timed out while the request was sent"
    elif isinstance(error, TooMuchError):
        reason = f"the answer is too long: {error}"
    elif isinstance(error, RemoteDisconnected):
        reason = "RemoteDisconnected: the connection was closed without an answer"
    elif isinstance(error, BadStatusLine):
        reason = f"the answer is not HTTP: {error!s:.80}"
    else:
        reason = failed.reason
    return Answer(Verdict.RETRY, reason, answered=not sent)


def _answer(
    request: FrozenRequest, response: HTTPResponse, body: bytes, endpoint: Endpoint, *, complete: bool
) -> Answer:
    status = response.status
    reason = f"HTTP {status}"
    if status in _SUCCESS:
        return delivered(request.signal, body, complete=complete)
    if status in _RETRY:
        return Answer(Verdict.RETRY, reason, parse_retry_after(response.headers.get("Retry-After")))
    if status in _NO_RECEIVER:
        return Answer(Verdict.REFUSED, f"{reason}: {endpoint.no_receiver(request.signal)}")
    if status in _REFUSED or status in _REDIRECTION:
        advice = _REFUSED.get(status) or f"redirected{_public_location(str(response.headers.get('Location', '')))}"
        return Answer(Verdict.REFUSED, f"{reason}: {advice}")
    text = error_text(body)
    reason = f"{reason}: {text}"
    if status == _TOO_LARGE:
        return Answer(Verdict.TOO_LARGE, reason)
    failed = status >= _SERVER_ERROR and not TOO_OLD.search(text)
    rejected = 0 if failed or not complete else count_rejected(request, text)
    return Answer(Verdict.FAILED if failed else Verdict.REJECTED, reason, rejected=rejected)


def _public_location(location: str) -> str:
    """Return the public part of a redirection: an address without user, password and query, or a path without query."""
    try:
        shown = parse_address(location.partition("#")[0]).public
    except AddressError:
        shown = re.split("[?#@]", location)[0] if re.match("/(?!/)", location) else ""
    return f" to {shown!r}, set this address as the endpoint" if shown else ", set its target as the endpoint"
