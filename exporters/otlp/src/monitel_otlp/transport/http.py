"""Transport over HTTP/1.1: a connection, perhaps through a proxy, with one deadline and one limit of bytes."""

from __future__ import annotations

import base64
import gzip
import io
import os
import re
import selectors
import socket
import ssl
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from http.client import BadStatusLine, HTTPException, HTTPResponse, RemoteDisconnected
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import getproxies

from monitel_otlp.config.endpoint import Address, AddressError, Certificates, Endpoint, parse_address, parse_proxy
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
    error_text,
    parse_retry_after,
    setting_to_change,
    tls_failed,
)

if TYPE_CHECKING:
    from monitel_otlp.messages.request import Request

_BUNDLES = "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"  # for whoever does not set OpenTelemetry's variable
_SLICE = 1 << 18  # bytes per send call
_INTERIM = {*range(100, 200)} - {101}
_Selector: Any = getattr(selectors, "PollSelector", selectors.SelectSelector)  # takes no descriptor
_COMPRESS: dict[str, Callable[[bytes], bytes]] = {"none": bytes, "gzip": gzip.compress, "deflate": zlib.compress}
_FRAMING = {"content-type", "content-length", "content-encoding", "transfer-encoding", "connection", "accept-encoding"}
_SAFE_IN_TARGET = "!#$%&'()*+,/:;=?@[]~"  # in addition to letters, digits and _.-
_SUCCESS, _REDIRECTION = range(200, 300), range(300, 400)
_CREDENTIALS_REQUIRED, _TOO_LARGE, _FAILED = 407, 413, 500
_OF_CONTENT = {400, 413, 422, 500}  # any other status is not about the items: of a proxy, a limiter, a full disk
_RETRY = {408, 429, 502, 503, 504}
_NO_RECEIVER = {404, 405}
# Answers of backends to data that is too old; Prometheus sometimes sends them with status 500. A retry cannot help.
_TOO_OLD = re.compile("out[ -]of[ -](order|bounds)|too[ -]old", re.IGNORECASE)


class TooMuchError(OSError):
    """Raised if the peer sends more than :data:`RESPONSE_BYTES`."""


class Wire(io.RawIOBase):
    """A connected socket. Each call waits at most for the rest of the attempt, so a slow peer cannot prolong it."""

    def __init__(self, sock: Any, deadline: float) -> None:
        super().__init__()
        self._sock = sock
        self.begin(deadline)

    def begin(self, deadline: float) -> None:
        self._deadline = deadline
        self._left_bytes = RESPONSE_BYTES

    def sendall(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            self._arm()
            view = view[self._sock.send(view[:_SLICE]) :]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._left_bytes]
        if not view:
            raise TooMuchError(f"more than {RESPONSE_BYTES} bytes")
        self._arm()
        count: int = self._sock.recv_into(view)
        self._left_bytes -= count
        return count

    def read_response(self, method: str) -> HTTPResponse:
        """Read status line and headers of a response. Interim responses are skipped."""
        reader = _Reader(self)
        source: Any = SimpleNamespace(makefile=lambda *_mode: reader)
        while True:
            response = HTTPResponse(source, debuglevel=0, method=method)
            response.begin()
            if response.status not in _INTERIM:
                return response

    def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        self._arm()
        self._sock = context.wrap_socket(self._sock, server_hostname=host)

    def is_stale(self) -> bool:
        """Return True if the peer has closed an idle connection, or has sent unexpected data."""
        with _Selector() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            return bool(selector.select(0))

    def fileno(self) -> int:
        return int(self._sock.fileno())

    def close(self) -> None:
        with suppress(OSError):
            self._sock.close()
        super().close()

    def _arm(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)


class _Reader(io.BufferedReader):
    """A reader that a response cannot close, because its buffer may hold the next response of the attempt."""

    def close(self) -> None:
        pass

    def flush(self) -> None:
        pass  # a response that is garbage may be finalized after the connection is closed


def _connect(first: Address, deadline: float) -> Wire:
    """Connect to the first address of a host that accepts, or raise the last error. They share the remaining time.

    A lookup of a name cannot be interrupted: a name server that hangs holds up the thread of this signal.
    """
    error: OSError = TimeoutError("timed out")
    found = socket.getaddrinfo(first.host, first.effective_port, type=socket.SOCK_STREAM)
    for index, (family, kind, protocol, _, address) in enumerate(found):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left / (len(found) - index))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
            return Wire(sock, deadline)
        except OSError as failed:
            error = failed
            sock.close()
    raise error


def _open_tunnel(wire: Wire, address: Address, proxy: Address) -> None:
    target = address.netloc if address.port else f"{address.netloc}:{address.effective_port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.credentials is not None:
        lines.append(f"Proxy-Authorization: {basic(*proxy.credentials)}")
    wire.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    status = wire.read_response("CONNECT").status
    if status == _CREDENTIALS_REQUIRED:
        raise FailedError(f"proxy {proxy.public}: {ADVICE[status]}")
    if status not in _SUCCESS:
        raise FailedError(f"proxy {proxy.public}: HTTP {status}", Consequence.RETRY)


