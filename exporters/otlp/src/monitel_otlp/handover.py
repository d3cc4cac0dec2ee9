"""Where the official exporters believe they send: the finished request is taken from them there."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import BaseAdapter

from monitel_otlp.request import FrozenRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass
class Route:
    """How requests of one signal are sent: what the official exporter made of arguments and variables.

    It holds the headers, tokens among them, so it stays in memory, and its repr shows the address alone.
    """

    url: str
    prepared: requests.PreparedRequest = field(repr=False)
    options: dict[str, Any] = field(repr=False)


class HandOver(BaseAdapter):
    """A transport for ``requests`` that takes requests instead of sending them, and answers 200 at once.

    Args:
        signal: The signal of the exporter that has it.
        put: Gets each :class:`FrozenRequest`.

    Attributes:
        items: What is being encoded, in windows, records or spans; None has the next request only teach the route.
        route: How to send; None until the exporter has handed its first request over.
    """

    def __init__(self, signal: str, put: Callable[[FrozenRequest], None]) -> None:
        super().__init__()
        self.items: int | None = None
        self.route: Route | None = None
        self._idle = False
        self._signal = signal
        self._put = put

    def session(self) -> requests.Session:
        """A session for an official exporter, with this in place of the network."""
        session = requests.Session()
        session.mount("http://", self)
        session.mount("https://", self)
        return session

    @contextmanager
    def of(self, items: int, *, idle: bool = False) -> Iterator[None]:
        """What is handed over inside ``with`` holds so many windows, records or spans; see :class:`FrozenRequest`."""
        self.items = items
        self._idle = idle
        try:
            yield
        finally:
            self.items = None

    def send(  # noqa: PLR0917  requests' signature
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Take the request; the arguments are those of ``requests``."""
        options = {"stream": stream, "timeout": timeout, "verify": verify, "cert": cert, "proxies": proxies}
        if self.items is not None:
            body = _body(request)
            self._put(FrozenRequest(self._signal, body, self.items, time.time_ns(), self._idle))
        else:
            self.route = Route(public_url(str(request.url)), request, options)
        response = requests.Response()
        response.status_code = 200
        response.url = str(request.url)
        response.request = request
        return response

    def close(self) -> None:
        """Nothing is held here."""


@contextmanager
def headers_unsaid() -> Iterator[None]:
    """Keep OpenTelemetry from logging a malformed header variable, with the token that it may hold."""
    parser = logging.getLogger("opentelemetry.util.re")
    parser.addFilter(_nothing)
    try:
        yield
    finally:
        parser.removeFilter(_nothing)


def _nothing(_record: logging.LogRecord) -> bool:
    return False


def public_url(url: str) -> str:
    """An address without what may be secret in it: user, password and query."""
    scheme, separator, rest = url.rpartition("://")  # by hand: it may be malformed, and is told for that
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _body(request: requests.PreparedRequest) -> bytes:
    if not isinstance(request.body, bytes):
        raise TypeError(f"the OTLP exporter was expected to hand over bytes, got {type(request.body).__qualname__}")
    return request.body
