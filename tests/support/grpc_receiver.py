"""An OTLP/gRPC backend inside pytest, with the same inbox as the HTTP backend."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as Detail
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]  # no stubs
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # no stubs
from tests.support.inbox import DEADLINE, Answer, Inbox, Request
from tests.support.receiver import MESSAGES

_SERVICES = {
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
}


@dataclass(frozen=True)
class GrpcAnswer(Answer):
    """An answer over gRPC; ``hang`` is the only supported fault."""

    code: grpc.StatusCode = grpc.StatusCode.OK  # status
    details: str = ""  # message of the status
    # seconds of a ``google.rpc.RetryInfo`` in the trailing metadata; None sends no trailing metadata
    retry_delay: float | None = None
    trailer: int = 0  # bytes of another trailer

    @property
    def takes(self) -> bool:
        return self.code is grpc.StatusCode.OK and super().takes


class GrpcReceiver(Inbox):
    """A gRPC server on 127.0.0.1, with TLS if it has credentials."""

    protocol = "grpc"

    def __init__(
        self, port: int = 0, credentials: grpc.ServerCredentials | None = None, compression: Any = None
    ) -> None:
        super().__init__()
        self._pool = ThreadPoolExecutor(16)
        handlers = [_handler(self, *names) for names in _SERVICES.items()]
        options = [("grpc.so_reuseport", 0)]
        self._server = grpc.server(self._pool, handlers, options=options, compression=compression)
        address, insecure = f"127.0.0.1:{port}", self._server.add_insecure_port
        self.port = self._server.add_secure_port(address, credentials) if credentials else insecure(address)
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"{'https' if credentials else 'http'}://{self.address}"
        self._server.start()

    def stop(self) -> None:
        assert self._server.stop(None).wait(DEADLINE)
        self._pool.shutdown()


def _handler(receiver: GrpcReceiver, signal: str, service: str) -> Any:
    handler = grpc.unary_unary_rpc_method_handler(_Export(receiver, signal, f"/{service}/Export"))  # bytes in and out
    return grpc.method_handlers_generic_handler(service, {"Export": handler})


@dataclass(frozen=True)
class _Export:
    receiver: GrpcReceiver
    signal: str
    method: str

    def __call__(self, body: bytes, context: Any) -> bytes:
        receiver, signal = self.receiver, self.signal
        try:
            message = MESSAGES[signal][0].FromString(body)
            headers = dict(context.invocation_metadata())
            request = Request(signal, self.method, headers, body, message, Answer())
            answer = receiver.scripted(signal) or receiver.decide(request)
        except Exception as error:
            receiver.failures.append(error)
            raise
        receiver.add(replace(request, answer=answer))
        ended = Event()
        if not context.add_callback(ended.set):
            ended.set()
        if answer.fault == "hang":
            ended.wait()
        elif answer.delay:
            ended.wait(answer.delay)
        if isinstance(answer, GrpcAnswer) and answer.code is not grpc.StatusCode.OK:
            if answer.retry_delay is not None:
                context.set_trailing_metadata((("grpc-status-details-bin", _retry_info(answer)),))
            if answer.trailer:
                context.set_trailing_metadata((("x-debug", answer.trailer * "x"),))
            context.abort(answer.code, answer.details)
        empty: bytes = MESSAGES[signal][1]().SerializeToString()
        return empty if answer.body is None else answer.body


def _retry_info(answer: GrpcAnswer) -> bytes:
    info = RetryInfo()
    info.retry_delay.FromNanoseconds(int((answer.retry_delay or 0) * 10**9))
    detail = Detail()
    detail.Pack(info)
    content: bytes = Status(code=answer.code.value[0], message=answer.details, details=[detail]).SerializeToString()
    return content
