"""A connection to a backend: its name, its proxy and TLS, with one deadline and one limit of bytes for an attempt."""

from __future__ import annotations

import base64
import io
import os
import re
import selectors
import socket
import ssl
import time
from contextlib import suppress
from http.client import HTTPResponse
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies

from monitel.process.os_threads import Empty, SimpleQueue
from monitel.process.worker import Worker
from monitel_otlp.config.endpoint import Address, AddressError, parse_address
from monitel_otlp.transport.answer import describe

if TYPE_CHECKING:
    from monitel_otlp.config.endpoint import Certificates, Endpoint

    #: Result of ``getaddrinfo``: family, type, protocol, canonical name, socket address.
    Found = list[tuple[Any, Any, int, str, tuple[Any, ...]]]

RECEIVED_BYTES = 131_072  # limit per attempt for status lines, headers and body; http.client accepts megabytes
_SLICE = 1 << 18  # bytes per send call
_FRESH_SHARE = 0.25  # share of the remaining time for a fresh address if another one is known
AUTHORITY, CLIENT = "OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"
_INTERIM = {*range(100, 200)} - {101}
_SUCCESS = range(200, 300)
_Selector: Any = getattr(selectors, "PollSelector", selectors.SelectSelector)  # takes no descriptor


class CertificateFileError(Exception):
    """Raised for a certificate or key that cannot be loaded."""


class ProxyRefusedError(Exception):
    """Raised for a proxy that refuses to open a tunnel. Its argument is the HTTP status."""


class TooMuchError(OSError):
    """Raised if the peer sends more than :data:`RECEIVED_BYTES`."""


class Wire(io.RawIOBase):
    """A connected socket. Each call waits at most for the rest of the attempt, so a slow peer cannot prolong it."""

    def __init__(self, sock: Any, deadline: float) -> None:
        super().__init__()
        self._sock = sock
        self.begin(deadline)

    def begin(self, deadline: float) -> None:
        """Begin an attempt."""
        self._deadline = deadline
        self._left_bytes = RECEIVED_BYTES

    def sendall(self, content: bytes) -> None:
        """Send everything, or raise TimeoutError."""
        view = memoryview(content)
        while view:
            self._arm()
            view = view[self._sock.send(view[:_SLICE]) :]

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive some bytes; 0 at the end."""
        view = memoryview(buffer)[: self._left_bytes]
        if not view:
            raise TooMuchError(f"more than {RECEIVED_BYTES} bytes")
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
        """Make the TLS handshake."""
        self._arm()
        self._sock = context.wrap_socket(self._sock, server_hostname=host)

    def is_stale(self) -> bool:
        """Return True if the peer has closed an idle connection, or has sent unexpected data."""
        with _Selector() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            return bool(selector.select(0))

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        number: int = self._sock.fileno()
        return number

    def close(self) -> None:
        """Close the connection. Idempotent."""
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


def connect(addresses: Found, deadline: float) -> Wire:
    """Connect to the first address that accepts, or raise the error of the last one. They share the remaining time."""
    error: OSError = TimeoutError("timed out")
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left / (len(addresses) - index))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
            return Wire(sock, deadline)
        except OSError as failed:
            error = failed
            sock.close()
    raise error


_known: dict[tuple[str, int], Found] = {}  # the last addresses of each host and port


class Resolver:
    """Resolves the name of a host by a deadline, in a daemon thread.

    A lookup cannot be interrupted: while it hangs, no other one begins. The last addresses that were found in this
    process are used while the name server is away. An IP address needs no thread.
    """

    def __init__(self, address: Address) -> None:
        self._key = address.host, address.effective_port
        self._is_name = address.is_name
        self._is_pending = False
        self._results: SimpleQueue[Found | Exception] = SimpleQueue()
        self._worker = Worker("monitel-resolver", self._resolve)
        if self._is_name:
            self._worker.start()  # now, because CPython starts no thread at exit

    def addresses(self, deadline: float) -> Found:
        """Return the addresses of the host, or raise ``socket.gaierror`` or TimeoutError."""
        if not self._is_name:
            return socket.getaddrinfo(*self._key, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        if not self._is_pending:
            self._is_pending = True
            if self._worker.start():
                self._worker.wake()
            else:
                self._resolve()
        known = _known.get(self._key)
        left = max(0.0, deadline - time.monotonic()) * (_FRESH_SHARE if known else 1)
        try:
            found = self._results.get(timeout=left)
        except Empty:
            found = TimeoutError("no answer from the name server in time")
        else:
            self._is_pending = False
        if not isinstance(found, Exception):
            _known[self._key] = found
            return found
        if known and (isinstance(found, TimeoutError) or getattr(found, "errno", None) == socket.EAI_AGAIN):
            return known
        raise found

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._worker.stop()

    def _resolve(self) -> None:
        try:
            self._results.put(socket.getaddrinfo(*self._key, type=socket.SOCK_STREAM))
        except Exception as error:
            self._results.put(error.with_traceback(None))


class Route:
    """The route to a backend: directly, or through a proxy, which only forwards encrypted data if it is a tunnel.

    Raises:
        AddressError: The address of the proxy is invalid. The message does not contain it.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.address = endpoint.address
        self.proxy = _proxy_of(endpoint.address)
        self.is_tunnelled = self.proxy is not None and self.address.scheme == "https"
        if self.proxy is not None and self.is_tunnelled and self.proxy.scheme == "https":
            raise AddressError("TLS inside TLS to a proxy is not supported: give its http:// address")
        self.first = self.proxy or self.address
        self.resolver = Resolver(self.first)
        self._certificates = endpoint.certificates

    def open(self, deadline: float) -> Wire:
        """Open a connection, or raise an OSError, CertificateFileError or ProxyRefusedError."""
        wire = connect(self.resolver.addresses(deadline), deadline)
        try:
            if self.first.scheme == "https":
                wire.encrypt(_context(self._certificates), self.first.host)
            if self.proxy is not None and self.is_tunnelled:
                target = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
                target = f"{target}:{self.address.effective_port}"
                lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
                if self.proxy.credentials is not None:
                    lines.append(f"Proxy-Authorization: {basic(*self.proxy.credentials)}")
                wire.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
                if (status := wire.read_response("CONNECT").status) not in _SUCCESS:
                    raise ProxyRefusedError(status)
                wire.encrypt(_context(self._certificates), self.address.host)
        except BaseException:
            wire.close()
            raise
        return wire


