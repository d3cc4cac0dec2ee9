"""A port of this machine that refuses connections until a test starts a backend on it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that no other program gets meanwhile: it is bound, and nobody listens."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: so they can listen on it
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
