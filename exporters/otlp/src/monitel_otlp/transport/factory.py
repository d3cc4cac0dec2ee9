"""The sender of each signal, as the settings ask for it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from monitel_otlp.sdk.encoder import Encoder
from monitel_otlp.config.environment import GRPC, Environment
from monitel_otlp.request import SIGNALS
from monitel_otlp.transport.http import HttpSender, Sender

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel_otlp.config.settings import Endpoint, Settings

_log = logging.getLogger("monitel.otlp")


def make_encoders(settings: Settings) -> dict[str, Encoder]:
    """The official HTTP exporter of each signal; for one that goes elsewhere it only encodes."""
    over_http = {signal: endpoint for signal, endpoint in settings.endpoints.items() if endpoint.protocol != GRPC}
    return {signal: Encoder(signal, over_http.get(signal)) for signal in SIGNALS}


def make_senders(settings: Settings, encoders: Mapping[str, Encoder]) -> dict[str, Sender]:
    """How to send each signal that has an endpoint: over HTTP as the official exporter would."""
    senders: dict[str, Sender] = {}
    environment = Environment()
    for signal, endpoint in settings.endpoints.items():
        if endpoint.protocol == GRPC:
            senders[signal] = _grpc(signal, endpoint, environment)
        elif route := encoders[signal].route():
            if (authority := environment.read("CERTIFICATE", signal)) is not None:
                route.options["verify"] = authority[1]  # requests lets REQUESTS_CA_BUNDLE go before it
            senders[signal] = HttpSender(route, endpoint.compression)
        else:
            _log.warning("no request can be made for %s: they are kept on disk", signal)
    return senders


def _grpc(signal: str, endpoint: Endpoint, environment: Environment) -> Sender:
    from monitel_otlp.transport.grpc import GrpcSender  # late: importing gRPC has effects on the process

    return GrpcSender(
        signal,
        endpoint.url,
        headers=endpoint.headers,
        timeout=endpoint.timeout,
        certificates=_certificates(signal, environment),
        compression=endpoint.compression,
    )


def _certificates(signal: str, environment: Environment) -> dict[str, bytes]:
    found = {}
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        if (given := environment.read(name, signal)) is None:
            continue
        try:
            found[name.lower()] = Path(given[1]).read_bytes()
        except OSError as error:
            variable, path = given
            environment.complain(f"{variable}={path!r} cannot be read: {os.strerror(error.errno or 0)}")
    return found
