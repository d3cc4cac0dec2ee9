"""What arguments and the standard OTEL_* variables say about the pipeline."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from monitel_otlp.sdk.encoder import public_url
from monitel_otlp.config.environment import GRPC, HTTP, Environment, is_header, positive, url_problem
from monitel_otlp.request import SIGNALS

_log = logging.getLogger("monitel.otlp")

DISTRIBUTIONS = ("percentiles", "histogram", "both")
SPOOL_BYTES = 1 << 30
_DEFAULT_INTERVAL = 5.0
_LONGEST_INTERVAL = 86_400.0
_PATH_OF_SIGNAL = re.compile(rf"/v1/({'|'.join(SIGNALS)})/*$")


@dataclass(frozen=True)
class Endpoint:
    """Where one signal goes, and how.

    Attributes:
        url: The full address over HTTP, host and port over gRPC.
        protocol: ``"http/protobuf"`` or ``"grpc"``.
        headers: Sent with each request.
        timeout: Seconds that an attempt may take.
        compression: ``"none"``, ``"gzip"`` or ``"deflate"``.
        sources: Who said so: for each of these the variable, ``"argument"`` or ``"default"``.
    """

    url: str = field(repr=False)  # a password may be in it
    protocol: str
    headers: dict[str, str] = field(repr=False)
    timeout: float
    compression: str
    sources: dict[str, str]


@dataclass(frozen=True)
class Settings:
    """The effective configuration.

    Attributes:
        endpoints: Where each signal goes; one that is missing here has no endpoint anywhere and is offline.
        interval: Seconds between two rounds of delivery.
        spool_root: The folder in which each process's spool has a folder of its own.
        spool_dir: This process's.
        distributions: What becomes of HISTOGRAM: one of ``DISTRIBUTIONS``.
        problems: What was wrong with variables, said already.
    """

    endpoints: dict[str, Endpoint]
    interval: float
    spool_root: Path
    spool_dir: Path
    distributions: str = "percentiles"
    problems: tuple[str, ...] = ()

    @property
    def offline(self) -> list[str]:
        """The signals that have no endpoint."""
        return [signal for signal in SIGNALS if signal not in self.endpoints]

    def for_forked_child(self) -> Settings:
        """The same for a forked child: a spool folder of its own, and no gRPC, whose core does not survive a fork."""
        left = {signal: endpoint for signal, endpoint in self.endpoints.items() if endpoint.protocol != GRPC}
        own = replace(self, endpoints=left, spool_dir=_own_folder(self.spool_root))
        if len(left) < len(self.endpoints):
            _log.warning("gRPC does not work in a forked process: its telemetry goes to %s", own.spool_dir)
        return own


def resolve(
    endpoint: str | None = None,
    headers: Mapping[str, str] | None = None,
    export_interval: float | None = None,
    spool_dir: str | os.PathLike[str] | None = None,
    protocol: str | None = None,
    *,
    distributions: str | None = None,
) -> Settings:
    """Check the arguments, and fill in from the environment what was left out.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An endpoint that is no base URL, an interval that is not positive, an unknown protocol or way of
            sending distributions, a file where the spool's folder is to be.
    """
    if protocol not in {None, HTTP, GRPC}:
        raise ValueError(f"protocol must be {HTTP!r} or {GRPC!r}, got {protocol!r}")
    if distributions not in {None, *DISTRIBUTIONS}:
        raise ValueError(f"distributions must be one of {', '.join(map(repr, DISTRIBUTIONS))}, got {distributions!r}")
    root = None if spool_dir is None else _folder(spool_dir)
    base = None if endpoint is None else _base_url(endpoint)
    own_headers = _headers(headers)
    environment = Environment()
    endpoints = {}
    for signal in SIGNALS:
        if (found := _endpoint(environment, signal, base, own_headers, protocol)) is not None:
            endpoints[signal] = found
    if root is None:
        root = (_state_folder() if endpoints else None) or Path("monitel-runs")
    interval = _interval(export_interval, environment)
    chosen = _distributions(distributions)
    return Settings(endpoints, interval, root, _own_folder(root), chosen, tuple(environment.problems))


def _distributions(given: str | None) -> str:
    """Exponential histograms only where it was said that the backend takes them.

    A Prometheus that does not take native histograms refuses all of a request in which there is one.
    """
    if given is not None:
        return given
    named = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "").strip().lower()
    return "histogram" if named == "base2_exponential_bucket_histogram" else "percentiles"


def _folder(spool_dir: object) -> Path:
    if not isinstance(spool_dir, (str, os.PathLike)):
        raise TypeError(f"spool_dir must be a path, got {type(spool_dir).__qualname__}")
    path = Path(spool_dir)
    for part in (path, *path.parents):
        if os.path.isfile(part):  # noqa: PTH113  Path's own raises where it may not look
            raise ValueError(f"spool_dir must be a folder, or a new one, got {str(path)!r}: {str(part)!r} is a file")
    return path


def _state_folder() -> Path | None:
    if given := os.environ.get("XDG_STATE_HOME"):
        return Path(given) / "monitel"
    try:
        return Path.home() / ".local" / "state" / "monitel"
    except RuntimeError:  # a container's user without a name, and no HOME
        return None


def _endpoint(
    environment: Environment, signal: str, base: str | None, headers: dict[str, str], protocol: str | None
) -> Endpoint | None:
    spoken, spoken_by = (protocol, "argument") if protocol else environment.protocol(signal)
    if base is not None:
        located: tuple[str, str] | None = (base if spoken == GRPC else f"{base}/v1/{signal}", "argument")
    else:
        located = environment.endpoint(signal, spoken)
    if located is None:
        return None
    url, url_by = located
    from_environment, headers_by = environment.headers(signal)
    timeout, timeout_by = environment.timeout(signal)
    compression, compression_by = environment.compression(signal)
    sources = {
        "endpoint": url_by,
        "protocol": spoken_by,
        "headers": "argument" if headers else headers_by,
        "timeout": timeout_by,
        "compression": compression_by,
    }
    return Endpoint(url, spoken, {**from_environment, **headers}, timeout, compression, sources)


def _own_folder(root: Path) -> Path:
    """A name that no other pipeline has: containers on a shared file system start in one second, with one pid."""
    return (root / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{token_hex(3)}").absolute()


def _base_url(endpoint: object) -> str:
    if not isinstance(endpoint, str):
        raise TypeError(f"endpoint must be a str such as 'http://localhost:4318', got {type(endpoint).__qualname__}")
    if problem := url_problem(endpoint) or _beyond_base(endpoint):
        shown = public_url(endpoint)
        raise ValueError(f"endpoint must be a base URL such as 'http://localhost:4318', got {shown!r}: {problem}")
    return endpoint.rstrip("/")


def _beyond_base(url: str) -> str | None:
    if "?" in url or "#" in url:
        return "it has a query"
    return "/v1/... is appended to it" if _PATH_OF_SIGNAL.search(url) else None


def _headers(headers: Any) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping of names to values, got {type(headers).__qualname__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers must map str to str; the one named {name!r:.40} does not")
        if not is_header(name, value):
            raise ValueError(f"headers: {name!r:.40} or its value has a character that HTTP does not allow")
    return dict(headers)


def _interval(export_interval: object, environment: Environment) -> float:
    if export_interval is not None:
        if not isinstance(export_interval, (int, float)) or isinstance(export_interval, bool):
            raise TypeError(f"export_interval must be seconds, got {type(export_interval).__qualname__}")
        if not 0 < export_interval <= _LONGEST_INTERVAL:
            raise ValueError(f"export_interval must be seconds, from above 0 to a day, got {export_interval!r}")
        return float(export_interval)
    given = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    if not given:
        return _DEFAULT_INTERVAL
    milliseconds = positive(given)
    if milliseconds is None or milliseconds > _LONGEST_INTERVAL * 1000:
        environment.complain(
            f"OTEL_METRIC_EXPORT_INTERVAL={given!r} is no number of milliseconds up to a day: "
            f"{_DEFAULT_INTERVAL:g} s it is"
        )
        return _DEFAULT_INTERVAL
    return milliseconds / 1000
