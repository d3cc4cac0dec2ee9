"""The sender of each signal, as the settings ask for it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http import Compression

from monitel_otlp.sender import HttpSender, Sender
from monitel_otlp.settings import GRPC, Environment, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitel_otlp.handover import Route
    from monitel_otlp.settings import Endpoint

_log = logging.getLogger("monitel.otlp")

_NOWHERE = "http://localhost"  # for encoders whose requests are handed over, and never sent as they are


def encoder_arguments(settings: Settings, signal: str) -> dict[str, Any]:
    """Arguments for the official HTTP exporter of a signal: it encodes, and prepares what goes over HTTP.

    It is told everything but the certificates, which it reads itself; compressed is what is sent, not what is kept.
    """
    endpoint = settings.endpoints.get(signal)
    if endpoint is None or endpoint.protocol == GRPC:
        return {"endpoint": _NOWHERE, "headers": {}, "timeout": 1.0, "compression": Compression.NoCompression}
    return {
        "endpoint": endpoint.url,
        "headers": endpoint.headers,
        "timeout": endpoint.timeout,
        "compression": Compression.NoCompression,
    }


def make_senders(settings: Settings, routes: Mapping[str, Callable[[], Route | None]]) -> dict[str, Sender]:
    """How to send each signal that has an endpoint.

    Args:
        settings: Where to.
        routes: For each signal, what teaches the way that the official HTTP exporter would have sent.
    """
    senders: dict[str, Sender] = {}
    for signal, endpoint in settings.endpoints.items():
        if endpoint.protocol == GRPC:
            senders[signal] = _grpc(signal, endpoint)
        elif route := routes[signal]():
            if (authority := Environment().read("CERTIFICATE", signal)) is not None:
                route.options["verify"] = authority[1]  # requests lets REQUESTS_CA_BUNDLE go before it
            senders[signal] = HttpSender(route, endpoint.compression)
        else:
            _log.warning("no request can be made for %s: they are kept on disk", signal)
    return senders


def _grpc(signal: str, endpoint: Endpoint) -> Sender:
    from monitel_otlp.grpc_sender import GrpcSender  # late: importing gRPC has effects on the process

    return GrpcSender(
        signal,
        endpoint.url,
        headers=endpoint.headers,
        timeout=endpoint.timeout,
        certificates=_certificates(signal),
        compression=endpoint.compression,
    )


def _certificates(signal: str) -> dict[str, bytes]:
    found = {}
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        if (given := Environment().read(name, signal)) is None:
            continue
        try:
            found[name.lower()] = Path(given[1]).read_bytes()
        except OSError as error:
            _log.warning("%s=%r cannot be read: %s", *given, os.strerror(error.errno or 0))
    return found
