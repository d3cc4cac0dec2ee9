"""Delivery over gRPC: configuration, headers, compression and secrets."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from grpc import StatusCode
from tests.support.checks import warnings_with
from tests.support.grpc_receiver import GrpcAnswer, GrpcReceiver
from tests.support.inbox import DEADLINE
from tests.support.pipelines import deliver, emit_and_flush

import monitel
from monitel import COUNT, Stat
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from tests.support.pipelines import Start

    from monitel.testing import ManualClock
    from monitel_otlp import Pipeline

TOKEN = "sesame-4711"


def record(pipeline: Pipeline, clock: ManualClock) -> None:
    """Record three windows, an event, a span and a counter of the application, and flush."""
    stat = Stat("loss", [COUNT], 60.0)
    for number in range(3):
        stat.add(number)
        clock.advance(60)
    with pipeline.tracer_provider.get_tracer("mine").start_as_current_span("epoch"):
        monitel.emit("checkpoint", step=7)
    pipeline.meter_provider.get_meter("mine").create_counter("batches").add(5)
    assert pipeline.force_flush(DEADLINE)


def assert_recorded(receiver: GrpcReceiver) -> None:
    """Assert that all items of :func:`record` have arrived once."""
    assert [1, 2, 3] == receiver.values("loss.count")
    (event,) = receiver.records("checkpoint")
    (span,) = receiver.spans()
    assert ("epoch", 7, span.span_id) == (span.name, event.attributes["step"], event.span_id)
    assert {5} == set(receiver.values("batches"))
    assert {"monitel", "mine"} <= {point.scope for point in receiver.all_points()}


def test_everything_arrives(grpc_receiver: GrpcReceiver, start: Start, clock: ManualClock) -> None:
    """With ``protocol="grpc"`` windows, events, and spans and instruments of the application are delivered."""
    record(start(endpoint=grpc_receiver.url, protocol="grpc"), clock)
    assert_recorded(grpc_receiver)


@pytest.mark.parametrize("insecure", ["true", "True", " true "])
def test_everything_arrives_with_variables_only(
    grpc_receiver: GrpcReceiver, start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, insecure: str
) -> None:
    """The address may have no scheme, with OTEL_EXPORTER_OTLP_INSECURE."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", grpc_receiver.address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_INSECURE", insecure)
    record(start(endpoint=None), clock)
    assert_recorded(grpc_receiver)


def test_user_agent_begins_with_name_and_version(grpc_receiver: GrpcReceiver, start: Start) -> None:
    """The user agent of gRPC follows. The path is that of the OTLP service."""
    assert deliver(start(endpoint=grpc_receiver.url, protocol="grpc"), "event")
    (request,) = grpc_receiver.of("logs")
    assert "/opentelemetry.proto.collector.logs.v1.LogsService/Export" == request.path
    assert request.headers["user-agent"].startswith(f"monitel-otlp/{monitel.__version__} grpc-python/")


