"""Settings of a pipeline, from arguments, the standard OTEL_* variables and defaults, in this order."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from monitel.blackbox.record import SIGNALS
from monitel.blackbox.settings import BoxSettings, default_root
from monitel.variables import positive
from monitel_otlp.config.endpoint import Address, AddressError, Endpoint, parse_address
from monitel_otlp.config.environment import GRPC, HTTP, NO_GRPC, Environment, grpc_is_installed, is_header
from monitel_otlp.config.secret import Secret

_log = logging.getLogger("monitel.otlp")

_DEFAULT_INTERVAL = 5000  # milliseconds
_DEFAULT_IDLE_INTERVAL = 60.0
_LONGEST_INTERVAL = 86_400.0
_MILLISECONDS = positive("a number of milliseconds (at most one day)", below=_LONGEST_INTERVAL * 1000 + 1)
_PATH_OF_SIGNAL = re.compile(rf"/v1/({'|'.join(SIGNALS)})/*$")


@dataclass(frozen=True)
class Settings:
    """The effective configuration. A signal that is recorded and has no endpoint is offline."""

    endpoints: dict[str, Endpoint]
    interval: float  # seconds between two exports
    spool_root: Path  # holds the spool folder of each process
    distributions: str = "percentiles"
    problems: tuple[str, ...] = ()  # with variables, which have been logged
    box: BoxSettings = BoxSettings()  # noqa: RUF009  it is frozen
    idle_interval: float = 0.0  # seconds between two exports of instruments without windows; 0 for the interval
    off: frozenset[str] = frozenset()  # signals that are not recorded, by OTEL_<signal>_EXPORTER=none

    @property
    def mark(self) -> str:
        """A hash of the addresses, which ends the names of records with these endpoints; empty without endpoints."""
        addresses = "\n".join(f"{signal} {endpoint.public_url}" for signal, endpoint in sorted(self.endpoints.items()))
        return sha256(addresses.encode()).hexdigest()[:8] if addresses else ""

    @property
    def offline(self) -> list[str]:
        """The signals that are recorded and have no endpoint."""
        return [signal for signal in SIGNALS if signal not in self.endpoints and signal not in self.off]

    def for_forked_child(self) -> Settings:
        """Return the settings of a forked child, without gRPC, which does not survive a fork."""
        left = {signal: endpoint for signal, endpoint in self.endpoints.items() if endpoint.protocol != GRPC}
        if len(left) < len(self.endpoints):
            _log.warning("gRPC does not work in a forked process: its telemetry goes to %s", self.spool_root)
        return replace(self, endpoints=left)


def resolve(
    endpoint: str | None = None,
    headers: Mapping[str, str] | None = None,
    export_interval: float | None = None,
    spool_dir: str | os.PathLike[str] | None = None,
    protocol: str | None = None,
    *,
    distributions: str | None = None,
    black_box: BoxSettings | None = None,
) -> Settings:
    """Check the arguments, and read omitted settings from the environment. A wrong one is a TypeError or ValueError."""
    if protocol not in {None, HTTP, GRPC}:
        raise ValueError(f"protocol must be {HTTP!r} or {GRPC!r}, got {protocol!r}")
    if protocol == GRPC and not grpc_is_installed():
        raise ValueError(f"protocol={GRPC!r}: {NO_GRPC}")
    root = default_root() if spool_dir is None else Path(spool_dir)
    base = None if endpoint is None else _base_url(endpoint)
    own_headers = _headers(headers)
    environment = Environment()
    off = frozenset(signal for signal in SIGNALS if environment.exporters(signal) == ["none"])
    found = {signal: environment.endpoint(signal, base, own_headers, protocol) for signal in SIGNALS}
    endpoints = {signal: each for signal, each in found.items() if each is not None}
    interval, idle_interval = _intervals(export_interval, environment)
    return Settings(
        endpoints,
        interval,
        root.absolute(),
        distributions or _default_distributions(),
        tuple(environment.problems),
        BoxSettings() if black_box is None else black_box,
        idle_interval,
        off,
    )


def _default_distributions() -> str:
    """Return the form of distributions that the standard variable names.

    Exponential histograms are used only on request: a Prometheus that does not accept native histograms refuses every
    request that contains one.
    """
    named = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "").strip().lower()
    return "histogram" if named == "base2_exponential_bucket_histogram" else "percentiles"


def _base_url(endpoint: object) -> Address:
    if not isinstance(endpoint, str):
        raise TypeError(f"endpoint must be a str such as 'http://localhost:4318', got {type(endpoint).__qualname__}")
    problem = ""
    try:
        address = parse_address(endpoint)
    except AddressError as error:
        problem = str(error)
    else:
        if address.query.reveal() is not None:
            problem = "it has a query"
        elif _PATH_OF_SIGNAL.search(address.path):
            problem = "its path ends with /v1/..., which is appended anyway"
    if problem:
        raise ValueError(
            f"endpoint must be a base URL such as 'http://localhost:4318', but {problem} (the value is not shown, as "
            "it may hold a password)"
        )
    return replace(address, path=address.path.rstrip("/"))


def _headers(headers: Any) -> dict[str, Secret[str]]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping of names to values, got {type(headers).__qualname__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers must map str to str; the entry {name!r:.40} does not")
        if not is_header(name, value):
            raise ValueError(f"headers: {name!r:.40} or its value has a character that HTTP does not allow")
    return {name: Secret(value) for name, value in headers.items()}


def _intervals(export_interval: object, environment: Environment) -> tuple[float, float]:
    """Return the interval and the idle interval: who chooses an interval expects the values of instruments in it."""
    if export_interval is not None:
        if not isinstance(export_interval, (int, float)) or isinstance(export_interval, bool):
            raise TypeError(f"export_interval must be a number of seconds, got {type(export_interval).__qualname__}")
        if not 0 < export_interval <= _LONGEST_INTERVAL:
            raise ValueError(f"export_interval must be above 0 and at most one day (86400), got {export_interval!r}")
        return float(export_interval), 0.0
    name = "OTEL_METRIC_EXPORT_INTERVAL"
    found = name, os.environ.get(name, "").strip()
    milliseconds, source = environment.value(found, _MILLISECONDS, _DEFAULT_INTERVAL, " ms")
    return milliseconds / 1000, _DEFAULT_IDLE_INTERVAL if source == "default" else 0.0
