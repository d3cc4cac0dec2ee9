"""Name resolution with a deadline: it runs in one shared thread, and the last good answer is cached."""

from __future__ import annotations

import ipaddress
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monitel.fork import register_at_fork
from monitel.os_threads import Event, Lock, SimpleQueue, Thread, current_thread, start_thread

if TYPE_CHECKING:
    #: Result of ``getaddrinfo``: family, type, protocol, canonical name, socket address.
    Found = list[tuple[Any, Any, int, str, tuple[Any, ...]]]

_STUCK = 1.0  # seconds after which a lookup no longer delays others
_ABANDONED = 3  # maximum number of threads that hang
_FRESH_SHARE = 0.25  # share of the remaining time for a fresh answer if there is a cached one
_GONE = {getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name)}


class _Lookup:
    """A lookup that is queued, running or done."""

    def __init__(self, host: str, port: int) -> None:
        self.key = host, port
        self.done = Event()
        self.addresses: Found = []
        self.error: Exception | None = None


class Resolver:
    """Resolves names in a daemon thread. Thread-safe.

    A lookup cannot be interrupted. If it hangs, its thread is abandoned after a second and replaced by a new one. At
    most three threads are abandoned at a time.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._queue: SimpleQueue[_Lookup] = SimpleQueue()
        self._pending: dict[tuple[str, int], _Lookup] = {}
        self._cached: dict[tuple[str, int], Found] = {}
        self._thread: Thread | None = None
        self._running: tuple[_Lookup, float] | None = None  # the current lookup of the thread, and its start
        self._abandoned = 0

    def start(self) -> bool:
        """Start the thread unless it runs. Return False if CPython starts no thread, which happens at exit."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return True
            self._thread = start_thread(self._work, "monitel-resolver")
            return self._thread is not None

    def lookup(self, host: str, port: int, deadline: float) -> Found:
        """Return the addresses of a host.

        Args:
            host: A name, or an IP address, which is returned unchanged.
            port: The port.
            deadline: Monotonic time limit.

        Raises:
            socket.gaierror: The host does not exist.
            TimeoutError: There was no answer in time, and no cached answer.
        """
        if _is_ip_address(host):
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        key = host, port
        cached = self._cached.get(key)
        if not self.start():
            if cached is None and self._abandoned:
                raise TimeoutError("the name server does not answer")
            return cached or self._resolve(host, port)
        with self._lock:
            lookup = self._pending.get(key)
            if lookup is None:
                lookup = self._pending[key] = _Lookup(host, port)
                self._queue.put(lookup)
        left = deadline - time.monotonic()
        self._wait(lookup, deadline if cached is None else deadline - left * (1 - _FRESH_SHARE))
        if lookup.addresses:
            return lookup.addresses
        gone = isinstance(lookup.error, socket.gaierror) and lookup.error.errno in _GONE
        if cached and not gone:
            return cached
        if lookup.error is not None:
            raise lookup.error
        raise TimeoutError("no answer from the name server in time")

    def _wait(self, lookup: _Lookup, deadline: float) -> None:
        """Wait for a lookup, and replace the thread if another lookup blocks it."""
        while not lookup.done.is_set() and (left := deadline - time.monotonic()) > 0:
            patience = left
            with self._lock:
                if self._running is not None and self._running[0] is not lookup:
                    patience = self._running[1] + _STUCK - time.monotonic()
                    if patience <= 0 and self._abandoned < _ABANDONED:
                        self._abandoned += 1
                        self._thread = self._running = None
            if patience <= 0:
                self.start()
                patience = _STUCK / 20
            lookup.done.wait(min(left, patience, _STUCK))

    def _work(self) -> None:
        """Run queued lookups until this thread is abandoned."""
        own = current_thread()
        while True:
            lookup = self._queue.get()
            with self._lock:
                self._running = lookup, time.monotonic()
            try:
                lookup.addresses = self._resolve(*lookup.key)
            except Exception as error:
                lookup.error = error.with_traceback(None)
            with self._lock:
                if lookup.addresses:
                    self._cached[lookup.key] = lookup.addresses
                self._pending.pop(lookup.key, None)
                abandoned = self._thread is not own
                if abandoned:
                    self._abandoned -= 1
                else:
                    self._running = None
            lookup.done.set()
            if abandoned:
                return

    def _resolve(self, host: str, port: int) -> Found:
        found: Found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return found


_shared = Resolver()


def start() -> None:
    """Start the shared thread, because CPython starts no thread at exit."""
    _shared.start()


def lookup(host: str, port: int, deadline: float) -> Found:
    """Return the addresses of a host from the resolver of this process; see :meth:`Resolver.lookup`."""
    return _shared.lookup(host, port, deadline)


def _is_ip_address(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _renew() -> None:
    global _shared
    _shared = Resolver()


register_at_fork(after_in_child=_renew)
