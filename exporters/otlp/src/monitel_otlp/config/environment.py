"""The standard variables of OTLP exporters. The variable of a signal takes precedence over the general variable."""

from __future__ import annotations

import logging
import os
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from monitel.variables import one_of, positive
from monitel_otlp.config.endpoint import Address, AddressError, Certificates, Endpoint, parse_address
from monitel_otlp.config.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel.variables import Variable

_log = logging.getLogger("monitel.otlp")

HTTP, GRPC = "http/protobuf", "grpc"
NO_GRPC = (
    "the protocol 'grpc' needs the packages grpcio and googleapis-common-protos: run "
    "`pip install 'monitel-otlp[grpc]'`, or use 'http/protobuf' with the HTTP port of the backend"
)
#: Settings of an endpoint, by the end of their variables in lower case: the variable, the default and its unit.
_SETTINGS: dict[str, tuple[Variable, Any, str]] = {
    "protocol": (one_of((HTTP, GRPC)), HTTP, ""),
    "timeout": (positive("a positive number of seconds"), 10, " s"),
    "compression": (one_of(("none", "gzip", "deflate")), "none", ""),
}
_LONG_TIMEOUT = 300  # seconds
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
#: NAME=VALUE in ASCII. A value without a space is percent-encoded, as the specification requires.
_ENTRY = re.compile(r"([!#-'*+.0-9A-Z^-z|~-]+)[ \t]*=[ \t]*([ !#-+\x2d-:<-\[\]-~]*)")


class Environment:
    """Reads the variables. Each problem is logged once."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, name: str, signal: str) -> tuple[str, str] | None:
        """Return the full name and the value of ``OTEL_EXPORTER_OTLP_<name>`` for a signal; None if it is not set."""
        for full in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
            if value := os.environ.get(full, "").strip():
                return full, value
        return None

    def exporters(self, signal: str) -> list[str]:
        """Return the words of ``OTEL_<signal>_EXPORTER``. ``none`` alone means that the signal is not recorded."""
        words = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").lower().split(",")
        return [word.strip() for word in words if word.strip()]

    def warn_once(self, problem: str) -> None:
        """Log a problem with a variable, once."""
        if problem not in self.problems:
            self.problems.append(problem)
            _log.warning("%s", problem)

    def value(self, found: tuple[str, str] | None, variable: Variable, default: Any, unit: str = "") -> tuple[Any, str]:
        """Return the value of a variable of which name and text were found, and its source."""
        name, text = found or ("default", "")
        try:
            return (variable.convert(text), name) if text else (default, "default")
        except ValueError as error:
            self.warn_once(f"{name}: {error}; using {default}{unit}")
            return default, "default"

    def endpoint(
        self, signal: str, base: Address | None, headers: Mapping[str, Secret[str]], protocol: str | None
    ) -> Endpoint | None:
        """Return the destination of a signal; None if the signal is offline.

        What the caller gives comes first. To a base address the path of the signal is appended.
        """
        sources: dict[str, str] = {}

        def setting(name: str) -> Any:
            value, sources[name] = self.value(self.read(name.upper(), signal), *_SETTINGS[name])
            return value

        protocol, sources["protocol"] = (
            (protocol, "argument") if protocol else (setting("protocol"), sources["protocol"])
        )
        named = ("argument", base) if base is not None else self._address(signal, protocol)
        if named is None:
            return None
        if protocol == GRPC and not grpc_is_installed():
            self.warn_once(f"{sources['protocol']}={GRPC}: {NO_GRPC}; telemetry for it is kept on disk")
            return None
        sources["endpoint"], address = named
        if protocol == HTTP and sources["endpoint"] in {"argument", "OTEL_EXPORTER_OTLP_ENDPOINT"}:
            address = address.joined(f"/v1/{signal}")
        if (timeout := float(setting("timeout"))) > _LONG_TIMEOUT:
            self.warn_once(
                f"{sources['timeout']}={timeout:g}: it is in seconds, as in OpenTelemetry's exporters for Python, and "
                f"an attempt may take {timeout / 60:.0f} minutes; divide a number of milliseconds by 1000"
            )
        sources["headers"], text = self.read("HEADERS", signal) or ("default", "")
        found, malformed = parse_headers(text)
        if malformed:  # an entry may be a token
            self.warn_once(f"{sources['headers']}: an entry is not NAME=VALUE and is ignored")
        if headers:
            sources["headers"], given = "argument", {name.lower() for name in headers}
            found = {name: value for name, value in found.items() if name not in given} | {**headers}
        files = [self.read(name, signal) for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")]
        certificates = Certificates(*(each[1] if each else None for each in files))
        return Endpoint(address, protocol, found, timeout, setting("compression"), sources, certificates)

    def _address(self, signal: str, protocol: str) -> tuple[str, Address] | None:
        """Return the variable with the address of a signal, and the address as it has it; None without one."""
        if (named := self.read("ENDPOINT", signal)) is None:
            return None
        source, value = named
        try:
            return source, parse_address(self._with_scheme(value, signal) if protocol == GRPC else value)
        except AddressError as error:
            problem = str(error)
        self.warn_once(
            f"{source}: expected a URL such as http://localhost:4318, but {problem} (the value is not shown, as it may "
            "hold a password); telemetry for it is kept on disk"
        )
        return None

    def _with_scheme(self, url: str, signal: str) -> str:
        """Add a scheme to a gRPC address without one: http with OTEL_EXPORTER_OTLP_INSECURE=true, else https."""
        if _SCHEME.match(url):
            return url
        insecure = self.read("INSECURE", signal)
        return f"http://{url}" if insecure is not None and insecure[1].lower() == "true" else f"https://{url}"


def temporality_preference() -> str:
    """Return ``"cumulative"``, ``"delta"`` or ``"lowmemory"``; cumulative, with a warning, for any other value."""
    name = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    found = name, os.environ.get(name, "").strip()
    preference, _ = Environment().value(found, one_of(("cumulative", "delta", "lowmemory")), "cumulative")
    return str(preference)


def sdk_is_disabled() -> bool:
    """Return True if OTEL_SDK_DISABLED is true."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def grpc_is_installed() -> bool:
    """Return True if the packages of the extra ``grpc`` are installed. The import of gRPC affects the process."""
    return all(find_spec(package) is not None for package in ("grpc", "google.rpc"))


def parse_headers(text: str) -> tuple[dict[str, Secret[str]], int]:
    """Return the headers in a text of the form NAME=VALUE,NAME=VALUE, and the number of malformed entries.

    Names are in lower case. A value without a space is percent-encoded.
    """
    pairs = [_header(entry) for entry in filter(None, (each.strip() for each in text.split(",")))]
    return {pair[0]: Secret(pair[1]) for pair in pairs if pair is not None}, pairs.count(None)


def _header(entry: str) -> tuple[str, str] | None:
    """Return name and value of an entry; None if it is malformed."""
    found = _ENTRY.fullmatch(entry)
    if found is None:
        return None
    name, value = found.groups()
    if " " not in value.strip():
        name, value = unquote(name), unquote(value)
    name, value = name.strip().lower(), value.strip()
    if not value.strip("="):
        return None  # a token in base64 that ends with "=", without a name
    return (name, value) if is_header(name, value) else None


def is_header(name: str, value: str) -> bool:
    """Return True if HTTP allows a header of this name and value."""
    return bool(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value))
