"""Answers of a backend over HTTP and gRPC: consequence, reason, pause and rejected items; headers over gRPC."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # no stubs
from tests.support.checks import warnings_with
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, deliver, emit_and_flush
from tests.support.receiver import partial_success

from monitel_otlp.config.settings import resolve
from monitel_otlp.messages.request import Request
from monitel_otlp.transport import make_transports
from monitel_otlp.transport.answer import Answer, Consequence, error_text, one_line, parse_retry_after

REQUEST = Request("logs", b"")


@pytest.fixture(autouse=True)
def fork_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")


def answered(url: str, protocol: str = "http/protobuf", request: Request = REQUEST) -> Answer:
    transport = make_transports(resolve(url, protocol=protocol))["logs"]
    try:
        return transport.send(request, DEADLINE)
    finally:
        transport.close()


def test_retry_after_is_parsed() -> None:
    """The value may be a number of seconds or a date."""
    soon = datetime.now(timezone.utc) + timedelta(seconds=100)
    assert (7.5, 0.0, None, None) == tuple(map(parse_retry_after, ["7.5", "-1", "nan", None]))
    assert 90 < (parse_retry_after(format_datetime(soon, usegmt=True)) or 0) <= 100


@pytest.fixture(params=[grpc.Compression.Gzip, grpc.Compression.Deflate], ids=str)
def compressing(request: pytest.FixtureRequest) -> Any:
    """The URL of a gRPC server that answers with the request's body, compressed."""
    method = grpc.unary_unary_rpc_method_handler(lambda body, _context: body)
    handler = grpc.method_handlers_generic_handler(
        "opentelemetry.proto.collector.logs.v1.LogsService", {"Export": method}
    )
    pool = ThreadPoolExecutor(2)
    server = grpc.server(pool, [handler], compression=request.param)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(None).wait(DEADLINE)
    pool.shutdown()


def test_compressed_answer_over_grpc_is_parsed(compressing: str) -> None:
    """A partial success in a compressed answer counts."""
    content = partial_success("logs", 3, "attribute too long" * 20).body or b""
    answer = answered(compressing, "grpc", Request("logs", content))
    assert (Consequence.DELIVERED, 3) == (answer.consequence, answer.rejected)
    assert answer.reason.startswith("attribute too long")


def status(message: str, code: int = 0) -> bytes:
    return bytes(Status(code=code, message=message).SerializeToString())


def test_error_is_printed_as_its_message() -> None:
    """A body that is not a Status is printed as text, in one line."""
    printed = [
        (status("out of bounds"), "out of bounds"),
        (status("wrong temporality", 3), "wrong temporality"),
        (status("", 3), "status code 3, without a message"),
        (Status(code=3, message="with details", details=[{"value": b"\xff\x00"}]).SerializeToString(), "with details"),
        (json.dumps({"code": 3, "message": "in JSON", "details": []}).encode(), "in JSON"),
        (json.dumps({"error": "not a Status"}).encode(), '\'{"error": "not a Status"}\''),
        (json.dumps({"message": {"not": "text"}}).encode(), '\'{"message": {"not": "text"}}\''),
        (b'{"message":' * 20_000, None),
        (b'{"message": "truncated', '\'{"message": "truncated\''),
        (b'["message"]', "'[\"message\"]'"),
        (b"plain text\r\n", r"'plain text\r\n'"),
        (b"", "''"),
        (b"\x12\x02\xff\xfe", None),
        (status("x" * 100_000)[:65_536], None),
    ]
    for body, text in printed:
        assert text in {None, error_text(body)}
        assert len(one_line(error_text(body))) <= 500


TOKEN = "sesame-4711"


def test_headers_are_metadata(grpc_receiver: Any, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are in lower case, as gRPC requires; the argument overrides the variable."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "tenant=a,other=b%20c")
    pipeline = start(endpoint=grpc_receiver.url, protocol="grpc", headers={"Tenant": "b", "X-Run.id": "7"})
    assert deliver(pipeline, "event")
    headers = grpc_receiver.of("logs")[0].headers
    assert ("b", "b c", "7") == (headers["tenant"], headers["other"], headers["x-run.id"])


def test_headers_that_grpc_does_not_allow_are_logged(
    grpc_receiver: Any, start: Start, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """One warning has the variable to change, without the header's value, and everything is in the spool."""
    for headers in ({"x!": TOKEN}, {"x": f"{TOKEN}\u00e9"}, {"x": f"{TOKEN}\t"}, {"x-bin": TOKEN}):
        caplog.clear()
        pipeline = start(endpoint=grpc_receiver.url, protocol="grpc", headers=headers)
        assert not emit_and_flush(pipeline, "first", "second", seconds=0.05)
        assert not pipeline.shutdown()
        assert 1 == len(warnings_with(caplog, "(logs)", "OTEL_EXPORTER_OTLP_HEADERS"))
        assert 2 == pipeline.account()["logs"].on_disk
        assert TOKEN not in caplog.text + capfd.readouterr().err
