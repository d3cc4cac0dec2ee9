"""Connections over HTTP: several addresses, proxies, TLS, early and interim answers, and when one is kept."""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import hostile
from tests.support.hostile import OK_HEAD, Peer
from tests.support.inbox import DEADLINE

from monitel_otlp.config.settings import resolve
from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.transport import http, wire
from monitel_otlp.transport.answer import Answer, Verdict
from monitel_otlp.transport.http import HttpTransport
from monitel_otlp.transport.tls import Certificates
from monitel_otlp.transport.wire import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.hostile import Behaviour
    from tests.support.receiver import Receiver

SMALL = FrozenRequest("logs", b"", 1)
LARGE = FrozenRequest("logs", bytes(64 << 20), 1)  # more than the buffers of two sockets hold


def transport(url: str, certificates: Certificates | None = None, **arguments: Any) -> HttpTransport:
    """Return a transport for logs."""
    return HttpTransport(resolve(url).endpoints["logs"], certificates or Certificates(), **arguments)


def attempt(sender: HttpTransport, request: FrozenRequest = SMALL, timeout: float = DEADLINE) -> Answer:
    """Make one attempt, and close the connection."""
    answer = sender.send(request, timeout)
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


def test_dead_addresses_share_the_timeout(receiver: Receiver, full_port: int) -> None:
    """If the first two of three addresses do not answer, the third one is reached within the timeout."""
    found = addresses(full_port, full_port, receiver.port)
    sender = transport("http://127.0.0.1:4318", lookup=lambda *_arguments: found)
    assert Verdict.DELIVERED is attempt(sender, timeout=6.0).verdict  # two seconds for each


def test_refusing_address_is_skipped(receiver: Receiver) -> None:
    """The next address is tried at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = listener.getsockname()[1]
    connect(addresses(refusing, receiver.port), time.monotonic() + DEADLINE).close()


@pytest.mark.parametrize("is_used", [False, True])
def test_descriptor_that_the_application_has_closed_is_left_alone(receiver: Receiver, *, is_used: bool) -> None:
    """Its number may be that of a connection of the application, which gets no request and is not closed."""
    sender = transport(f"http://127.0.0.1:{receiver.port}")
    assert Verdict.DELIVERED is sender.send(SMALL).verdict
    assert sender._wire is not None
    number = sender._wire.fileno()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.dup2(ours.fileno(), number)
        if is_used:
            assert Verdict.DELIVERED is sender.send(SMALL).verdict
        sender.close()
        os.write(number, b"mine")
        assert b"mine" == theirs.recv(1000)
        os.close(number)


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, Certificates]:
    """A server's context, and the certificates with which a client trusts it."""
    trustme = pytest.importorskip("trustme", reason="pip install trustme (cryptography may have no wheel)")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "192.0.2.1").configure_cert(context)
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    return context, Certificates(str(path))


@pytest.mark.parametrize(
    ("behave", "through_a_proxy"),
    [(hostile.drips_headers, False), (hostile.drips_body, True)],
    ids=["directly", "through a proxy"],
)
def test_encrypted_attempt_ends(
    tls: tuple[ssl.SSLContext, Certificates],
    monkeypatch: pytest.MonkeyPatch,
    behave: Behaviour,
    *,
    through_a_proxy: bool,
) -> None:
    """TLS may be direct, or in the tunnel of a proxy. The clock advances by a second with each read or write."""
    context, certificates = tls
    seconds = count(time.monotonic())
    for module in (http, wire):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))

    def encrypted(peer: Peer, connection: socket.socket) -> None:
        if through_a_proxy:
            head = peer.read_request(connection)
            assert head.startswith(b"CONNECT 192.0.2.1:4318 HTTP/1.1\r\nHost: 192.0.2.1:4318\r\n")
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with context.wrap_socket(connection, server_side=True) as inner:
            behave(peer, inner)

    with Peer(encrypted) as peer:
        url = peer.url.replace("http", "https")
        if through_a_proxy:
            monkeypatch.setenv("HTTPS_PROXY", peer.url)
            url = "https://192.0.2.1:4318"
        answer = attempt(transport(url, certificates), timeout=100.0)
    assert (Verdict.DELIVERED if behave is hostile.drips_body else Verdict.RETRY) is answer.verdict, answer


def test_connection_is_kept_after_a_complete_answer() -> None:
    """A stale connection is replaced without a failed attempt."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        for _ in range(2):
            peer.read_request(connection)
            peer.send(connection, OK_HEAD + b"Content-Length: 0\r\n\r\n")

    with Peer(behave) as peer:
        sender = transport(peer.url)
        for expected in (1, 1, 2, 2, 3):
            assert Verdict.DELIVERED is sender.send(SMALL, DEADLINE).verdict
            assert expected == peer.connections
            if len(peer.requests) % 2 == 0:
                wait_until_stale(sender)
        sender.close()


def wait_until_stale(sender: HttpTransport) -> None:
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
            assert Verdict.DELIVERED is sender.send(SMALL, DEADLINE).verdict
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
        assert [Verdict.DELIVERED] * 2 == [sender.send(SMALL, DEADLINE).verdict for _ in range(2)]
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
        assert Verdict.TOO_LARGE is attempt(transport(peer.url), LARGE).verdict
