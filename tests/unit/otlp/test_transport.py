"""Transports: addresses, proxies, TLS, which connections are kept, and what the answers of a backend mean."""

import json
import select
import socket
import ssl
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # no stubs
from tests.support import hostile
from tests.support.checks import SetEnv, wait_until, warnings_with
from tests.support.grpc_receiver import GrpcReceiver
from tests.support.hostile import OK_HEAD, Behaviour, Peer
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, emit
from tests.support.receiver import Receiver, partial_success

from monitel_otlp.config.settings import resolve
from monitel_otlp.messages.request import Request
from monitel_otlp.transport import make_transports
from monitel_otlp.transport.answer import Answer, Consequence, error_text, one_line, parse_retry_after

SMALL = Request("logs", b"")
COMPLETE = OK_HEAD + b"Content-Length: 0\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0" + b"\0\0\0\4\1\0\0\0\0"  # of HTTP/2, and the acknowledgement
HEADERS = b"\0\0\5\1\5\0\0\0\1" + b"\x08\x03%d"  # with a status
LARGE = Request("logs", bytes(64 << 20))  # more than the buffers of two sockets hold


@pytest.fixture(autouse=True)
def fork_support(setenv: SetEnv) -> None:
    setenv(GRPC_ENABLE_FORK_SUPPORT="0", GRPC_VERBOSITY="ERROR")


def transport(url: str, protocol: str = "http/protobuf") -> Any:
    found = make_transports(resolve(url, protocol=protocol))
    for signal in ("metrics", "traces"):
        found[signal].close()
    return found["logs"]


def attempt(sender: Any, request: Request = SMALL, timeout: float = DEADLINE) -> Answer:
    answer: Answer = sender.send(request, timeout)
    sender.close()
    return answer


def addresses(*ports: int) -> list[Any]:
    """Return addresses of this machine with these ports, as a resolver returns them."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]


@pytest.fixture
def full_port() -> Iterator[int]:
    """A port that does not answer: the queue of its listener is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(("127.0.0.1", port))
        yield port
        for each in waiting:
            each.close()


def test_dead_addresses_share_the_timeout(receiver: Receiver, full_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first two of four addresses do not answer and the third one refuses, the last one is reached in time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = addresses(full_port, full_port, listener.getsockname()[1], receiver.port)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_options: found)
    assert Consequence.DELIVERED is attempt(transport("http://dead.example"), timeout=3.0).consequence


@pytest.fixture
def tls(tmp_path: Path, setenv: SetEnv) -> ssl.SSLContext:
    trustme = pytest.importorskip("trustme", reason="pip install trustme (cryptography may have no wheel)")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "192.0.2.1").configure_cert(context)
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    setenv(OTEL_EXPORTER_OTLP_CERTIFICATE=str(path))
    return context


def test_bundle_of_other_programs_is_used_and_named(tls: ssl.SSLContext, setenv: SetEnv, tmp_path: Path) -> None:
    bundle = str(tmp_path / "authority.pem")
    setenv(OTEL_EXPORTER_OTLP_CERTIFICATE="", REQUESTS_CA_BUNDLE="", CURL_CA_BUNDLE=bundle)
    with Receiver(tls=tls) as receiver:
        assert Consequence.DELIVERED is attempt(transport(receiver.url)).consequence
        setenv(REQUESTS_CA_BUNDLE="missing.pem")
        assert "check REQUESTS_CA_BUNDLE: missing.pem: FileNotFound" in attempt(transport(receiver.url)).reason


@pytest.mark.parametrize("behave", [hostile.drips_headers, hostile.drips_body], ids=["headers", "body"])
@pytest.mark.parametrize("through_proxy", [False, True])
def test_encrypted_attempt_ends(tls: ssl.SSLContext, setenv: SetEnv, behave: Behaviour, through_proxy: bool) -> None:
    def encrypted(peer: Peer, outer: socket.socket) -> None:
        if through_proxy:
            head = peer.read_request(outer)
            assert head.startswith(b"CONNECT 192.0.2.1:4318 HTTP/1.1\r\nHost: 192.0.2.1:4318\r\n")
            outer.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with tls.wrap_socket(outer, server_side=True) as inner:
            behave(peer, inner)

    with Peer(encrypted) as peer:
        url = peer.url.replace("http", "https")
        if through_proxy:
            setenv(HTTPS_PROXY=peer.url)
            url = "https://192.0.2.1:4318"
        answer = attempt(transport(url), timeout=2.0)
        assert peer.requests[-1].startswith(b"POST /v1/logs HTTP/1.1")
    assert (Consequence.DELIVERED if behave is hostile.drips_body else Consequence.RETRY) is answer.consequence, answer


def test_proxy_that_cannot_be_used_is_named(setenv: SetEnv) -> None:
    setenv(HTTPS_PROXY="https://192.0.2.2:3128")
    answer = attempt(transport("https://192.0.2.1:4318"))
    assert Consequence.REFUSED is answer.consequence
    assert "HTTPS_PROXY" in answer.reason
    assert "give its http:// address" in answer.reason


def test_proxy_that_the_core_of_grpc_would_pass_by_is_refused(grpc_receiver: Any, setenv: SetEnv) -> None:
    setenv(http_proxy="https://192.0.2.2:3128")
    answer = attempt(transport(grpc_receiver.url, "grpc"))
    assert (Consequence.REFUSED, True) == (answer.consequence, "http_proxy" in answer.reason)
    assert [] == grpc_receiver.requests
    setenv(no_proxy="localhost")
    url = grpc_receiver.url.replace("127.0.0.1", "localhost")
    assert Consequence.DELIVERED is attempt(transport(url, "grpc")).consequence


