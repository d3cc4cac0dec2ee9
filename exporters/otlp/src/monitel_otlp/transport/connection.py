"""Connections to a backend: name resolution, proxy and TLS within one deadline."""

from __future__ import annotations

import base64
import re
import socket
import ssl
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import TYPE_CHECKING

from requests.utils import get_environ_proxies, select_proxy

from monitel_otlp.config.endpoint import Address, AddressError, parse_address
from monitel_otlp.transport.answer import Answer, Verdict, describe
from monitel_otlp.transport.tls import CertificateFileError, Certificates, tls_failed
from monitel_otlp.transport.wire import Wire, connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.transport.resolver import Found

    Lookup = Callable[[str, int, float], Found]

PROXY_VARIABLES = "HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
_CREDENTIALS_REQUIRED = 407
_INTERIM = range(100, 200)
_SWITCHING = 101
_SUCCESS = range(200, 300)


class ProxyRefusedError(Exception):
    """Raised for a proxy that refuses to open a tunnel.

    Args:
        status: The HTTP status of the proxy.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


@dataclass(frozen=True)
class Route:
    """The route to a backend.

    Attributes:
        address: The address of the backend.
        proxy: The address of the proxy, or None.
        certificates: The certificates for TLS.
        lookup: Resolves a host and a port by a deadline.
    """

    address: Address
    proxy: Address | None
    certificates: Certificates
    lookup: Lookup

    @property
    def first(self) -> Address:
        """The address to connect to: the proxy or, without a proxy, the backend."""
        return self.proxy or self.address

    @property
    def tunnelled(self) -> bool:
        """True if the proxy only forwards encrypted data."""
        return self.proxy is not None and self.address.scheme == "https"

    def open(self, deadline: float) -> Wire:
        """Open a connection.

        Args:
            deadline: Monotonic time limit.

        Raises:
            OSError: The connection failed; ``socket.gaierror``, TimeoutError and ``ssl.SSLError`` are errors of name
                resolution, the deadline and TLS.
            CertificateFileError: A certificate or key cannot be loaded.
            ProxyRefusedError: The proxy refuses to open a tunnel.
        """
        wire = connect(self.lookup(self.first.host, self.first.effective_port, deadline), deadline)
        try:
            if self.first.scheme == "https":
                wire.encrypt(self.certificates.context(), self.first.host)
            if self.proxy is not None and self.tunnelled:
                self._tunnel(wire, self.proxy)
                wire.encrypt(self.certificates.context(), self.address.host)
        except BaseException:
            wire.close()
            raise
        return wire

    def failed(self, error: Exception) -> Answer:
        """Return the answer to an attempt that failed because there is no connection."""
        answer = self._meaning(error)
        if self.proxy is None or isinstance(error, (ssl.SSLError, CertificateFileError)):
            return answer
        return Answer(answer.verdict, f"proxy {self.proxy.public}: {answer.reason}")

    def _meaning(self, error: Exception) -> Answer:
        if isinstance(error, ssl.SSLError):
            return tls_failed(error)
        if isinstance(error, CertificateFileError):
            return Answer(Verdict.REFUSED, str(error))
        if isinstance(error, ProxyRefusedError):
            denied = error.status == _CREDENTIALS_REQUIRED
            reason = f"it requires credentials: check {PROXY_VARIABLES}" if denied else f"HTTP {error.status}"
            return Answer(Verdict.REFUSED if denied else Verdict.RETRY, reason)
        if isinstance(error, TimeoutError):
            return Answer(Verdict.RETRY, "no connection in time")
        if isinstance(error, socket.gaierror):
            return Answer(Verdict.RETRY, f"cannot resolve {self.first.host}: {error.strerror}")
        return Answer(Verdict.RETRY, describe(error))

    def _tunnel(self, wire: Wire, proxy: Address) -> None:
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        target = f"{host}:{self.address.effective_port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if proxy.credentials is not None:
            lines.append(f"Proxy-Authorization: {basic(*proxy.credentials)}")
        wire.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        status = read_response(wire, "CONNECT").status
        if status not in _SUCCESS:
            raise ProxyRefusedError(status)


def read_response(wire: Wire, method: str) -> HTTPResponse:
    """Read status line and headers of a response. Interim responses are skipped.

    Raises:
        OSError: The connection broke, the deadline has passed, or too much was received.
        http.client.HTTPException: The response is not HTTP.
    """
    while True:
        response = HTTPResponse(wire, debuglevel=0, method=method)  # type: ignore[arg-type]  # it only calls makefile()
        response.begin()
        if response.status not in _INTERIM or response.status == _SWITCHING:
            return response


def proxy_of(address: Address) -> Address | None:
    """Return the proxy for an address, from the environment; None if there is none.

    Raises:
        AddressError: The address of the proxy is invalid. The message does not contain it.
    """
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
