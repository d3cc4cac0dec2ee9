"""Endpoints: a parsed address, protocol, headers and limits. Secrets in an endpoint are never printed."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from urllib.parse import unquote

from monitel_otlp.config.secret import Secret, masker, parts_of_header

_URL = re.compile(
    r"(https?)://(?:([^/?#]*)@)?(\[[^]/?#@]*\]|[^:/?#@]*)(?::([^/?#@]*))?(/[^?#]*)?(?:\?([^#]*))?(#.*)?",
    re.IGNORECASE | re.DOTALL,
)  # scheme, user and password, host, port, path, query, fragment
_UNUSABLE = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]")  # spaces, controls, bytes that are not UTF-8
_HOST = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?", re.IGNORECASE)
_LONGEST_HOST = 253
_LAST_PORT = 65_535
_PORTS = {"http": 80, "https": 443}
_BAD_HOST = "its host is not a valid name or IP address"
_ESCAPES = "in a user name or password write '/' as %2F, '?' as %3F, '#' as %23 and '@' as %40"
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "GRPC_PROXY")


class AddressError(ValueError):
    """Raised for an invalid address. The message does not contain the address."""


@dataclass(frozen=True)
class Address:
    scheme: str
    host: str  # a name in ASCII, or an IP address without brackets
    port: int | None
    path: str
    userinfo: Secret[str]  # before "@", not decoded
    query: Secret[str | None]  # after "?"

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def effective_port(self) -> int:
        return self.port or _PORTS[self.scheme]

    @property
    def public(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.path}"

    @property
    def credentials(self) -> tuple[str, str] | None:
        user, _, password = self.userinfo.reveal().partition(":")
        return (unquote(user), unquote(password)) if user or password else None

    def secrets(self) -> Iterator[str]:
        userinfo, query = self.userinfo.reveal(), self.query.reveal() or ""
        yield userinfo
        yield unquote(userinfo)
        yield from userinfo.split(":", 1)
        yield query
        for pair in re.split("[&;]", query):
            yield pair.partition("=")[2] or pair

    def joined(self, path: str) -> Address:
        return replace(self, path=self.path.rstrip("/") + path)


def parse_address(url: str) -> Address:
    """Parse a URL, or raise AddressError, even for a ``#`` or a later ``@`` that may belong to the password."""
    if (found := _URL.fullmatch(url)) is None:
        begins = re.match("https?://", url, re.IGNORECASE)
        raise AddressError(_BAD_HOST if begins else "it must begin with http:// or https://")
    scheme, userinfo, host, port, path, query, fragment = found.groups()
    if _UNUSABLE.search(url):
        raise AddressError("it has a space, a control character or a byte that is not UTF-8")
    if fragment is not None:
        raise AddressError(f"it has a '#'; {_ESCAPES}")
    if "@" in f"{path}{query}":
        raise AddressError(f"it has an '@' after the host; {_ESCAPES}")
    if port and not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) <= _LAST_PORT):
        raise AddressError(f"its port must be a number from 1 to {_LAST_PORT}; {_ESCAPES}")
    if not host:
        raise AddressError("it names no host")
    number = int(port) if port else None
    return Address(scheme.lower(), _checked_host(host), number, path or "", Secret(userinfo or ""), Secret(query))


def parse_proxy(text: str) -> Address:
    """Parse the address of a proxy, which may omit ``http://``."""
    return parse_address(text if re.match(r"[a-z][a-z0-9+.-]*://", text, re.IGNORECASE) else f"http://{text}")


class Certificates(NamedTuple):
    """PEM files of an endpoint. The client's certificate contains the key unless there is a ``client_key``."""

    certificate: str | None = None  # of the authority; over HTTP also a folder
    client_certificate: str | None = None
    client_key: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """The destination of one signal. ``mask`` replaces its secrets, and those of the proxies, in a text."""

    address: Address
    protocol: str
    headers: dict[str, Secret[str]]
    timeout: float
    compression: str
    sources: dict[str, str]  # of each setting: a variable, "argument" or "default"
    certificates: Certificates
    mask: Callable[[str], str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", masker([*self.secrets(), *proxy_secrets()]))

    def no_receiver(self, signal: str) -> str:
        """Return a message for an address without an OTLP receiver: what was tried, where it is set, and the fix."""
        name = self.sources.get("endpoint", "argument").replace("argument", "the endpoint")
        path, address = f"/v1/{signal}", self.address.public.rstrip("/")
        if self.protocol == "grpc":
            advice = f"give the address of {name} with the gRPC port, usually 4317"
        elif signal.upper() not in name:
            advice = f"{name} must be a base URL, to which {path} is appended"
        else:
            advice = f"{name} must be the whole address" + ("" if address.endswith(path) else f": {address}{path}")
        unwanted = f"if the backend takes no {signal}, set OTEL_{signal.upper()}_EXPORTER=none"
        return f"no OTLP receiver at {self.address.public}: {advice}; {unwanted}"

    def secrets(self) -> Iterator[str]:
        yield from self.address.secrets()
        for value in self.headers.values():
            yield from parts_of_header(value.reveal())


def proxy_secrets() -> Iterator[str]:
    """Yield the secrets in the proxy variables of the environment. A malformed address is neither used nor shown."""
    for variable in _PROXY_VARIABLES:
        for name in (variable, variable.lower()):
            with suppress(AddressError):
                yield from parse_proxy(os.environ.get(name, "").strip()).secrets()


def _checked_host(host: str) -> str:
    """Return the host without brackets, or raise AddressError."""
    if host.startswith("[") and host.endswith("]"):
        inner = host[1:-1].replace("%25", "%")
        with suppress(ValueError):
            ipaddress.IPv6Address(inner)
            return inner
    if _HOST.fullmatch(host) and len(host) <= _LONGEST_HOST:
        return host
    raise AddressError(_BAD_HOST)
