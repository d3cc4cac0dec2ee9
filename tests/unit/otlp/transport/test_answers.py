"""Answers of a backend over HTTP and gRPC: verdict, reason, pause and rejected items."""

from __future__ import annotations

import gzip
import logging
import random
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from threading import Event
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.grpc_receiver import GrpcAnswer, GrpcReceiver
from tests.support.hostile import Peer
from tests.support.inbox import Answer as Given
from tests.support.receiver import MESSAGES, partial_success

from monitel_otlp.config.settings import resolve
from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.transport.answer import Answer, Verdict, describe, guarded, one_line, parse_retry_after
from monitel_otlp.transport.factory import make_transports
from monitel_otlp.transport.partial_success import delivered

if TYPE_CHECKING:
    from socket import socket

    from tests.support.receiver import Receiver

REQUEST = FrozenRequest("logs", b"", 1, 0)


def answered(url: str, protocol: str = "http/protobuf", request: FrozenRequest = REQUEST) -> Answer:
    """Make one attempt, and return its answer."""
    transport = make_transports(resolve(url, protocol=protocol))["logs"]
    try:
        return transport.send(request, 5.0)
    finally:
        transport.close()


def test_no_date_in_retry_after_raises() -> None:
    """Each of 20,000 random dates gives seconds or None."""
    rng = random.Random(4711)
    days = ["Mon", "Tue", "", "Xyz"]
    zones = ["GMT", "+0000", "-9999", "+99999999", "", "-0000", "EST", "UTC+", "+24:00"]
    for _ in range(20_000):
        value = (
            f"{rng.choice(days)}, {rng.randint(-1, 40)} {rng.choice(['Jan', 'Feb', 'Dec', 'Foo'])} "
            f"{rng.choice([0, 1, 69, 99, 1969, 2026, 9999, 10_000, 10**20])} "
            f"{rng.randint(-1, 30)}:{rng.randint(0, 70)}:{rng.randint(0, 70)} {rng.choice(zones)}"
        )
        assert_seconds(parse_retry_after(value))


@given(st.text() | st.floats().map(str) | st.integers().map(str))
def test_no_text_in_retry_after_raises(value: str) -> None:
    """Any text gives seconds or None."""
    assert_seconds(parse_retry_after(value))


def assert_seconds(found: float | None) -> None:
    """Assert that the result is a number of at least 0, or None."""
    assert found is None or found >= 0


def test_retry_after_is_parsed() -> None:
    """The value may be a number of seconds or a date."""
    soon = datetime.now(timezone.utc) + timedelta(seconds=100)
    assert (7.5, 0.0, None, None) == tuple(map(parse_retry_after, ["7.5", "-1", "nan", None]))
    assert 90 < (parse_retry_after(format_datetime(soon, usegmt=True)) or 0) <= 100


@pytest.mark.parametrize(
    ("given_answer", "verdict", "reason"),
    [
        (Given(200), Verdict.DELIVERED, ""),
        (Given(202, body=b"<html>"), Verdict.DELIVERED, ""),
        (Given(204, body=b""), Verdict.DELIVERED, ""),
        (Given(200, {"Content-Encoding": "gzip"}, b"plain"), Verdict.DELIVERED, ""),
        (Given(200, fault="drop in answer"), Verdict.DELIVERED, ""),
        (Given(408), Verdict.RETRY, "HTTP 408"),
        (Given(429, {"Retry-After": "3"}), Verdict.RETRY, "HTTP 429"),
        (Given(503), Verdict.RETRY, "HTTP 503"),
        (Given(401), Verdict.REFUSED, "HTTP 401: the endpoint requires credentials: set OTEL_EXPORTER_OTLP_HEADERS"),
        (Given(301, {"Location": "https://b/?k=1"}), Verdict.REFUSED, "HTTP 301: redirected to 'https://b/'"),
        (Given(308, {"Location": "/x?k=1"}), Verdict.REFUSED, "HTTP 308: redirected to '/x', set"),
        (Given(302, {"Location": "//u:p@h"}), Verdict.REFUSED, "HTTP 302: redirected, set its target as the endpoint"),
        (Given(302), Verdict.REFUSED, "HTTP 302: redirected, set its target as the endpoint"),
        (Given(413, body=b"big"), Verdict.TOO_LARGE, "HTTP 413: 'big'"),
        (Given(400, body=b"a\r\nb\x1b[0m"), Verdict.REJECTED, r"HTTP 400: 'a\r\nb\x1b[0m'"),
        (Given(500, body=b"oops"), Verdict.FAILED, "HTTP 500: 'oops'"),
        (Given(500, body=b"out of order sample"), Verdict.REJECTED, "HTTP 500: 'out of order"),
        (Given(fault="drop unanswered"), Verdict.RETRY, "RemoteDisconnected"),
    ],
    ids=str,
)
def test_verdict_of_an_answer_over_http(receiver: Receiver, given_answer: Given, verdict: Verdict, reason: str) -> None:
    """The status decides; the reason has the part of the body that fits a log line."""
    receiver.answer("logs", given_answer)
    answer = answered(receiver.url)
    assert (verdict, True) == (answer.verdict, answer.reason.startswith(reason)), answer
    assert (3.0 if given_answer.status == 429 else None) == answer.retry_after
    assert ("drop unanswered" != given_answer.fault) is answer.answered


