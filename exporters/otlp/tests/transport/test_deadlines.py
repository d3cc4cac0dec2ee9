"""An attempt over HTTP ends in time, and reads no more than an answer may have, whatever the peer does."""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from urllib3.util.ssltransport import SSLTransport

from monitel_otlp.config.settings import resolve
from monitel_otlp.request import FrozenRequest
from monitel_otlp.transport.answer import RESPONSE_BYTES, Answer, Verdict
from monitel_otlp.transport.http import HttpTransport
from monitel_otlp.transport.tls import Certificates
from monitel_otlp.transport.wire import RECEIVED_BYTES, TooMuchError, Wire, connect

from . import hostile
from .hostile import OK_HEAD, Peer
from .receiver import Receiver, partial_success

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .hostile import Behaviour

TIMEOUT = 1.0
PATIENCE = 1.5  # by when an attempt with this timeout is over
SMALL = FrozenRequest("logs", b"", 1, 0)
LARGE = FrozenRequest("logs", bytes(64 << 20), 1, 0)  # more than the buffers of two sockets hold

BEFORE_HEADERS = [
    hostile.drips_status_line,
    hostile.drips_headers,
    hostile.continues_forever,
    hostile.hints_forever,
    hostile.sends_headers_forever,
    hostile.sends_one_endless_line,
    hostile.never_answers,
]
AFTER_HEADERS = [
    hostile.drips_body,
    hostile.drips_events,
    hostile.sends_body_forever,
    hostile.sends_chunks_forever,
    hostile.sends_bomb,
]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect to the peer itself."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def transport(url: str, certificates: Certificates | None = None, **arguments: Any) -> HttpTransport:
    """Make a transport for logs."""
    return HttpTransport(resolve(url).endpoints["logs"], certificates or Certificates(), **arguments)


def attempt(sender: HttpTransport, request: FrozenRequest = SMALL) -> Answer:
    """Make one attempt, which must end in time, and close the connection."""
    began = time.monotonic()
    answer = sender.send(request, TIMEOUT)
    taken = time.monotonic() - began
    sender.close()
    assert taken < PATIENCE
    return answer


@pytest.fixture(params=["directly", "through a proxy"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Peer], str]:
    """Return a function that gives the URL by which a peer is reached; through a proxy the peer is the proxy."""

    def url(peer: Peer) -> str:
        if request.param == "directly":
            return peer.url
        monkeypatch.setenv("HTTP_PROXY", peer.url)
        return "http://192.0.2.1:4318"

    return url


@pytest.mark.parametrize("behave", BEFORE_HEADERS, ids=lambda each: each.__name__)
def test_attempt_without_complete_headers_fails_in_time(url: Any, behave: Behaviour) -> None:
    """It is retried; the backend may have accepted the request."""
    with Peer(behave) as peer:
        answer = attempt(transport(url(peer)))
        assert (Verdict.RETRY, False) == (answer.verdict, answer.answered)


@pytest.mark.parametrize("behave", AFTER_HEADERS, ids=lambda each: each.__name__)
def test_success_status_is_a_delivery_in_time_whatever_the_body_is(url: Any, behave: Behaviour) -> None:
    """Once status line and headers are in, neither the deadline nor a body without end changes anything."""
    with Peer(behave) as peer:
        assert Answer(Verdict.DELIVERED) == attempt(transport(url(peer)))


@pytest.mark.parametrize("status", ["400 Bad Request", "500 Oops"])
@pytest.mark.parametrize("piece", [b"x", b"x" * 60_000], ids=["drip", "flood"])
def test_error_status_counts_in_time_whatever_the_body_is(status: str, piece: bytes) -> None:
    """The body of an error is not waited for beyond the deadline either."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        peer.read_request(connection)
        peer.send(connection, f"HTTP/1.1 {status}\r\n\r\n".encode())
        (peer.flood if len(piece) > 1 else lambda to, what: peer.drip(to, iter([what] * 10_000)))(connection, piece)

    with Peer(behave) as peer:
        answer = attempt(transport(peer.url))
    assert (Verdict.REJECTED if "400" in status else Verdict.FAILED) is answer.verdict
    assert answer.reason.startswith(f"HTTP {status[:3]}: 'x")
    assert len(answer.reason) <= 500


def test_peer_that_does_not_read_costs_the_timeout(url: Any) -> None:
    """Sending is a part of the attempt; a request that was not sent whole was not accepted."""
    with Peer(hostile.never_reads) as peer:
        answer = attempt(transport(url(peer)), LARGE)
    assert (Verdict.RETRY, True) == (answer.verdict, answer.answered)


def test_compressed_answer_is_not_decompressed() -> None:
    """An answer in gzip, which was not asked for, is a delivery too; the request asks for none."""
    with Peer(hostile.sends_bomb) as peer:
        assert Verdict.DELIVERED is attempt(transport(peer.url)).verdict
        assert b"accept-encoding: identity\r\n" in peer.requests[0]


def test_endless_peer_is_not_read_to_its_end() -> None:
    """A connection is given up after 128 KiB, and an answer's body after 64 KiB."""
    near, far = socket.socketpair()
    with near, far:
        far.setblocking(False)
        sent = 0
        wire = Wire(near, time.monotonic() + TIMEOUT)
        while sent < RECEIVED_BYTES:
            sent += far.send(bytes(8192))
            wire.recv_into(bytearray(8192))
        far.send(b"x")
        with pytest.raises(TooMuchError):
            wire.recv_into(bytearray(1))
    assert 64 << 10 == RESPONSE_BYTES


