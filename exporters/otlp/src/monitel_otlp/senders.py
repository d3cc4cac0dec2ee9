"""The sender of each signal, as settings and variables ask for it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.util.re import parse_env_headers

from monitel_otlp.grpc_sender import GrpcSender
from monitel_otlp.sender import HttpSender, Sender
from monitel_otlp.settings import GRPC, Settings, variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitel_otlp.handover import Route

_log = logging.getLogger("monitel.otlp")

_DEFAULT_TIMEOUT = 10.0


def make_senders(settings: Settings, routes: Mapping[str, Callable[[], Route | None]]) -> dict[str, Sender]:
    """How to send each signal that has an endpoint.

    Args:
        settings: Where to.
        routes: For each signal, what teaches the way that the official HTTP exporter would have sent.
    """
    senders: dict[str, Sender] = {}
    for signal, endpoint in settings.endpoints.items():
        if endpoint.protocol == GRPC:
            senders[signal] = _grpc(signal, endpoint.url, settings.headers)
        elif route := routes[signal]():
            senders[signal] = HttpSender(route)
    return senders


def _grpc(signal: str, url: str, headers: Mapping[str, str]) -> GrpcSender:
    given = variable("HEADERS", signal)
    from_environment = parse_env_headers(given[1], liberal=True) if given else {}
    compression = variable("COMPRESSION", signal)
    return GrpcSender(
        signal,
        url,
        headers={**from_environment, **headers},
        timeout=_timeout(signal),
        certificates=_certificates(signal),
        compression=compression[1].lower() if compression else "",
    )


def _timeout(signal: str) -> float:
    given = variable("TIMEOUT", signal)
    if given is None:
        return _DEFAULT_TIMEOUT
    try:
        seconds = float(given[1])
    except ValueError:
        seconds = 0.0
    if seconds > 0:
        return seconds
    _log.warning("%s=%r is no number of seconds: %g it is", *given, _DEFAULT_TIMEOUT)
    return _DEFAULT_TIMEOUT


def _certificates(signal: str) -> dict[str, bytes]:
    found = {}
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        if (given := variable(name, signal)) is None:
            continue
        try:
            found[name.lower()] = Path(given[1]).read_bytes()
        except OSError as error:
            _log.warning("%s=%r cannot be read: %s", *given, error.strerror)
    return found
