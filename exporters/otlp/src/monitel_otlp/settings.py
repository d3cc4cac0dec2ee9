"""What arguments and the standard OTEL_* variables say about the pipeline."""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from monitel_otlp.request import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("monitel.otlp")

SPOOL_BYTES = 1 << 30
_DEFAULT_INTERVAL = 5.0


@dataclass(frozen=True)
class Settings:
    """The effective configuration.

    Attributes:
        endpoints: For each signal that is to be sent, the URL given as an argument, or None where the variables of
            the official exporters say it. A signal that is missing here has no endpoint anywhere: it is offline.
        headers: Headers given as an argument; they never appear in a repr.
        interval: Seconds between two rounds of delivery.
        spool_dir: The folder for this process's spool.
        spool_limit_bytes: None when offline: there is nowhere else to go.
    """

    endpoints: dict[str, str | None]
    headers: dict[str, str] = field(repr=False)
    interval: float
    spool_dir: Path
    spool_limit_bytes: int | None

    @property
    def offline(self) -> bool:
        """No signal has an endpoint."""
        return not self.endpoints

    def exporter_arguments(self, signal: str) -> dict[str, Any]:
        """Arguments for the official exporter of a signal."""
        return {"endpoint": self.endpoints.get(signal), "headers": self.headers or None}


def resolve(
    endpoint: str | None,
    headers: Mapping[str, str] | None,
    export_interval: float | None,
    spool_dir: str | os.PathLike[str] | None,
) -> Settings:
    """Check the arguments, and fill in from the environment what was left out.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An endpoint that is no base URL, an interval that is not positive.
    """
    endpoints = _endpoints(endpoint)
    own_folder = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    if spool_dir is not None:
        folder = Path(spool_dir)
    elif endpoints:
        folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "monitel"
    else:
        folder = Path("monitel-runs")
    return Settings(
        endpoints,
        _headers(headers),
        _interval(export_interval),
        (folder / own_folder).absolute(),
        SPOOL_BYTES if endpoints else None,
    )


def base_url(endpoint: object) -> str:
    """An endpoint given as an argument, checked, without a slash at its end.

    Raises:
        TypeError: Not a str.
        ValueError: Not an http or https URL with a host.
    """
    if not isinstance(endpoint, str):
        raise TypeError(f"endpoint must be a str such as 'http://localhost:4318', got {type(endpoint).__qualname__}")
    problem = _problem(endpoint)
    if problem:
        raise ValueError(f"endpoint must be a base URL such as 'http://localhost:4318', got {endpoint!r}: {problem}")
    return endpoint.rstrip("/")


def _endpoints(endpoint: str | None) -> dict[str, str | None]:
    if endpoint is not None:
        base = base_url(endpoint)
        return {signal: f"{base}/v1/{signal}" for signal in SIGNALS}
    found: dict[str, str | None] = {}
    for signal in SIGNALS:
        variables = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        named = next((name for name in variables if os.environ.get(name)), None)
        if named is None:
            continue
        problem = _problem(os.environ[named])
        if problem:
            _log.warning("%s=%r is no URL (%s): %s go to the spool", named, os.environ[named], problem, signal)
        else:
            found[signal] = None
    return found


def _problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        port_is_a_number = parts.port is None or parts.port > 0
    except ValueError as error:
        return str(error)
    if parts.scheme not in {"http", "https"}:
        return "it must begin with http:// or https://"
    if not parts.hostname or not port_is_a_number:
        return "it names no host"
    return None


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
