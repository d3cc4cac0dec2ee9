"""A connection on which one deadline and one limit of bytes hold for a whole attempt."""

from __future__ import annotations

import io
import select
import socket
import ssl
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monitel_otlp.transport.resolver import Found

RECEIVED_BYTES = 131_072  # of an attempt: status lines, headers and body; http.client alone takes megabytes
_SLICE = 1 << 18  # bytes that are handed to the kernel at a time


class TooMuchError(OSError):
    """The peer sent more than an answer may have."""


class Wire:
    """A connected socket. Each call waits for as long as the attempt has left, so that no drip prolongs it.

    Args:
        sock: The socket, plain or TLS.
        deadline: Monotonic time by which the attempt ends.
    """

    def __init__(self, sock: Any, deadline: float) -> None:
        self._sock = sock
        self._tunnelled: Wire | None = None
        self.begin(deadline)

    def begin(self, deadline: float) -> None:
        """Begin an attempt."""
        self._deadline = deadline
        self._left_bytes = RECEIVED_BYTES
        self._reader: _Reader | None = _Reader(_Raw(self), 8192)
        if self._tunnelled is not None:
            self._tunnelled.begin(deadline)

    def rest(self) -> None:
        """End an attempt, after which the connection is kept."""
        self._reader = None  # else it and the connection would keep each other alive

    def sendall(self, content: bytes) -> None:
        """Send all of it, or raise TimeoutError."""
        view = memoryview(content)
        while view:
            self._arm()
            view = view[self._sock.send(view[:_SLICE]) :]

    def makefile(self, *_mode: object) -> io.BufferedReader:
        """Return the reader of this attempt; closing it does not close the connection."""
        assert self._reader is not None
        return self._reader

    def recv_into(self, buffer: Any) -> int:
        """Receive some bytes; 0 at the end."""
        view = memoryview(buffer)[: self._left_bytes]
        if not view:
            raise TooMuchError(f"more than {RECEIVED_BYTES} bytes")
        self._arm()
        count: int = self._sock.recv_into(view)
        self._left_bytes -= count
        return count

    def recv(self, size: int) -> bytes:
        """Receive some bytes, for TLS inside TLS."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Make the TLS handshake."""
        self._arm()
        if isinstance(self._sock, ssl.SSLSocket):  # to a proxy, and now through it
            from urllib3.util.ssltransport import SSLTransport  # late: almost never needed

            self._tunnelled = Wire(self._sock, self._deadline)
            self._sock = SSLTransport(self._tunnelled, context, host)  # type: ignore[arg-type]  # all that it calls
        else:
            self._sock = context.wrap_socket(self._sock, server_hostname=host)
        self._reader = _Reader(_Raw(self), 8192)

    def is_stale(self) -> bool:
        """Return True if the peer has closed an idle connection, or sent what nobody asked for."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        number: int = self._sock.fileno()
        return number

    def settimeout(self, timeout: float | None) -> None:
        """Do nothing: the deadline counts."""

    def gettimeout(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self._deadline - time.monotonic())

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._sock.close()

    def __del__(self) -> None:
        self.close()  # of a transport that nobody closed

    def _arm(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)


class _Raw(io.RawIOBase):
    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.recv_into(buffer)


class _Reader(io.BufferedReader):
    """Stays open when a response is closed: the next response of the same attempt may be in its buffer."""

    def close(self) -> None:
        pass


def connect(addresses: Found, deadline: float) -> Wire:
    """Connect to the first address that answers. They share the time that is left.

    Raises:
        OSError: No address could be connected to; the last one's error.
    """
    error: OSError = TimeoutError("timed out")
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left / (len(addresses) - index))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
        except OSError as failed:
            error = failed
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return Wire(sock, deadline)
    raise error
