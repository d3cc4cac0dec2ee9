"""The OTLP exporter's standard variables, a signal's own one before the general one."""

from __future__ import annotations

import logging
import math
import os
import re
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

from monitel_otlp.sdk.encoder import headers_unsaid, public_url

_log = logging.getLogger("monitel.otlp")

HTTP, GRPC = "http/protobuf", "grpc"
_COMPRESSIONS = ("none", "gzip", "deflate")
_DEFAULT_TIMEOUT = 10.0
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class Environment:
    """Reads them; each fault is said once."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, name: str, signal: str) -> tuple[str, str] | None:
        """``OTEL_EXPORTER_OTLP_<name>`` for a signal: which variable, and its value."""
        for full in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
            if value := os.environ.get(full, "").strip():
                return full, value
        return None

    def complain(self, problem: str) -> None:
        """Say what is wrong with a variable, once."""
        if problem not in self.problems:
            self.problems.append(problem)
            _log.warning("%s", problem)

    def protocol(self, signal: str) -> tuple[str, str]:
        """The protocol, and who said so."""
        source, value = self.read("PROTOCOL", signal) or ("default", HTTP)
        if value in {HTTP, GRPC}:
            return value, source
        self.complain(f"{source}={value!r} is neither {HTTP!r} nor {GRPC!r}: {HTTP} it is")
        return HTTP, "default"

    def timeout(self, signal: str) -> tuple[float, str]:
        """Seconds for an attempt, as the official exporters read them, and who said so."""
        source, value = self.read("TIMEOUT", signal) or ("default", str(_DEFAULT_TIMEOUT))
        seconds = positive(value)
        if seconds is not None:
            return seconds, source
        self.complain(f"{source}={value!r} is no positive number of seconds: {_DEFAULT_TIMEOUT:g} it is")
        return _DEFAULT_TIMEOUT, "default"

    def compression(self, signal: str) -> tuple[str, str]:
        """The compression, and who said so."""
        source, value = self.read("COMPRESSION", signal) or ("default", "none")
        if value.lower() in _COMPRESSIONS:
            return value.lower(), source
        self.complain(f"{source}={value!r} is none of {', '.join(_COMPRESSIONS)}: nothing is compressed")
        return "none", "default"

    def headers(self, signal: str) -> tuple[dict[str, str], str]:
        """Headers, and who said so; what is malformed is left out, and never shown: it may be a token."""
        source, value = self.read("HEADERS", signal) or ("default", "")
        found = {}
        for entry in filter(None, (each.strip() for each in value.split(","))):
            with headers_unsaid():
                parsed = parse_env_headers(entry, liberal=True)
            found.update({name: text for name, text in parsed.items() if is_header(name, text)})
            if not parsed or not all(is_header(*pair) for pair in parsed.items()):
                self.complain(f"{source}: an entry is not NAME=VALUE and is left out")
        return found, source

    def endpoint(self, signal: str, protocol: str) -> tuple[str, str] | None:
        """The address of a signal, and the variable that says so; None is offline."""
        named = self.read("ENDPOINT", signal)
        if named is None:
            return None
        source, value = named
        url = self._with_scheme(value, signal) if protocol == GRPC else value
        if problem := url_problem(url):
            self.complain(f"{source}={public_url(value)!r} is no URL ({problem}): what should go there is kept on disk")
            return None
        if protocol == HTTP and source == "OTEL_EXPORTER_OTLP_ENDPOINT":
            url = f"{url.rstrip('/')}/v1/{signal}"
        return url, source

    def _with_scheme(self, url: str, signal: str) -> str:
        """A gRPC address may come without a scheme; OTEL_EXPORTER_OTLP_INSECURE then says which is meant."""
        if "://" in url:
            return url
        insecure = self.read("INSECURE", signal)
        return f"http://{url}" if insecure is not None and insecure[1].lower() == "true" else f"https://{url}"


def url_problem(url: str) -> str | None:
    """Why an address is none that telemetry can be sent to; None where it is one."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        parts.port  # noqa: B018  reading it checks it
    except ValueError as error:
        return str(error)
    if parts.scheme not in {"http", "https"}:
        return "it must begin with http:// or https://"
    return None if host else "it names no host"


def is_header(name: str, value: str) -> bool:
    """Whether HTTP allows it."""
    return bool(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value))


def positive(value: str) -> float | None:
    """The number, where it is one above zero and finite."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None