def _proxy_of(address: Address) -> Address | None:
    if not getproxies():
        return None
    from requests.utils import get_environ_proxies, select_proxy  # late: it takes 0.1 s

    text = (select_proxy(address.public, get_environ_proxies(address.public)) or "").strip()
    if not text:
        return None
    if re.match("socks", text, re.IGNORECASE):
        raise AddressError("SOCKS proxies are not supported")
    proxy = parse_proxy(text)
    if address.scheme == proxy.scheme == "https":
        raise AddressError("TLS inside TLS to a proxy is not supported: give its http:// address")
    return proxy


def basic(user: str, password: str) -> str:
    pair = f"{user}:{password}"
    try:
        content = pair.encode("latin-1")
    except UnicodeEncodeError:
        content = pair.encode(errors="surrogateescape")
    return f"Basic {base64.b64encode(content).decode()}"


def tls_context(certificates: Certificates, *bundles: str) -> ssl.SSLContext:
    """Return the TLS context of a connection, or raise FailedError with the file that cannot be used.

    The files are read each time, so renewed certificates are used. ``bundles`` are variables of other authorities.
    """
    from requests.utils import DEFAULT_CA_BUNDLE_PATH  # late, as above

    chain, key, variable = certificates.client_certificate, certificates.client_key, AUTHORITY
    if (path := certificates.certificate) is None:
        found = next(filter(os.environ.get, bundles), None)
        variable, path = (AUTHORITY, DEFAULT_CA_BUNDLE_PATH) if found is None else (found, os.environ[found])

    def refuse() -> str:  # never prompt
        raise FailedError(f"check {variable}: {path}: a key with a password is not supported")

    try:
        is_folder = os.path.isdir(path)  # noqa: PTH112  Path.is_dir() raises without permission
        context = ssl.create_default_context(capath=path if is_folder else None, cafile=None if is_folder else path)
        if chain is not None:
            variable = f"{CLIENT} and _CLIENT_KEY"
            for path in filter(None, (chain, key)):
                open(path, "rb").close()  # noqa: PTH123  an error of OpenSSL does not have the file
            path = " and ".join(filter(None, (chain, key)))
            context.load_cert_chain(chain, key, password=refuse)
    except (OSError, ValueError) as error:
        is_content = isinstance(error, ssl.SSLError) and not error.reason
        why = "no certificate with its key in PEM" if is_content else describe(error)
        raise FailedError(f"check {variable}: {path}: {why}") from None
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(["http/1.1"])
    return context


