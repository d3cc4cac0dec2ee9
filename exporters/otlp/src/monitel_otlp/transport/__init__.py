"""Transports over HTTP and gRPC: one attempt to deliver one request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel_otlp.config.settings import GRPC, Settings
from monitel_otlp.transport.http import HttpTransport

if TYPE_CHECKING:
    from monitel_otlp.transport.answer import Transport


def make_transports(settings: Settings) -> dict[str, Transport]:
    """Return a transport for each signal that is not off and has an endpoint. No connection is opened yet."""
    transports: dict[str, Transport] = {}
    for signal, endpoint in settings.endpoints.items():
        if signal in settings.off:
            continue
        if endpoint.protocol == GRPC:
            from monitel_otlp.transport.grpc import GrpcTransport  # late: the import of gRPC affects the process

            transports[signal] = GrpcTransport(signal, endpoint)
        else:
            transports[signal] = HttpTransport(endpoint)
    return transports
