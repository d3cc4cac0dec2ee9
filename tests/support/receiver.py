"""An OTLP/HTTP backend inside pytest."""

from __future__ import annotations

import gzip
import sys
import zlib
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from ssl import SSLContext
from threading import Event, Thread
from typing import Any

from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from tests.support.inbox import DEADLINE, Answer, Inbox, Request

MESSAGES: dict[str, tuple[type[Any], type[Any]]] = {
    "metrics": (metrics.ExportMetricsServiceRequest, metrics.ExportMetricsServiceResponse),
    "logs": (logs.ExportLogsServiceRequest, logs.ExportLogsServiceResponse),
    "traces": (traces.ExportTraceServiceRequest, traces.ExportTraceServiceResponse),
}
_REJECTED = {"metrics": "rejected_data_points", "logs": "rejected_log_records", "traces": "rejected_spans"}


def partial_success(signal: str, rejected: int, message: str) -> Answer:
    """Return the answer of a backend that has accepted a request except for ``rejected`` items."""
    response = MESSAGES[signal][1]()
    setattr(response.partial_success, _REJECTED[signal], rejected)
    response.partial_success.error_message = message
    return Answer(body=response.SerializeToString())


class Receiver(Inbox):
    """An HTTP server on 127.0.0.1. The port of a closed one makes that come back."""

    protocol = "http/protobuf"

    def __init__(self, port: int = 0, tls: SSLContext | None = None) -> None:
        super().__init__()
        self.closing = Event()
        self.connections: list[socket] = []
        self._server = _Server(self, port)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._thread = Thread(target=self._server.serve_forever, args=[0.01], daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def stop(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        for connection in self.connections:
            with suppress(OSError):  # the client may have closed it first
                connection.shutdown(SHUT_RDWR)
        self._thread.join(DEADLINE)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, receiver: Receiver, port: int) -> None:
        self.receiver = receiver
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.receiver.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):  # a client may close the connection at any time
            self.receiver.failures.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        receiver = self.server.receiver
        signal = self.path.rpartition("/")[2]
        scripted = receiver.scripted(signal)
        if scripted is not None and scripted.fault == "drop unread":
            receiver.add(Request(signal, self.path, {}, b"", None, scripted))
            self.close_connection = True
            return
        request = self._read(signal)
        answer = scripted or receiver.decide(request)
        receiver.add(replace(request, answer=answer))
        if answer.fault == "hang":
            receiver.closing.wait()
        elif answer.delay:
            receiver.closing.wait(answer.delay)
        if answer.fault in {"hang", "drop unanswered"}:
            self.close_connection = True
        else:
            self._answer(signal, answer)

    def _read(self, signal: str) -> Request:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError("the client has left")
        decode: Any = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(
            self.headers.get("Content-Encoding", ""), bytes
        )
        message = MESSAGES[signal][0]()
        assert self.headers["Content-Type"] == "application/x-protobuf"
        message.ParseFromString(decode(body))
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(signal, self.path, headers, body, message, Answer())

    def _answer(self, signal: str, answer: Answer) -> None:
        body = MESSAGES[signal][1]().SerializeToString() if answer.body is None else answer.body
        cut = answer.fault == "drop in answer"
        self.send_response(answer.status)
        headers = {"Content-Type": "application/x-protobuf", **answer.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) + 100 * cut))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = cut

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""
