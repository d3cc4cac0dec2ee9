"""Connections over HTTP: several addresses, proxies, TLS, early and interim answers, and when one is kept."""

import select
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.support import hostile
from tests.support.hostile import OK_HEAD, Behaviour, Peer
from tests.support.inbox import DEADLINE
from tests.support.receiver import Receiver

from monitel_otlp.config.settings import resolve
from monitel_otlp.messages.request import Request
from monitel_otlp.transport import make_transports
from monitel_otlp.transport.answer import Answer, Consequence

SMALL = Request("logs", b"")
LARGE = Request("logs", bytes(64 << 20))  # more than the buffers of two sockets hold


def transport(url: str) -> Any:
    found = make_transports(resolve(url))
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
    """If the first two of three addresses do not answer, the third one is reached within the timeout."""
    found = addresses(full_port, full_port, receiver.port)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_options: found)
    assert (
        Consequence.DELIVERED is attempt(transport("http://dead.example"), timeout=6.0).consequence
    )  # two seconds for each


def test_refusing_address_is_skipped(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next address is tried at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = addresses(listener.getsockname()[1], receiver.port)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_options: found)
    assert Consequence.DELIVERED is attempt(transport("http://refusing.example")).consequence


def test_name_server_that_hangs_does_not_prolong_an_attempt(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt ends at its deadline, and no second lookup begins."""
    answered, lookups = Event(), []

    def look_up(*_arguments: Any, **_options: Any) -> list[Any]:
        lookups.append(1)
        assert answered.wait(DEADLINE)
        return addresses(receiver.port)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    sender = transport("http://unknown.example")
    for _ in range(2):
        answer = sender.send(SMALL, 0.05)
        assert (Consequence.RETRY, "no connection in time") == (answer.consequence, answer.reason)
    assert 1 == len(lookups)
    answered.set()
    assert Consequence.DELIVERED is attempt(sender).consequence


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    trustme = pytest.importorskip("trustme", reason="pip install trustme (cryptography may have no wheel)")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "192.0.2.1").configure_cert(context)
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(path))
    return context


@pytest.mark.parametrize("behave", [hostile.drips_headers, hostile.drips_body], ids=["headers", "body"])
@pytest.mark.parametrize("through_proxy", [False, True])
def test_encrypted_attempt_ends(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, behave: Behaviour, through_proxy: bool
) -> None:
    """TLS may be direct, or in the tunnel of a proxy."""

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
            monkeypatch.setenv("HTTPS_PROXY", peer.url)
            url = "https://192.0.2.1:4318"
        answer = attempt(transport(url), timeout=1.0)
        assert peer.requests[-1].startswith(b"POST /v1/logs HTTP/1.1")
    assert (Consequence.DELIVERED if behave is hostile.drips_body else Consequence.RETRY) is answer.consequence, answer


def test_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is kept until the variable is changed."""
    monkeypatch.setenv("HTTPS_PROXY", "https://192.0.2.2:3128")
    answer = attempt(transport("https://192.0.2.1:4318"))
    assert Consequence.REFUSED is answer.consequence
    assert "HTTPS_PROXY" in answer.reason
    assert "give its http:// address" in answer.reason


def test_connection_is_kept_after_a_complete_answer() -> None:
    """A stale connection is replaced without a failed attempt."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        for _ in range(2):
            peer.read_request(connection)
            peer.send(connection, OK_HEAD + b"Content-Length: 0\r\n\r\n")

    with Peer(behave) as peer:
        sender = transport(peer.url)
        for expected in (1, 1, 2, 2, 3):
            assert Consequence.DELIVERED is sender.send(SMALL, DEADLINE).consequence
            assert expected == peer.connections
            if len(peer.requests) % 2 == 0:
                wait_until_stale(sender)
        sender.close()


def wait_until_stale(sender: Any) -> None:
    """Wait until the kept connection is closed by the peer."""
    assert sender._wire is not None
    assert select.select([sender._wire], [], [], DEADLINE)[0]


def test_connection_is_closed_after_other_answers() -> None:
    """A connection that the backend closes, or with an unread part of the answer, is not used again."""
    answers = [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000),
    ]

    def behave(peer: Peer, connection: socket.socket) -> None:
        peer.read_request(connection)
        peer.send(connection, answers[len(peer.requests) % 3])
        peer.closing.wait()

    with Peer(behave) as peer:
        sender = transport(peer.url)
        for number in range(1, 5):
            assert Consequence.DELIVERED is sender.send(SMALL, DEADLINE).consequence
            assert number == peer.connections
        sender.close()


def test_interim_response_is_skipped() -> None:
    """The final status counts, and the connection is kept."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        while True:
            peer.read_request(connection)
            interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n"
            peer.send(connection, interim + OK_HEAD + b"Content-Length: 0\r\n\r\n")

    with Peer(behave) as peer:
        sender = transport(peer.url)
        assert [Consequence.DELIVERED] * 2 == [sender.send(SMALL, DEADLINE).consequence for _ in range(2)]
        sender.close()
        assert 1 == peer.connections


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