def test_signals_may_have_different_protocols(
    grpc_receiver: GrpcReceiver, start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs are sent over gRPC, and other signals over HTTP."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", grpc_receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    pipeline = start(endpoint=None)
    monitel.emit("event")
    assert not pipeline.force_flush(0.5)
    assert ["event"] == grpc_receiver.record_names()
    assert [] == grpc_receiver.of("metrics")


def test_headers_are_metadata(grpc_receiver: GrpcReceiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are in lower case, as gRPC requires; the argument overrides the variable."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "tenant=a,other=b%20c")
    pipeline = start(endpoint=grpc_receiver.url, protocol="grpc", headers={"Tenant": "b", "X-Run.id": "7"})
    assert deliver(pipeline, "event")
    headers = grpc_receiver.of("logs")[0].headers
    assert ("b", "b c", "7") == (headers["tenant"], headers["other"], headers["x-run.id"])


@pytest.mark.parametrize("headers", [{"x!": TOKEN}, {"x": f"{TOKEN}é"}, {"x": f"{TOKEN}\t"}, {"x-bin": TOKEN}], ids=str)
def test_header_that_grpc_does_not_allow_is_logged(
    *,
    grpc_receiver: GrpcReceiver,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    headers: dict[str, str],
) -> None:
    """One warning has the variable to change, without the header's value, and everything is in the spool."""
    pipeline = start(endpoint=grpc_receiver.url, protocol="grpc", headers=headers)
    assert not emit_and_flush(pipeline, "first", "second")
    assert not pipeline.shutdown()
    assert 1 == len(warnings_with(caplog, "(logs)", "OTEL_EXPORTER_OTLP_HEADERS"))
    assert 2 == sum(request.items for request in Spool(Path(pipeline.spool_dir)).peek() if request.signal == "logs")
    assert TOKEN not in caplog.text + capfd.readouterr().err


def test_token_is_only_in_the_request(
    *,
    grpc_receiver: GrpcReceiver,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The token is not in the spool, in rejected requests, in a repr, in the log or in the last line."""
    pipeline = start(endpoint=grpc_receiver.url, protocol="grpc", headers={"authorization": f"Bearer {TOKEN}"})
    for code in (StatusCode.INVALID_ARGUMENT, StatusCode.UNAUTHENTICATED, StatusCode.UNAVAILABLE):
        grpc_receiver.answer("logs", GrpcAnswer(code=code))
        monitel.emit("event")
        pipeline.force_flush(0.1)
    grpc_receiver.rule(lambda _request: GrpcAnswer(code=StatusCode.UNAVAILABLE))
    monitel.emit("event")
    pipeline.force_flush(0.1)
    pipeline.shutdown()
    assert f"Bearer {TOKEN}" == grpc_receiver.of("logs")[0].headers["authorization"]
    kept = [path.read_bytes() for path in Path(pipeline.spool_dir).rglob("*") if path.is_file()]
    assert len(kept) > 3
    assert all(TOKEN.encode() not in each for each in kept)
    assert TOKEN not in caplog.text + capfd.readouterr().err + repr(vars(pipeline)) + repr(pipeline)


class Relay:
    """A relay between a client and a server on this machine, which counts the bytes that the client sends.

    Args:
        port: Port of the server.
    """

    def __init__(self, port: int) -> None:
        self.sent_bytes = 0
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def close(self) -> None:
        """Close all connections."""
        for each in self._sockets:
            with suppress(OSError):  # the client may have closed it first
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    self._threads.append(Thread(target=self._copy, args=[source, target], daemon=True))
                    self._threads[-1].start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        upwards = source.getpeername()[1] != self._port
        with suppress(OSError):
            while content := source.recv(1 << 16):
                self.sent_bytes += upwards * len(content)
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(("compression", "small"), [("gzip", True), ("deflate", True), ("none", False)])
def test_requests_are_compressed(
    *,
    grpc_receiver: GrpcReceiver,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    compression: str,
    small: bool,
) -> None:
    """OTEL_EXPORTER_OTLP_COMPRESSION selects the compression."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    relay = Relay(grpc_receiver.port)
    pipeline = start(endpoint=relay.url, protocol="grpc")
    monitel.emit("event", text="a" * 100_000)
    assert pipeline.force_flush(DEADLINE)
    pipeline.shutdown()
    relay.close()
    assert 100_000 == len(grpc_receiver.records("event")[0].attributes["text"])
    assert small is (relay.sent_bytes < 50_000)


def test_password_in_the_address_is_not_logged(
    grpc_receiver: GrpcReceiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """GRPC does not use the password; a warning shows the address without it."""
    pipeline = start(endpoint=f"http://user:{TOKEN}@{grpc_receiver.address}", protocol="grpc")
    grpc_receiver.answer("logs", GrpcAnswer(code=StatusCode.UNAVAILABLE))
    monitel.emit("event")
    assert pipeline.force_flush(DEADLINE)
    assert ["event"] == grpc_receiver.record_names()
    assert 1 == len(warnings_with(caplog, f"{grpc_receiver.url} (logs)", "everything is kept"))
    assert TOKEN not in caplog.text + repr(vars(pipeline))