def test_redirection_is_not_followed(receiver: Receiver) -> None:
    """Otherwise the target would receive the data and the headers."""
    receiver.answer("logs", Given(307, {"Location": f"{receiver.url}/v1/metrics"}))
    assert Verdict.REFUSED is answered(receiver.url).verdict
    assert [307] == [request.answer.status for request in receiver.requests]


@pytest.mark.parametrize(
    "content",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"",
    ],
    ids=lambda content: repr(content[:30]),
)
def test_invalid_http_is_a_failed_attempt(content: bytes) -> None:
    """No answer makes an attempt raise."""

    def behave(peer: Peer, connection: socket) -> None:
        peer.read_request(connection)
        peer.send(connection, content)

    with Peer(behave) as peer:
        answer = answered(peer.url)
    assert Verdict.DELIVERED is not answer.verdict
    assert answer.reason.isprintable()
    assert answer.reason


@pytest.mark.parametrize(
    "url", ["http://nowhere.invalid", "http://127.0.0.1:9", "https://127.0.0.1:9", "http://[::1]:9"]
)
def test_failed_connection_is_a_failed_attempt(url: str) -> None:
    """The request is retried, and the backend has not accepted it."""
    answer = answered(url)
    assert (Verdict.RETRY, True) == (answer.verdict, answer.answered)