@pytest.mark.parametrize("size", [10, 10_000_000])
def test_partial_success_is_counted_even_if_its_message_does_not_fit(size: int) -> None:
    """The number of rejected records comes first; the message is cut off and kept to one line."""
    with Receiver() as receiver:
        receiver.answer("logs", partial_success("logs", 7, "a\n" * (size // 2)))
        answer = attempt(transport(receiver.url))
    assert (Verdict.DELIVERED, 7) == (answer.verdict, answer.rejected)
    assert len(answer.reason) <= 500
    assert "\n" not in answer.reason


def addresses(*ports: int) -> list[Any]:
    """Return what a resolver returns for a name with these ports on this machine."""
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


def test_dead_addresses_share_the_time(receiver: Receiver, full_port: int) -> None:
    """Of three addresses two do not answer: the third one is reached within the timeout."""
    found = addresses(full_port, full_port, receiver.port)
    sender = transport("http://name.example:4318", lookup=lambda *_arguments: found)
    assert Verdict.DELIVERED is attempt(sender).verdict


def test_dead_addresses_alone_cost_one_timeout(full_port: int) -> None:
    """Three addresses that do not answer do not take three timeouts."""
    found = addresses(full_port, full_port, full_port)
    answer = attempt(transport("http://name.example:4318", lookup=lambda *_arguments: found))
    assert (Verdict.RETRY, "no connection in time", True) == (answer.verdict, answer.reason, answer.answered)


def test_connecting_tries_each_address(receiver: Receiver) -> None:
    """An address that refuses the connection is passed over."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = listener.getsockname()[1]
    connect(addresses(refusing, receiver.port), time.monotonic() + TIMEOUT).close()


@pytest.mark.parametrize("way", ["directly", "through a proxy"])
def test_handshake_that_hangs_costs_the_timeout(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS is a part of the attempt; so is the answer of a proxy that is to make a tunnel."""
    with Peer(hostile.never_reads) as peer:
        if way == "through a proxy":
            monkeypatch.setenv("HTTPS_PROXY", peer.url)
        url = peer.url.replace("http", "https") if way == "directly" else "https://192.0.2.1:4318"
        answer = attempt(transport(url))
    assert (Verdict.RETRY, True) == (answer.verdict, answer.answered)
    assert answer.reason.endswith("no connection in time")


def test_handshake_that_drips_costs_the_timeout() -> None:
    """A TLS record that comes byte by byte does not prolong the attempt."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        connection.recv(1 << 16)
        peer.send(connection, b"\x16\x03\x03\x40\x00")  # the head of a record of 16 kB
        peer.drip(connection, iter([b"\x02"] * 10_000))

    with Peer(behave) as peer:
        assert Verdict.RETRY is attempt(transport(peer.url.replace("http", "https"))).verdict


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, Certificates]:
    """A server's context, and the certificates by which a client trusts it."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "192.0.2.1").configure_cert(context)
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    return context, Certificates(str(path))


@pytest.mark.parametrize("behave", [*BEFORE_HEADERS[:3], *AFTER_HEADERS[:3]], ids=lambda each: each.__name__)
@pytest.mark.parametrize("way", ["directly", "through a proxy", "through a proxy with TLS"])
def test_encrypted_attempt_ends_in_time(
    way: str, behave: Behaviour, tls: tuple[ssl.SSLContext, Certificates], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same over TLS, through the tunnel of a proxy, and through one that is encrypted itself."""
    context, certificates = tls

    def inside(peer: Peer, connection: socket.socket) -> None:
        if way != "directly":
            head = peer.read_request(connection)
            assert head.startswith(b"CONNECT 192.0.2.1:4318 HTTP/1.1\r\nHost: 192.0.2.1:4318\r\n")
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        if way == "through a proxy with TLS":
            tls_in_tls(peer, connection, context, behave)
        else:
            with context.wrap_socket(connection, server_side=True) as inner:
                behave(peer, inner)

    def encrypted(peer: Peer, connection: socket.socket) -> None:
        if way == "through a proxy with TLS":
            with context.wrap_socket(connection, server_side=True) as outer:
                inside(peer, outer)
        else:
            inside(peer, connection)

    with Peer(encrypted) as peer:
        if way != "directly":
            monkeypatch.setenv("HTTPS_PROXY", peer.url.replace("http", "https") if "with TLS" in way else peer.url)
        url = "https://192.0.2.1:4318" if way != "directly" else peer.url.replace("http", "https")
        answer = attempt(transport(url, certificates))
    expected = Verdict.RETRY if behave in BEFORE_HEADERS else Verdict.DELIVERED
    assert expected is answer.verdict, answer


def tls_in_tls(peer: Peer, connection: socket.socket, context: ssl.SSLContext, behave: Behaviour) -> None:
    """Speak TLS inside the tunnel, and behave so."""

    class Inner(SSLTransport):
        def __init__(self) -> None:
            self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self.suppress_ragged_eofs, self.socket = True, connection
            self.sslobj = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
            self._ssl_io_loop(self.sslobj.do_handshake)

    behave(peer, Inner())  # type: ignore[arg-type]


def test_connection_is_kept_when_the_answer_was_read() -> None:
    """Of a complete answer only; a stale connection is replaced without a failed attempt."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        for _ in range(2):
            peer.read_request(connection)
            peer.send(connection, OK_HEAD + b"Content-Length: 0\r\n\r\n")

    with Peer(behave) as peer:
        sender = transport(peer.url)
        for expected in (1, 1, 2, 2, 3):
            assert Verdict.DELIVERED is sender.send(SMALL, TIMEOUT).verdict
            assert expected == peer.connections
            if len(peer.requests) % 2 == 0:
                wait_until_stale(sender)
        sender.close()


def wait_until_stale(sender: HttpTransport) -> None:
    """Wait until the peer's end of the kept connection has arrived."""
    assert sender._wire is not None
    assert select.select([sender._wire], [], [], 10)[0]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000),
    ],
    ids=["close", "HTTP/1.0", "long"],
)
def test_connection_is_closed_when_the_answer_does_not_allow_more(answer: bytes) -> None:
    """A connection that the backend ends, or on which a part of the answer is unread, is not used again."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        peer.read_request(connection)
        peer.send(connection, answer)
        peer.closing.wait()

    with Peer(behave) as peer:
        sender = transport(peer.url)
        for _ in range(2):
            assert Verdict.DELIVERED is sender.send(SMALL, TIMEOUT).verdict
        sender.close()
        assert 2 == peer.connections


@pytest.mark.parametrize("interim", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_interim_response_is_passed_over(interim: bytes) -> None:
    """The final status counts; the connection is kept."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        while True:
            peer.read_request(connection)
            peer.send(connection, b"HTTP/1.1 %s\r\n\r\n" % interim + OK_HEAD + b"Content-Length: 0\r\n\r\n")

    with Peer(behave) as peer:
        sender = transport(peer.url)
        assert [Verdict.DELIVERED] * 2 == [sender.send(SMALL, TIMEOUT).verdict for _ in range(2)]
        sender.close()
        assert 1 == peer.connections


def test_answer_before_the_request_is_read_counts() -> None:
    """A backend that refuses a large request by its head is understood, although it closes the connection."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        connection.recv(1000)
        peer.send(connection, b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass

    with Peer(behave) as peer:
        assert Verdict.TOO_LARGE is attempt(transport(peer.url), LARGE).verdict


def test_timeout_of_the_configuration_counts_if_it_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_EXPORTER_OTLP_TIMEOUT bounds the attempt, whatever time the caller has."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with Peer(hostile.drips_headers) as peer:
        sender = transport(peer.url)
        began = time.monotonic()
        assert Verdict.RETRY is sender.send(SMALL, 30).verdict
        assert time.monotonic() - began < PATIENCE


def test_no_time_is_a_failed_attempt(receiver: Receiver) -> None:
    """With nothing left nothing is sent."""
    answer = transport(receiver.url).send(SMALL, 0.0)
    assert (Verdict.RETRY, True) == (answer.verdict, answer.answered)
    assert [] == receiver.requests
