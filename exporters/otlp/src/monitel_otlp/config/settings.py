"""Settings of a pipeline, from arguments, the standard OTEL_* variables and defaults, in this order."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from monitel.blackbox.record import SIGNALS
from monitel.blackbox.settings import BoxSettings, default_root
from monitel.process.failures import warn_once
from monitel.variables import Variable, one_of, positive
from monitel_otlp.config.endpoint import Address, AddressError, Certificates, Endpoint, parse_address
from monitel_otlp.config.secret import Secret

_log = logging.getLogger("monitel.otlp")

HTTP, GRPC = "http/protobuf", "grpc"
NO_GRPC = (
    "the protocol 'grpc' needs the packages grpcio and googleapis-common-protos: run "
    "`pip install 'monitel-otlp[grpc]'`, or use 'http/protobuf' with the HTTP port of the backend"
)
_PROTOCOL: Any = one_of((HTTP, GRPC))
#: Settings of an endpoint, by the end of their variables in lower case: the variable, the default and its unit.
_SETTINGS: dict[str, tuple[Variable, Any, str]] = {
    "protocol": (_PROTOCOL, HTTP, ""),
    "timeout": (positive("a positive number of seconds"), 10, " s"),
    "compression": (one_of(("none", "gzip", "deflate")), "none", ""),
}
_LONG_TIMEOUT = 300  # seconds
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
#: NAME=VALUE in ASCII. A value without a space is percent-encoded, as the specification requires.
_ENTRY = re.compile(r"([!#-'*+.0-9A-Z^-z|~-]+)[ \t]*=[ \t]*([ !#-+\x2d-:<-\[\]-~]*)")
_PEM = "-----BEGIN"
_DEFAULT_INTERVAL = 5000  # milliseconds
_DEFAULT_IDLE_INTERVAL = 60.0
_LONGEST_INTERVAL = 86_400.0
_SECONDS: Any = positive("a number of seconds, above 0 and at most one day (86400)", below=_LONGEST_INTERVAL + 1)
_MILLISECONDS = positive("a number of milliseconds (at most one day)", below=_LONGEST_INTERVAL * 1000 + 1)
_HISTOGRAMS = "explicit_bucket_histogram", "base2_exponential_bucket_histogram"
_PATH_OF_SIGNAL = re.compile(rf"/v1/({'|'.join(SIGNALS)})/*$")


@dataclass(frozen=True)
class Settings:
    """The effective configuration. A signal that is recorded and has no endpoint is offline."""

    endpoints: dict[str, Endpoint]
    interval: float  # seconds between two exports
    spool_root: Path  # holds the spool folder of each process
    distributions: str
    box: BoxSettings
    idle_interval: float  # seconds between two exports without windows; 0 for the interval, if that is chosen
    off: frozenset[str]  # signals that are not recorded, by OTEL_<signal>_EXPORTER=none

    @property
    def mark(self) -> str:
        """A hash of the addresses, which ends the names of records with these endpoints; empty without endpoints."""
        addresses = "\n".join(f"{signal} {each.address.public}" for signal, each in sorted(self.endpoints.items()))
        return sha256(addresses.encode()).hexdigest()[:8] if addresses else ""

    @property
    def offline(self) -> list[str]:
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
    if protocol is not None:
        _PROTOCOL.check("protocol", protocol)
    if protocol == GRPC and not grpc_is_installed():
        raise ValueError(f"protocol={GRPC!r}: {NO_GRPC}")
    root = default_root() if spool_dir is None else Path(spool_dir)
    base = None if endpoint is None else _base_url(endpoint)
    own_headers = _headers(headers)
    found = {signal: _endpoint(signal, base, own_headers, protocol) for signal in SIGNALS}
    interval, idle_interval = _intervals(export_interval)
    named, _ = _value("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", one_of(_HISTOGRAMS), _HISTOGRAMS[0])
    if distributions is None:  # a Prometheus without native histograms refuses every request that has one
        distributions = "percentiles" if named == _HISTOGRAMS[0] else "histogram"
    return Settings(
        {signal: each for signal, each in found.items() if each is not None},
        interval,
        root.absolute(),
        distributions,
        BoxSettings() if black_box is None else black_box,
        idle_interval,
        frozenset(signal for signal in SIGNALS if exporters(signal) == ["none"]),
    )


def _base_url(endpoint: object) -> Address:
    if not isinstance(endpoint, str):
        raise TypeError(f"endpoint must be a str such as 'http://localhost:4318', got {type(endpoint).__qualname__}")
    try:
        address = parse_address(endpoint)
        if address.query.reveal() is not None:
            raise AddressError("it has a query")
        if _PATH_OF_SIGNAL.search(address.path):
            raise AddressError("its path ends with /v1/..., which is appended anyway")
    except AddressError as error:
        raise ValueError(
            f"endpoint must be a base URL such as 'http://localhost:4318', but {error} (the value is not shown, as "
            "it may hold a password)"
        ) from None
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


def _intervals(export_interval: float | None) -> tuple[float, float]:
    """Return the interval and the idle interval: who chooses an interval expects the values of instruments in it."""
    if export_interval is not None:
        _SECONDS.check("export_interval", export_interval)
        return float(export_interval), 0.0
    name = "OTEL_METRIC_EXPORT_INTERVAL"
    milliseconds, source = _value(name, _MILLISECONDS, _DEFAULT_INTERVAL, " ms")
    return milliseconds / 1000, _DEFAULT_IDLE_INTERVAL if source == "default" else 0.0


def read_variable(name: str, signal: str) -> tuple[str, str] | None:
    """Return the full name and the value of ``OTEL_EXPORTER_OTLP_<name>`` for a signal; None if it is not set."""
    for full in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
        if value := _text(full):
            return full, value
    return None


def exporters(signal: str) -> list[str]:
    """Return the words of ``OTEL_<signal>_EXPORTER``. ``none`` alone means that the signal is not recorded."""
    words = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").lower().split(",")
    return [word.strip() for word in words if word.strip()]


def _value(name: str, variable: Variable, default: Any, unit: str = "") -> tuple[Any, str]:
    """Return the value of a variable, and its source: its name, or ``"default"``."""
    try:
        if text := _text(name):
            return variable.convert(text), name
    except ValueError as error:
        _warn_once(f"{name}: {error}; using {default}{unit}")
    return default, "default"


def _endpoint(
    signal: str, base: Address | None, headers: Mapping[str, Secret[str]], protocol: str | None
) -> Endpoint | None:
    sources: dict[str, str] = {}

    def setting(name: str) -> Any:
        full, _ = read_variable(name.upper(), signal) or ("", "")
        value, sources[name] = _value(full, *_SETTINGS[name])
        return value

    sources["protocol"] = "argument"
    protocol = protocol or str(setting("protocol"))
    named = ("argument", base) if base is not None else _address(signal, protocol)
    if named is None:
        return None
    if protocol == GRPC and not grpc_is_installed():
        _warn_once(f"{sources['protocol']}={GRPC}: {NO_GRPC}; telemetry for it is kept on disk")
        return None
    sources["endpoint"], address = named
    if protocol == HTTP and sources["endpoint"] in {"argument", "OTEL_EXPORTER_OTLP_ENDPOINT"}:
        address = address.joined(f"/v1/{signal}")
    if (timeout := float(setting("timeout"))) > _LONG_TIMEOUT:
        _warn_once(
            f"{sources['timeout']}={timeout:g}: it is in seconds, as in OpenTelemetry's exporters for Python, and "
            f"an attempt may take {timeout / 60:.0f} minutes; divide a number of milliseconds by 1000"
        )
    sources["headers"], text = read_variable("HEADERS", signal) or ("default", "")
    found, malformed = parse_headers(text)
    if malformed:  # an entry may be a token
        _warn_once(f"{sources['headers']}: an entry is not NAME=VALUE and is ignored")
    if headers:
        sources["headers"], given = "argument", {name.lower() for name in headers}
        found = {name: value for name, value in found.items() if name not in given} | {**headers}
    certificates = _certificates(signal, sources)
    return Endpoint(address, protocol, found, timeout, setting("compression"), sources, certificates)


def _certificates(signal: str, sources: dict[str, str]) -> Certificates:
    files = dict[str, str]()
    for name in Certificates._fields:
        sources[name], path = read_variable(name.upper(), signal) or ("", "")
        if _PEM in path:  # perhaps a key, which is not to be shown
            _warn_once(f"{sources[name]}: expected the path of a file, got the content of one")
        elif path:
            files[name] = path
    if "client_certificate" not in files and files.pop("client_key", ""):
        _warn_once(f"{sources['client_key']}: it has no effect without OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE")
    return Certificates(**files)


def _address(signal: str, protocol: str) -> tuple[str, Address] | None:
    """Return the variable with the address of a signal, and the address as it has it; None without one."""
    if (named := read_variable("ENDPOINT", signal)) is None:
        return None
    source, value = named
    if protocol == GRPC and not _SCHEME.match(value):
        insecure, _ = _value((read_variable("INSECURE", signal) or ("",))[0], one_of(("true", "false")), "false")
        value = f"{'http' if insecure == 'true' else 'https'}://{value}"
    try:
        return source, parse_address(value)
    except AddressError as error:
        _warn_once(
            f"{source}: expected a URL such as http://localhost:4318, but {error} (the value is not shown, as it "
            "may hold a password); telemetry for it is kept on disk"
        )
    return None


def _warn_once(problem: str) -> None:
    warn_once(_log, "%s", problem, key=problem)


def _text(name: str) -> str:
    return os.environ.get(name, "").strip()


def has_delta_temporality() -> bool:
    """Return True for ``"delta"`` and ``"lowmemory"``; a value that is unknown is one warning."""
    name = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    return bool(_value(name, one_of(("cumulative", "delta", "lowmemory")), "cumulative")[0] != "cumulative")


def grpc_is_installed() -> bool:
    """Return True if the packages of the extra ``grpc`` are installed. To import them would affect the process."""
    return all(find_spec(package) is not None for package in ("grpc", "google.rpc"))


def parse_headers(text: str) -> tuple[dict[str, Secret[str]], int]:
    """Return the headers in a text of the form NAME=VALUE,NAME=VALUE, and the number of malformed entries."""
    headers, malformed = dict[str, Secret[str]](), 0
    for entry in filter(None, (each.strip() for each in text.split(","))):
        name, value = found.groups() if (found := _ENTRY.fullmatch(entry)) else ("", "")
        if " " not in value.strip():
            name, value = unquote(name), unquote(value)
        name, value = name.strip().lower(), value.strip()
        if value.strip("=") and is_header(name, value):  # else perhaps a token in base64 that ends with "="
            headers[name] = Secret(value)
        else:
            malformed += 1
    return headers, malformed


def is_header(name: str, value: str) -> bool:
    return bool(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value))
