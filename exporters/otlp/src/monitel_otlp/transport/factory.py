"""Construction of the transport of each signal from the settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from monitel_otlp.config.environment import GRPC, Environment
from monitel_otlp.transport.http import HttpTransport
from monitel_otlp.transport.tls import Certificates, may_block

if TYPE_CHECKING:
    from monitel_otlp.config.endpoint import Endpoint
    from monitel_otlp.config.settings import Settings
    from monitel_otlp.transport.answer import Transport


def make_transports(settings: Settings) -> dict[str, Transport]:
    """Return a transport for each signal that is not off and has an endpoint. No connection is opened yet.

    The certificates are read from the standard variables of each signal.
    """
    environment = Environment()
    transports: dict[str, Transport] = {}
    for signal, endpoint in settings.endpoints.items():
        if signal in settings.off:
            continue
        if endpoint.protocol == GRPC:
            transports[signal] = _grpc(signal, endpoint, environment)
        else:
            transports[signal] = HttpTransport(endpoint, certificates(signal, environment))
    return transports


def certificates(signal: str, environment: Environment) -> Certificates:
    """Return the files that the variables of a signal name."""
    names = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
    return Certificates(*(given[1] if (given := environment.read(name, signal)) else None for name in names))


def _grpc(signal: str, endpoint: Endpoint, environment: Environment) -> Transport:
    from monitel_otlp.transport.grpc import GrpcTransport  # late: the import of gRPC affects the process

    return GrpcTransport(signal, endpoint, _contents(signal, environment))


def _contents(signal: str, environment: Environment) -> dict[str, bytes]:
    found = {}
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        if (given := environment.read(name, signal)) is None:
            continue
        try:
            if may_block(given[1]):
                raise ValueError
            found[name.lower()] = Path(given[1]).read_bytes()
        except (OSError, ValueError) as error:
            variable, path = given
            number = error.errno if isinstance(error, OSError) else None
            cause = os.strerror(number) if number else "bad path"
            environment.warn_once(f"{variable}={path!r} cannot be read: {cause}")
    return found