class OddError(Exception):
    """An exception whose message raises."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error",
    [OddError(), UnicodeError("label"), RecursionError(), MemoryError(), AssertionError(), OSError("http://u:p@h")],
)
def test_exception_is_a_failed_attempt(error: Exception) -> None:
    """The reason is the type of the exception without its message, which may contain an address."""

    def fail() -> Answer:
        raise error

    assert Answer(Verdict.RETRY, type(error).__name__, answered=False) == guarded(fail, str)
    assert type(error).__name__ == describe(error)


def test_keyboard_interrupt_is_not_a_failed_attempt() -> None:
    """Exceptions that end the process are raised."""

    def fail() -> Answer:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(fail, str)


@given(st.text(max_size=2000))
def test_reason_is_one_line(text: str) -> None:
    """The reason is printable and at most 500 characters long."""
    shown = one_line(text)
    assert shown.isprintable()
    assert len(shown) <= 500
    shown.encode()


@given(st.integers(0, 2**63 - 1), st.text(max_size=50), st.integers(0, 400))
def test_truncated_partial_success_is_parsed_as_far_as_possible(rejected: int, message: str, kept: int) -> None:
    """The number of rejected items is either exact or 0."""
    content = partial_success("logs", rejected, message).body or b""
    whole = delivered("logs", content)
    part = delivered("logs", content[:kept], complete=False)
    assert (Verdict.DELIVERED, rejected, message) == (whole.verdict, whole.rejected, whole.reason)
    assert part.rejected in {0, rejected}
    if kept >= len(content):
        assert whole == part


@given(st.binary(max_size=60), st.booleans())
def test_any_body_of_a_success_is_a_delivery(content: bytes, complete: bool) -> None:
    """The body may contain any bytes."""
    answer = delivered("metrics", content, complete=complete)
    assert Verdict.DELIVERED is answer.verdict
    assert 0 <= answer.rejected < 2**63


@pytest.mark.parametrize("size", [70_000, 5_000_000])
def test_large_answer_over_grpc_is_a_delivery(grpc_receiver: GrpcReceiver, size: int) -> None:
    """An answer that is too large does not mean that the request was too large."""
    grpc_receiver.rule(lambda _request: GrpcAnswer(body=bytes(size)))
    answer = answered(grpc_receiver.url, "grpc")
    assert Verdict.DELIVERED is answer.verdict
    assert 1 == len(grpc_receiver.requests)


@pytest.mark.parametrize(
    "details",
    [
        "SERVER: Received message larger than max (5000000 vs. 4194304)",
        "grpc: received message larger than max (5000000 vs. 65536)",
        "CLIENT: Received message larger than max (70000 vs. 65536)",
        "Decompressed message larger than max",
        "",
    ],
)
def test_size_error_over_grpc_means_too_large(grpc_receiver: GrpcReceiver, details: str) -> None:
    """RESOURCE_EXHAUSTED without a pause means that the request is too large, whatever the details are."""
    grpc_receiver.rule(lambda _request: GrpcAnswer(code=grpc.StatusCode.RESOURCE_EXHAUSTED, details=details))
    assert Verdict.TOO_LARGE is answered(grpc_receiver.url, "grpc").verdict


def test_request_beyond_the_servers_limit_is_too_large(grpc_receiver: GrpcReceiver) -> None:
    """GRPC's core refuses requests of more than 4 MiB by default."""
    body = MESSAGES["logs"][0]()
    body.resource_logs.add().schema_url = "x" * 5_000_000
    request = FrozenRequest("logs", body.SerializeToString(), 1, 0)
    assert Verdict.TOO_LARGE is answered(grpc_receiver.url, "grpc", request).verdict


@pytest.fixture(params=[grpc.Compression.Gzip, grpc.Compression.Deflate, grpc.Compression.NoCompression], ids=str)
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
    server.stop(None).wait(10)
    pool.shutdown()


def test_compressed_answer_over_grpc_is_parsed(compressing: str) -> None:
    """A partial success in a compressed answer counts."""
    content = partial_success("logs", 3, "attribute too long" * 20).body or b""
    answer = answered(compressing, "grpc", FrozenRequest("logs", content, 1, 0))
    assert (Verdict.DELIVERED, 3) == (answer.verdict, answer.rejected)
    assert answer.reason.startswith("attribute too long")


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, bytes])
def test_decompression_bomb_over_grpc_is_a_delivery(grpc_receiver: GrpcReceiver, pack: Any) -> None:
    """At most 64 KiB of an answer are decompressed."""
    grpc_receiver.rule(lambda _request: GrpcAnswer(body=pack(bytes(20_000_000))))
    assert Verdict.DELIVERED is answered(grpc_receiver.url, "grpc").verdict


def test_negative_retry_info_means_no_pause(grpc_receiver: GrpcReceiver) -> None:
    """The attempt may be repeated at once."""
    grpc_receiver.answer("logs", GrpcAnswer(code=grpc.StatusCode.UNAVAILABLE, retry_delay=-5.0))
    answer = answered(grpc_receiver.url, "grpc")
    assert (Verdict.RETRY, 0.0) == (answer.verdict, answer.retry_after)


def test_attempt_logs_nothing(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG the underlying libraries would log the address with its query."""
    caplog.set_level(logging.DEBUG)
    assert Verdict.DELIVERED is answered(receiver.url).verdict
    assert "" == caplog.text


def test_transports_of_signals_are_independent(receiver: Receiver) -> None:
    """The transports of all signals can be used concurrently, and closed twice."""
    transports = make_transports(resolve(receiver.url))
    gate = Event()

    def attempt(signal: str) -> Verdict:
        gate.wait(10)
        return transports[signal].send(FrozenRequest(signal, b"", 1, 0), 5.0).verdict

    with ThreadPoolExecutor() as pool:
        found = pool.map(attempt, transports)
        gate.set()
        assert [Verdict.DELIVERED] * 3 == list(found)
    for transport in transports.values():
        transport.close()
        transport.close()