def _proxy_of(address: Address) -> Address | None:
    """Return the proxy for an address, from the environment; None if there is none."""
    if not getproxies():
        return None
    from requests.utils import get_environ_proxies, select_proxy  # late: it takes 0.1 s

    text = select_proxy(address.public, get_environ_proxies(address.public))
    if not text:
        return None
    if re.match("socks", text, re.IGNORECASE):
        raise AddressError("SOCKS proxies are not supported")
    return parse_address(text if re.match(r"[a-z][a-z0-9+.-]*://", text, re.IGNORECASE) else f"http://{text}")


def basic(user: str, password: str) -> str:
    """Return the value of an authorization header."""
    pair = f"{user}:{password}"
    try:
        content = pair.encode("latin-1")
    except UnicodeEncodeError:
        content = pair.encode(errors="surrogateescape")
    return f"Basic {base64.b64encode(content).decode()}"


def may_block(path: str | os.PathLike[str]) -> bool:
    """Return True for a FIFO or a device: to open it may wait forever, and it may have no end."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))  # noqa: PTH110, PTH112, PTH113  Path's raise


def _context(certificates: Certificates) -> ssl.SSLContext:
    """Return the TLS context of a connection. The files are read each time, so renewed certificates are used."""
    from requests.utils import DEFAULT_CA_BUNDLE_PATH  # late, as above

    bundles = (certificates.authority, os.environ.get("REQUESTS_CA_BUNDLE"), os.environ.get("CURL_CA_BUNDLE"))
    path = next(filter(None, bundles), DEFAULT_CA_BUNDLE_PATH)
    chain, key, variable = certificates.client_certificate, certificates.client_key, AUTHORITY
    try:
        if may_block(path):
            raise ValueError
        is_folder = os.path.isdir(path)  # noqa: PTH112  Path.is_dir() raises without permission
        context = ssl.create_default_context(capath=path if is_folder else None, cafile=None if is_folder else path)
        if chain is not None:
            variable, path = f"{CLIENT} and _CLIENT_KEY", chain
            if any(map(may_block, filter(None, (chain, key)))):
                raise ValueError
            context.load_cert_chain(chain, key, password=lambda: "")  # never prompt
    except (OSError, ValueError) as error:
        problem = f"check {variable}: {path}: {describe(error) if isinstance(error, OSError) else 'not a regular file'}"
    else:
        context.hostname_checks_common_name = False
        context.set_alpn_protocols(["http/1.1"])
        return context
    raise CertificateFileError(problem)
