"""Transports over HTTP and gRPC: one attempt to deliver one request."""

from __future__ import annotations

from monitel_otlp.config.endpoint import Endpoint
from monitel_otlp.config.settings import GRPC, Settings
from monitel_otlp.transport.answer import Transport
from monitel_otlp.transport.http import HttpTransport


def make_transports(settings: Settings) -> dict[str, Transport]:
    """Return a transport for each signal that is not off and has an endpoint."""
    endpoints = settings.endpoints.items()
    return {signal: make_transport(signal, endpoint) for signal, endpoint in endpoints if signal not in settings.off}


def make_transport(signal: str, endpoint: Endpoint) -> Transport:
    """Return a transport, without a connection yet."""
    if endpoint.protocol == GRPC:
        from monitel_otlp.transport.grpc import GrpcTransport  # late: the import of gRPC affects the process

        return GrpcTransport(signal, endpoint)
    return HttpTransport(endpoint)
