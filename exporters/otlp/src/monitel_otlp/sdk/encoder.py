"""The official exporters, which believe that they send: the finished request is taken from them."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData
from requests.adapters import BaseAdapter

from monitel_otlp.sdk._compat import OTLPLogExporter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel_otlp.config.settings import Endpoint

_OFFICIAL: dict[str, type[Any]] = {
    "metrics": OTLPMetricExporter,
    "logs": OTLPLogExporter,
    "traces": OTLPSpanExporter,
}


@dataclass
class Route:
    """How requests of one signal are sent: what the official exporter made of arguments and variables.

    It holds the headers, tokens among them, so it stays in memory, and its repr shows the address alone.
    """

    url: str
    prepared: requests.PreparedRequest = field(repr=False)
    options: dict[str, Any] = field(repr=False)


class Encoder:
    """An official exporter, of which only what it would send is wanted: it encodes, frames and finds the way.

    It is told the address, headers and timeout, and reads the variables for certificates itself. Compressed is what
    is sent, not what is kept.

    Args:
        signal: ``"metrics"``, ``"logs"`` or ``"traces"``.
        endpoint: Where to; None where it is not to find the way over HTTP.
    """

    def __init__(self, signal: str, endpoint: Endpoint | None = None) -> None:
        arguments: dict[str, Any] = {"endpoint": "http://localhost", "headers": {}, "timeout": 1.0}
        if endpoint is not None:
            arguments = {"endpoint": endpoint.url, "headers": endpoint.headers, "timeout": endpoint.timeout}
        self._handover = _HandOver()
        session = requests.Session()
        session.mount("http://", self._handover)
        session.mount("https://", self._handover)
        with headers_unsaid():
            self.exporter: Any = _OFFICIAL[signal](
                session=session, compression=Compression.NoCompression, **arguments
            )
        self._lock = Lock()  # an application may have several readers, and processors, with exporters of ours

    def encode(self, batch: Any) -> bytes | None:
        """The body of the request; None when it could not be encoded."""
        with self._lock:
            self._handover.request = None
            self.exporter.export(batch)
            request = self._handover.request
        return None if request is None else cast("bytes", request.body)

    def route(self) -> Route | None:
        """How it would send; None when it could not."""
        self.encode(MetricsData([]) if isinstance(self.exporter, MetricExporter) else [])
        request = self._handover.request
        return None if request is None else Route(public_url(str(request.url)), request, self._handover.options)


class _HandOver(BaseAdapter):
    """A transport for ``requests`` that keeps the request instead of sending it, and answers 200 at once."""

    def __init__(self) -> None:
        super().__init__()
        self.request: requests.PreparedRequest | None = None
        self.options: dict[str, Any] = {}

    def send(self, request: requests.PreparedRequest, *_positional: Any, **options: Any) -> requests.Response:
        """Keep the request; the arguments are those of ``requests``."""
        self.request, self.options = request, options
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
