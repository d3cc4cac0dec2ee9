"""Peers that break, hang or attack: plain sockets whose connections are each handed to a function."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from socket import SHUT_RDWR, SO_REUSEADDR, SOL_SOCKET, create_server, socket
from threading import Event, Thread

from tests.support.inbox import DEADLINE

Behaviour = Callable[["Peer", socket], object]

DRIP_INTERVAL = 0.02  # seconds between two pieces
OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"


def url_of(listening: socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def refusing_url() -> str:
    with create_server(("127.0.0.1", 0)) as closed:
        return url_of(closed)


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that refuses connections until a test starts a backend on it: it is bound, and nobody listens."""
    with socket() as holder:
        holder.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)  # as servers do: so they can listen on it
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


class Peer:
    """A server with a thread for each connection, which calls ``behave``; use it as a context manager."""

    def __init__(self, behave: Behaviour) -> None:
        self.sent_bytes = 0  # that the kernel has accepted
        self.connections = 0
        self.requests: list[bytes] = []  # that read_request() has read
        self._behave = behave
        self.closing = Event()
        self._open: list[socket] = []
        self._threads: list[Thread] = []
        self._listener = create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Peer:  # noqa: PYI034  typing.Self is 3.11's
        self._run(self._accept)
        return self

    def __exit__(self, *_exception: object) -> None:
        self.closing.set()
        for each in [self._listener, *self._open]:
            with suppress(OSError):  # the client may have closed it first
                each.shutdown(SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        self._listener.close()

    def send(self, connection: socket, content: bytes) -> None:
        connection.sendall(content)
        self.sent_bytes += len(content)

    def drip(self, connection: socket, piece: bytes) -> None:
        while not self.closing.wait(DRIP_INTERVAL):
            self.send(connection, piece)

    def flood(self, connection: socket, content: bytes) -> None:
        while not self.closing.is_set():
            self.send(connection, content)

    def read_request(self, connection: socket) -> bytes:
        content = b""
        while b"\r\n\r\n" not in content:
            content += self._received(connection)
        head, _, body = content.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().splitlines() if line.startswith(b"content-length:")]
        length = int(lengths[0].partition(b":")[2]) if lengths else 0
        while len(body) < length:
            body += self._received(connection)
        self.requests.append(head + b"\r\n\r\n" + body)
        return self.requests[-1]

    def _received(self, connection: socket) -> bytes:
        content = connection.recv(1 << 16)
        if not content:
            raise ConnectionError("the client has left")
        return content

    def _accept(self) -> None:
        with suppress(OSError):  # of the listener that is shut down
            while True:
                connection = self._listener.accept()[0]
                self.connections += 1
                self._open.append(connection)
                self._run(partial(self._serve, connection))

    def _serve(self, connection: socket) -> None:
        with connection, suppress(OSError):
            self._behave(self, connection)

    def _run(self, work: Callable[[], object]) -> None:
        self._threads.append(Thread(target=work, daemon=True))
        self._threads[-1].start()


def _sending(name: str, head: bytes, send: Callable[[Peer, socket, bytes], None], content: bytes) -> Behaviour:
    """Return a behaviour that answers a request with the head, and then with the content, endlessly."""

    def behave(peer: Peer, connection: socket) -> None:
        peer.read_request(connection)
        peer.send(connection, head)
        send(peer, connection, content)

    behave.__name__ = name
    return behave


_HEAD, _CHUNKED = b"HTTP/1.1 200 OK\r\n", b"Transfer-Encoding: chunked\r\n\r\n"
drips_headers = _sending("drips_headers", _HEAD + b"X: ", Peer.drip, b"y")
drips_body = _sending("drips_body", OK_HEAD + b"Content-Length: 100000\r\n\r\n", Peer.drip, b"\0")
drips_events = _sending(
    "drips_events", _HEAD + b"Content-Type: text/event-stream\r\n" + _CHUNKED, Peer.drip, b"6\r\n: hi\n\n\r\n"
)
continues_forever = _sending("continues_forever", b"", Peer.flood, b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
sends_headers_forever = _sending("headers_forever", _HEAD, Peer.flood, b"X-A: " + b"b" * 60_000 + b"\r\n")
sends_one_endless_line = _sending("one_endless_line", b"", Peer.flood, b"H" * 60_000)
sends_chunks_forever = _sending("chunks_forever", OK_HEAD + _CHUNKED, Peer.flood, b"1000\r\n" + b"\0" * 4096 + b"\r\n")


def sends_bomb(peer: Peer, connection: socket) -> None:
    peer.read_request(connection)
    content = gzip.compress(bytes(1 << 20)) * 300  # consecutive gzip members form one file
    peer.send(connection, OK_HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
    peer.closing.wait()


def never_answers(peer: Peer, connection: socket) -> None:
    peer.read_request(connection)
    peer.closing.wait()


def never_reads(peer: Peer, _connection: socket) -> None:
    peer.closing.wait()