def test_next_attempt_over_grpc_is_on_a_new_connection_if_none_answers() -> None:
    def behave(peer: Peer, connection: socket.socket) -> None:
        peer.send(connection, SETTINGS)
        peer.closing.wait()

    with Peer(behave) as peer:
        sender = transport(peer.url, "grpc")
        for _ in range(2):  # on a busy machine an attempt may end before it has connected
            before = peer.connections
            wait_until(lambda: sender.send(SMALL, 0.3).consequence is Consequence.RETRY and peer.connections > before)  # noqa: B023
        sender.close()


def test_stale_connection_is_replaced_without_a_failed_attempt() -> None:
    def behave(peer: Peer, connection: socket.socket) -> None:
        for _ in range(2):
            peer.read_request(connection)
            peer.send(connection, COMPLETE)

    with Peer(behave) as peer:
        sender = transport(peer.url)
        for expected in (1, 1, 2, 2, 3):
            assert Consequence.DELIVERED is sender.send(SMALL, DEADLINE).consequence
            assert expected == peer.connections
            if len(peer.requests) % 2 == 0:
                assert select.select([sender._wire], [], [], DEADLINE)[0]
        sender.close()


@pytest.mark.parametrize(
    ("answer", "is_kept"),
    [
        (COMPLETE, True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + COMPLETE, True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000), False),
    ],
    ids=["complete", "interim", "close", "HTTP/1.0", "long"],
)
def test_connection_is_kept_after_a_complete_answer(answer: bytes, *, is_kept: bool) -> None:
    """A connection that the backend closes, or with an unread part of the answer, is not used again."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        while True:
            peer.read_request(connection)
            peer.send(connection, answer)

    with Peer(behave) as peer:
        sender = transport(peer.url)
        for number in range(1, 4):
            assert Consequence.DELIVERED is sender.send(SMALL, DEADLINE).consequence
            assert (1 if is_kept else number) == peer.connections
        sender.close()


def test_answer_before_the_request_is_read_counts() -> None:
    """A backend may refuse a large request after its headers and close the connection."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        connection.recv(1000)
        peer.send(connection, b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass

    with Peer(behave) as peer:
        assert Consequence.TOO_LARGE is attempt(transport(peer.url), LARGE).consequence


def test_retry_after_is_parsed() -> None:
    soon = datetime.now(timezone.utc) + timedelta(seconds=100)
    assert (7.5, 0.0, None, None) == tuple(map(parse_retry_after, ["7.5", "-1", "nan", None]))
    assert 90 < (parse_retry_after(format_datetime(soon, usegmt=True)) or 0) <= 100


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate], ids=str)
def test_compressed_answer_over_grpc_is_parsed(compression: grpc.Compression) -> None:
    with GrpcReceiver(compression=compression) as receiver:
        receiver.answer("logs", partial_success("logs", 3, "attribute too long" * 20))
        answer = attempt(transport(receiver.url, "grpc"))
    assert (Consequence.DELIVERED, 3) == (answer.consequence, answer.rejected)
    assert answer.reason.startswith("attribute too long")


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (HEADERS % 200, Consequence.REFUSED),
        (HEADERS % 302, Consequence.REFUSED),
        (HEADERS % 413, Consequence.TOO_LARGE),
        (HEADERS % 503, Consequence.RETRY),
        (b"\0\0\4\3\0\0\0\0\1" + b"\0\0\0\2", Consequence.RETRY),  # RST_STREAM
        (b"\0\0\10\7\0\0\0\0\0" + bytes(8), Consequence.RETRY),  # GOAWAY
    ],
)
def test_answer_of_another_server_over_http_2_is_not_about_the_items(frame: bytes, expected: Consequence) -> None:
    """A proxy on the way to a gRPC server redirects, for instance, or the server ends."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        connection.recv(1000)
        peer.send(connection, SETTINGS)
        while b"/Export" not in (received := connection.recv(1000)):
            assert received
        peer.send(connection, frame)
        peer.closing.wait()

    with Peer(behave) as peer:
        answer = attempt(transport(peer.url, "grpc"))
    assert expected is answer.consequence, answer
    assert answer.answered == frame.startswith(HEADERS[:3]), answer


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


def test_headers_are_metadata(grpc_receiver: Any, start: Start, setenv: SetEnv) -> None:
    """The names are in lower case, as gRPC requires; the argument overrides the variable, and the address both."""
    setenv(OTEL_EXPORTER_OTLP_HEADERS="tenant=a,other=b%20c")
    url = grpc_receiver.url.replace("://", "://me:sesame@")
    assert emit(
        start(grpc_receiver, endpoint=url, headers={"Tenant": "b", "X-Run.id": "7", "Authorization": "x"}), "event"
    )
    headers = grpc_receiver.of("logs")[0].headers
    assert ("b", "b c", "7") == (headers["tenant"], headers["other"], headers["x-run.id"])
    assert "Basic bWU6c2VzYW1l" == headers["authorization"]


def test_headers_that_grpc_does_not_allow_are_logged(
    grpc_receiver: Any, start: Start, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """One warning has the variable to change, without the header's value, and everything is in the spool."""
    for headers in ({"x!": TOKEN}, {"x": f"{TOKEN}\u00e9"}, {"x": f"{TOKEN}\t"}, {"x-bin": TOKEN}):
        caplog.clear()
        pipeline = start(grpc_receiver, headers=headers)
        assert not emit(pipeline, "first", "second", seconds=0.05)
        assert not pipeline.shutdown()
        assert 1 == len(warnings_with(caplog, "(logs)", "OTEL_EXPORTER_OTLP_HEADERS"))
        assert 2 == pipeline.account()["logs"].on_disk
        assert TOKEN not in caplog.text + capfd.readouterr().err
