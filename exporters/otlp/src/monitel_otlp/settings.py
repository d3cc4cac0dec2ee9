"""What arguments and the standard OTEL_* variables say about the pipeline."""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from monitel_otlp.request import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("monitel.otlp")

HTTP, GRPC = "http/protobuf", "grpc"
_SPOOL_BYTES = 1 << 30
_DEFAULT_INTERVAL = 5.0
_pipelines = count(1)
_NOWHERE = "http://localhost"  # for encoders whose requests are handed over, never sent as they are


@dataclass(frozen=True)
class Endpoint:
    """Where one signal goes.

    Attributes:
        url: The full address over HTTP, host and port over gRPC.
        protocol: ``"http/protobuf"`` or ``"grpc"``.
        source: ``"argument"``, or the variable that said so.
    """

    url: str
    protocol: str
    source: str


@dataclass(frozen=True)
class Settings:
    """The effective configuration.

    Attributes:
        endpoints: Where each signal goes; one that is missing here has no endpoint anywhere and is offline.
        headers: Headers given as an argument; they never appear in a repr.
        interval: Seconds between two rounds of delivery.
        spool_root: The folder in which each process's spool has a folder of its own.
        spool_dir: This process's.
    """

    endpoints: dict[str, Endpoint]
    headers: dict[str, str] = field(repr=False)
    interval: float
    spool_root: Path
    spool_dir: Path

    @property
    def offline(self) -> bool:
        """No signal has an endpoint."""
        return not self.endpoints

    @property
    def spool_limit_bytes(self) -> int | None:
        """None when offline: there is nowhere else to go."""
        return None if self.offline else _SPOOL_BYTES

    def encoder_arguments(self, signal: str) -> dict[str, Any]:
        """Arguments for the official exporter of a signal, which encodes, and over HTTP prepares the requests."""
        endpoint = self.endpoints.get(signal)
        if endpoint is None or endpoint.protocol == GRPC:
            return {"endpoint": _NOWHERE}
        given = endpoint.url if endpoint.source == "argument" else None  # else it reads the variables itself
        return {"endpoint": given, "headers": self.headers or None}

    def for_this_process(self) -> Settings:
        """The same with a spool folder for the process that asks: a forked child has its own."""
        return replace(self, spool_dir=_own_folder(self.spool_root))


def resolve(
    endpoint: str | None = None,
    headers: Mapping[str, str] | None = None,
    export_interval: float | None = None,
    spool_dir: str | os.PathLike[str] | None = None,
    protocol: str | None = None,
) -> Settings:
    """Check the arguments, and fill in from the environment what was left out.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An endpoint that is no base URL, an interval that is not positive, an unknown protocol.
    """
    if protocol not in {None, HTTP, GRPC}:
        raise ValueError(f"protocol must be {HTTP!r} or {GRPC!r}, got {protocol!r}")
    endpoints = _endpoints(endpoint, protocol)
    if spool_dir is not None:
        root = Path(spool_dir)
    elif endpoints:
        root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "monitel"
    else:
        root = Path("monitel-runs")
    return Settings(endpoints, _headers(headers), _interval(export_interval), root, _own_folder(root))


def variable(name: str, signal: str) -> tuple[str, str] | None:
    """``OTEL_EXPORTER_OTLP_<name>`` for a signal, its own one before the general one: which one, and its value."""
    for full in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
        if value := os.environ.get(full, "").strip():
            return full, value
    return None


def _own_folder(root: Path) -> Path:
    """A name that no other pipeline has, of this process or another."""
    return (root / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_pipelines)}").absolute()


def _endpoints(endpoint: str | None, protocol: str | None) -> dict[str, Endpoint]:
    found: dict[str, Endpoint] = {}
    for signal in SIGNALS:
        spoken = protocol or _protocol(signal)
        if endpoint is not None:
            base = _base_url(endpoint)
            found[signal] = Endpoint(base if spoken == GRPC else f"{base}/v1/{signal}", spoken, "argument")
        elif (named := variable("ENDPOINT", signal)) is not None:
            source, url = named
            if spoken == GRPC:
                url = _with_scheme(url, signal)
            elif source == "OTEL_EXPORTER_OTLP_ENDPOINT":
                url = f"{url.rstrip('/')}/v1/{signal}"
            if problem := _problem(url):
                _log.warning("%s=%r is no URL (%s): %s go to the spool", source, named[1], problem, signal)
            else:
                found[signal] = Endpoint(url, spoken, source)
    return found


def _protocol(signal: str) -> str:
    named = variable("PROTOCOL", signal)
    if named is None or named[1] == HTTP:
        return HTTP
    if named[1] == GRPC:
        return GRPC
    _log.warning("%s=%r is neither %r nor %r: %s it is", *named, HTTP, GRPC, HTTP)
    return HTTP


def _with_scheme(url: str, signal: str) -> str:
    """A gRPC address may come without a scheme; OTEL_EXPORTER_OTLP_INSECURE then says which is meant."""
    if "://" in url:
        return url
    insecure = variable("INSECURE", signal)
    return f"http://{url}" if insecure is not None and insecure[1].lower() == "true" else f"https://{url}"


def _base_url(endpoint: object) -> str:
    if not isinstance(endpoint, str):
        raise TypeError(f"endpoint must be a str such as 'http://localhost:4318', got {type(endpoint).__qualname__}")
    if problem := _problem(endpoint):
        raise ValueError(f"endpoint must be a base URL such as 'http://localhost:4318', got {endpoint!r}: {problem}")
    return endpoint.rstrip("/")


def _problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
        parts.port  # noqa: B018  reading it checks it
    except ValueError as error:
        return str(error)
    if parts.scheme not in {"http", "https"}:
        return "it must begin with http:// or https://"
    return None if host else "it names no host"


def _headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers must map str to str; the one named {name!r:.40} does not")
    return dict(headers or {})


def _interval(export_interval: float | None) -> float:
    if export_interval is not None:
        if not isinstance(export_interval, (int, float)) or isinstance(export_interval, bool):
            raise TypeError(f"export_interval must be seconds, got {type(export_interval).__qualname__}")
        if not 0 < export_interval < math.inf:
            raise ValueError(f"export_interval must be a positive number of seconds, got {export_interval!r}")
        return float(export_interval)
    given = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    if not given:
        return _DEFAULT_INTERVAL
    try:
        milliseconds = float(given)
    except ValueError:
        milliseconds = math.nan
    if not 0 < milliseconds < math.inf:
        _log.warning(
            "OTEL_METRIC_EXPORT_INTERVAL=%r is no positive number of milliseconds: %g s it is", given, _DEFAULT_INTERVAL
        )
        return _DEFAULT_INTERVAL
    return milliseconds / 1000
