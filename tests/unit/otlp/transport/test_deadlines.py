"""Time and size limits of an attempt over HTTP, with peers that hang, drip or flood."""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import hostile
from tests.support.checks import in_time
from tests.support.hostile import OK_HEAD, Peer
from tests.support.receiver import Receiver, partial_success
from urllib3.util.ssltransport import SSLTransport

from monitel_otlp.config.settings import resolve
from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.transport.answer import RESPONSE_BYTES, Answer, Verdict
from monitel_otlp.transport.http import HttpTransport
from monitel_otlp.transport.tls import Certificates
from monitel_otlp.transport.wire import RECEIVED_BYTES, TooMuchError, Wire, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.hostile import Behaviour

pytestmark = pytest.mark.timed

TIMEOUT = 1.0
PATIENCE = 1.5  # seconds within which an attempt with this timeout must end
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


def transport(url: str, certificates: Certificates | None = None, **arguments: Any) -> HttpTransport:
    """Return a transport for logs."""
    return HttpTransport(resolve(url).endpoints["logs"], certificates or Certificates(), **arguments)


def attempt(sender: HttpTransport, request: FrozenRequest = SMALL) -> Answer:
    """Make one attempt, which must end in time, and close the connection."""
    with in_time(PATIENCE):
        answer = sender.send(request, TIMEOUT)
    sender.close()
    return answer


@pytest.fixture(params=["directly", "through a proxy"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Peer], str]:
    """Return a function that returns the URL of a peer, directly or with the peer as the proxy."""

    def url(peer: Peer) -> str:
        if request.param == "directly":
            return peer.url
        monkeypatch.setenv("HTTP_PROXY", peer.url)
        return "http://192.0.2.1:4318"

    return url


@pytest.mark.parametrize("behave", BEFORE_HEADERS, ids=lambda each: each.__name__)
def test_attempt_without_complete_headers_fails_in_time(url: Any, behave: Behaviour) -> None:
    """The request is retried, although the backend may have accepted it."""
    with Peer(behave) as peer:
        answer = attempt(transport(url(peer)))
        assert (Verdict.RETRY, False) == (answer.verdict, answer.answered)


@pytest.mark.parametrize("behave", AFTER_HEADERS, ids=lambda each: each.__name__)
def test_success_status_is_a_delivery_with_any_body(url: Any, behave: Behaviour) -> None:
    """After status line and headers, neither the deadline nor an endless body changes the verdict."""
    with Peer(behave) as peer:
        assert Answer(Verdict.DELIVERED) == attempt(transport(url(peer)))


@pytest.mark.parametrize("status", ["400 Bad Request", "500 Oops"])
@pytest.mark.parametrize("piece", [b"x", b"x" * 60_000], ids=["drip", "flood"])
def test_error_status_counts_with_any_body(status: str, piece: bytes) -> None:
    """The body of an error is read only until the deadline."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        peer.read_request(connection)
        peer.send(connection, f"HTTP/1.1 {status}\r\n\r\n".encode())
        if len(piece) > 1:
            peer.flood(connection, piece)
        else:
            peer.drip(connection, iter([piece] * 10_000))

    with Peer(behave) as peer:
        answer = attempt(transport(peer.url))
    assert (Verdict.REJECTED if "400" in status else Verdict.FAILED) is answer.verdict
    assert answer.reason.startswith(f"HTTP {status[:3]}: 'x")
    assert len(answer.reason) <= 500


def test_timeout_includes_sending(url: Any) -> None:
    """A request that was not sent completely was not accepted."""
    with Peer(hostile.never_reads) as peer:
        answer = attempt(transport(url(peer)), LARGE)
    assert (Verdict.RETRY, True) == (answer.verdict, answer.answered)


def test_compressed_answer_is_not_decompressed() -> None:
    """The request asks for an uncompressed answer; a compressed one is a delivery too."""
    with Peer(hostile.sends_bomb) as peer:
        assert Verdict.DELIVERED is attempt(transport(peer.url)).verdict
        assert b"accept-encoding: identity\r\n" in peer.requests[0]


def test_size_of_an_answer_is_limited() -> None:
    """At most 128 KiB of a connection and 64 KiB of a body are read."""
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
def test_partial_success_with_a_long_message_is_counted(size: int) -> None:
    """The number of rejected records comes first; the message is cut to one line."""
    with Receiver() as receiver:
        receiver.answer("logs", partial_success("logs", 7, "a\n" * (size // 2)))
        answer = attempt(transport(receiver.url))
    assert (Verdict.DELIVERED, 7) == (answer.verdict, answer.rejected)
    assert len(answer.reason) <= 500
    assert "\n" not in answer.reason


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
    sender = transport("http://name.example:4318", lookup=lambda *_arguments: found)
    assert Verdict.DELIVERED is attempt(sender).verdict


def test_all_dead_addresses_take_one_timeout(full_port: int) -> None:
    """If no address answers, the attempt ends after one timeout."""
    found = addresses(full_port, full_port, full_port)
    answer = attempt(transport("http://name.example:4318", lookup=lambda *_arguments: found))
    assert (Verdict.RETRY, "no connection in time", True) == (answer.verdict, answer.reason, answer.answered)


def test_refusing_address_is_skipped(receiver: Receiver) -> None:
    """The next address is tried at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = listener.getsockname()[1]
    connect(addresses(refusing, receiver.port), time.monotonic() + TIMEOUT).close()


