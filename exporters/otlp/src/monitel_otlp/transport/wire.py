"""A socket with one deadline and one byte limit for a whole attempt."""

from __future__ import annotations

import io
import os
import selectors
import socket
import ssl
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monitel_otlp.transport.resolver import Found

RECEIVED_BYTES = 131_072  # limit per attempt for status lines, headers and body; http.client accepts megabytes
_SLICE = 1 << 18  # bytes per send call
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # poll() has no limit for descriptors


class TooMuchError(OSError):
    """Raised if the peer sends more than :data:`RECEIVED_BYTES`."""


class Wire:
    """A connected socket. Each call waits at most for the rest of the attempt, so a slow peer cannot prolong it.

    Args:
        sock: The socket, plain or TLS.
        deadline: Monotonic time limit of the attempt.
    """

    def __init__(self, sock: Any, deadline: float) -> None:
        self._sock = sock
        self._status = os.fstat(sock.fileno())
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
        """End an attempt. The connection is kept."""
        self._reader = None  # else the two objects would keep each other alive

    def sendall(self, content: bytes) -> None:
        """Send everything, or raise TimeoutError."""
        view = memoryview(content)
        while view:
            self._arm()
            view = view[self._sock.send(view[:_SLICE]) :]

    def makefile(self, *_mode: object) -> io.BufferedReader:
        """Return the reader of this attempt. Closing the reader does not close the connection."""
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
        if isinstance(self._sock, ssl.SSLSocket):  # TLS to the backend inside TLS to a proxy
            from urllib3.util.ssltransport import SSLTransport  # late: rarely needed

            self._tunnelled = Wire(self._sock, self._deadline)
            self._sock = SSLTransport(self._tunnelled, context, host)  # type: ignore[arg-type]  # it has the methods that are called
        else:
            self._sock = context.wrap_socket(self._sock, server_hostname=host)
        self._reader = _Reader(_Raw(self), 8192)

    def is_stale(self) -> bool:
        """Return True if the peer has closed an idle connection, or has sent unexpected data; or if it is not ours."""
        if not self._is_ours():
            return True
        with _Selector() as selector:
            selector.register(self.fileno(), selectors.EVENT_READ)
            return bool(selector.select(0))

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        number: int = self._sock.fileno()
        return number

    def settimeout(self, timeout: float | None) -> None:
        """Do nothing: the deadline applies."""

    def gettimeout(self) -> float:
        """Return the remaining seconds of the attempt."""
        return max(0.0, self._deadline - time.monotonic())

    def close(self) -> None:
        """Close the connection. A descriptor that the application has closed may be a file of the application."""
        if not self._is_ours():
            (self._tunnelled or self)._sock.detach()
        with suppress(OSError):
            self._sock.close()

    def __del__(self) -> None:
        self.close()  # the transport was not closed

    def _is_ours(self) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.fstat(self.fileno()), self._status)
        return False

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
    """A reader that a response cannot close, because its buffer may hold the next response of the attempt."""

    def close(self) -> None:
        pass


def connect(addresses: Found, deadline: float) -> Wire:
    """Connect to the first address that accepts. The addresses share the remaining time.

    Raises:
        OSError: No connection succeeded. It is the error of the last address.
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