class HttpTransport(Transport):
    """Sends over HTTP/1.1, on a connection that is kept open, directly or through a proxy.

    Encrypted data go through a tunnel of the proxy.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._wire: Wire | None = None
        self._problem = ""  # that configure() must not fail with
        try:
            self.proxy = _proxy_of(endpoint.address)
        except Exception as error:  # it may be raised in requests
            why = str(error) if isinstance(error, AddressError) else describe(error)
            self._problem = f"the proxy's address (check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY) cannot be used: {why}"
        self._head = Secret(_head(endpoint, self.proxy))

    def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _attempt(self, request: Request, timeout: float) -> Answer:
        deadline = time.monotonic() + timeout
        if self._problem:
            raise FailedError(self._problem)
        compression = self._endpoint.compression
        body = _COMPRESS[compression](request.body)
        coding = "" if compression == "none" else f"Content-Encoding: {compression}\r\n"
        head = self._head.reveal() + f"{coding}Content-Length: {len(body)}\r\n\r\n".encode()
        wire, self._wire = self._wire, None  # it is not kept while it is used
        is_sent, is_new = None, True  # None: there is no connection
        try:
            if wire is not None and wire.is_stale():
                wire.close()
                wire = None
            is_new = wire is None
            if wire is None:
                wire = self._open(deadline)
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
        except FailedError:
            raise
        except Exception as error:
            answer = _failed(error, self._endpoint.address, self.proxy, is_sent=is_sent)
            return replace(answer, closed=isinstance(error, (ConnectionError, ssl.SSLEOFError)) and not is_new)
        finally:
            if wire is not None and self._wire is None:
                wire.close()

    def _open(self, deadline: float) -> Wire:
        address, proxy, certificates = self._endpoint.address, self.proxy, self._endpoint.certificates
        first = proxy or address
        wire = _connect(first, deadline)
        try:
            if first.scheme == "https":
                wire.encrypt(tls_context(certificates, *_BUNDLES), first.host)
            if proxy is not None and address.scheme == "https":
                _open_tunnel(wire, address, proxy)
                wire.encrypt(tls_context(certificates, *_BUNDLES), address.host)
        except BaseException:
            wire.close()
            raise
        return wire


def _head(endpoint: Endpoint, proxy: Address | None) -> bytes:
    """Return the constant part of a request: request line and headers, by names in lower case."""
    address, query = endpoint.address, endpoint.address.query.reveal()
    target = quote((address.path or "/") + (f"?{query}" if query else ""), safe=_SAFE_IN_TARGET)
    asked = {name.lower(): value.reveal() for name, value in endpoint.headers.items()}
    headers = {"host": address.netloc, "user-agent": USER_AGENT, "accept": "*/*"}
    headers |= {name: value for name, value in asked.items() if name not in _FRAMING}
    if address.credentials is not None:  # they come first
        headers["authorization"] = basic(*address.credentials)
    if proxy is not None and address.scheme == "http":
        target = f"{address.scheme}://{address.netloc}{target}"
        if proxy.credentials is not None:
            headers["proxy-authorization"] = basic(*proxy.credentials)
    headers |= {"content-type": "application/x-protobuf", "accept-encoding": "identity", "connection": "keep-alive"}
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), ""]
    return "\r\n".join(lines).encode("latin-1")


def _body(response: HTTPResponse) -> tuple[bytes, bool]:
    """Return the body, as far as it can be read, and whether it is complete."""
    found, length = bytearray(), response.length
    with suppress(OSError, HTTPException, ValueError):  # the status counts, even if the body is broken or too long
        while piece := response.read1():
            found += piece
        return bytes(found), length in {None, len(found)}
    return bytes(found), False


def _failed(error: Exception, address: Address, proxy: Address | None, *, is_sent: bool | None) -> Answer:
    """Return the answer to an attempt without a response; ``is_sent`` is None if there was no connection."""
    if isinstance(error, ssl.SSLError):
        return _tls(error, is_sent=bool(is_sent))
    reason = describe(error)
    if isinstance(error, socket.gaierror):
        reason = f"cannot resolve {(proxy or address).host}: {error.strerror}"
    elif isinstance(error, TimeoutError) and is_sent is None:
        reason = "no connection in time"
    elif isinstance(error, TooMuchError):
        reason = f"the answer is too long: {error}"
    elif isinstance(error, RemoteDisconnected):
        reason = f"{reason}: the connection was closed without an answer"
    elif isinstance(error, BadStatusLine):
        reason = f"the answer is not HTTP: {error!s:.80}"
    prefix = "" if proxy is None or is_sent else f"proxy {proxy.public}: "
    return Answer(Consequence.RETRY, f"{prefix}{reason}", answered=not is_sent)


def _tls(error: ssl.SSLError, *, is_sent: bool) -> Answer:
    cause = describe(error)
    if isinstance(error, ssl.SSLEOFError):  # the backend has gone, or it requires a client certificate
        reason = f"TLS connection closed ({cause}); if this persists, check {CLIENT}"
        return Answer(Consequence.RETRY, reason, answered=not is_sent)
    if isinstance(error, ssl.SSLCertVerificationError):
        cause = f"{cause}: {error.verify_message}"
    of_client = "ALERT" in cause and ("CERTIFICATE" in cause or "UNKNOWN_CA" in cause)  # the peer has refused it
    return tls_failed(cause, CLIENT if of_client else AUTHORITY)


def _answer(request: Request, response: HTTPResponse, body: bytes, endpoint: Endpoint, *, is_complete: bool) -> Answer:
    status = response.status
    reason = f"HTTP {status}"
    if status in _SUCCESS:
        return delivered(body)
    text = error_text(body)
    if status in _RETRY:
        reason = f"{reason}: {text}" if body else reason
        return Answer(Consequence.RETRY, reason, parse_retry_after(response.headers.get("Retry-After")))
    advice = ADVICE.get(status) or setting_to_change(text)
    if status in _NO_RECEIVER:
        advice = endpoint.no_receiver(request.signal)
    elif status in _REDIRECTION:
        # The address of all signals is a base URL, to which this is appended.
        suffix = "" if request.signal.upper() in endpoint.sources["endpoint"] else f"/v1/{request.signal}"
        advice = f"redirected{_public_location(str(response.headers.get('Location', '')), suffix)}"
    elif advice is None and status not in _OF_CONTENT:
        advice = text
    if advice is not None:
        return Answer(Consequence.REFUSED, f"{reason}: {advice}")
    reason = f"{reason}: {text}"
    if status == _TOO_LARGE:
        return Answer(Consequence.TOO_LARGE, reason)
    failed = status == _FAILED and not _TOO_OLD.search(text)
    rejected = count_rejected(request, text) if is_complete and not failed else 0
    return Answer(Consequence.FAILED if failed else Consequence.REJECTED, reason, rejected=rejected)


def _public_location(location: str, suffix: str) -> str:
    """Return the target of a redirection, without user, password, query and a suffix."""
    try:
        shown = parse_address(location.partition("#")[0]).public.removesuffix(suffix)
    except AddressError:
        return ", set its target as the endpoint"
    return f" to {shown!r}, set this address as the endpoint"