@pytest.mark.parametrize("way", ["directly", "through a proxy"])
def test_timeout_includes_the_handshake(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake is that of TLS, or the answer of a proxy to CONNECT."""
    with Peer(hostile.never_reads) as peer:
        if way == "through a proxy":
            monkeypatch.setenv("HTTPS_PROXY", peer.url)
        url = peer.url.replace("http", "https") if way == "directly" else "https://192.0.2.1:4318"
        answer = attempt(transport(url))
    assert (Verdict.RETRY, True) == (answer.verdict, answer.answered)
    assert answer.reason.endswith("no connection in time")


def test_slow_handshake_does_not_extend_the_timeout() -> None:
    """A TLS record may arrive byte by byte."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        connection.recv(1 << 16)
        peer.send(connection, b"\x16\x03\x03\x40\x00")  # the header of a record of 16 kB
        peer.drip(connection, iter([b"\x02"] * 10_000))

    with Peer(behave) as peer:
        assert Verdict.RETRY is attempt(transport(peer.url.replace("http", "https"))).verdict


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


@pytest.mark.parametrize("behave", [*BEFORE_HEADERS[:3], *AFTER_HEADERS[:3]], ids=lambda each: each.__name__)
@pytest.mark.parametrize("way", ["directly", "through a proxy", "through a proxy with TLS"])
def test_encrypted_attempt_ends_in_time(
    way: str, behave: Behaviour, tls: tuple[ssl.SSLContext, Certificates], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS may be direct, in the tunnel of a proxy, or in the tunnel of a proxy that itself uses TLS."""
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
    """Speak TLS inside an encrypted tunnel, and then call ``behave``."""

    class Inner(SSLTransport):
        def __init__(self) -> None:
            self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self.suppress_ragged_eofs, self.socket = True, connection
            self.sslobj = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
            self._ssl_io_loop(self.sslobj.do_handshake)

    behave(peer, Inner())  # type: ignore[arg-type]


def test_connection_is_kept_after_a_complete_answer() -> None:
    """A stale connection is replaced without a failed attempt."""

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
    """Wait until the kept connection is closed by the peer."""
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
def test_connection_is_closed_after_other_answers(answer: bytes) -> None:
    """A connection that the backend closes, or with an unread part of the answer, is not used again."""

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
def test_interim_response_is_skipped(interim: bytes) -> None:
    """The final status counts, and the connection is kept."""

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
    """A backend may refuse a large request after its headers and close the connection."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        connection.recv(1000)
        peer.send(connection, b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass

    with Peer(behave) as peer:
        assert Verdict.TOO_LARGE is attempt(transport(peer.url), LARGE).verdict


def test_configured_timeout_limits_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_EXPORTER_OTLP_TIMEOUT applies even if the caller allows more time."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with Peer(hostile.drips_headers) as peer:
        sender = transport(peer.url)
        with in_time(PATIENCE):
            assert Verdict.RETRY is sender.send(SMALL, 30).verdict


def test_attempt_without_time_sends_nothing(receiver: Receiver) -> None:
    """With a timeout of 0 the attempt fails."""
    answer = transport(receiver.url).send(SMALL, 0.0)
    assert (Verdict.RETRY, True) == (answer.verdict, answer.answered)
    assert [] == receiver.requests
