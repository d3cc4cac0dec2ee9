"""Where ranks hand their windows in: sockets that only this run's ranks are answered at."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import TYPE_CHECKING

from monitel_otlp import letters
from monitel_otlp.gil import give_way
from monitel_otlp.place import make_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import monitel
    from monitel_otlp.cells import Row
    from monitel_otlp.place import Address, Place

_log = logging.getLogger("monitel.otlp")

_GREETED_WITHIN = 5.0  # seconds
_STRANGERS = 1000  # connections that have not greeted
_FULL = 200_000  # windows that wait to be taken: more stay with their ranks
_ROUND = 0.1  # seconds


class Listener:
    """Takes letters in a thread of its own, until :meth:`close`.

    A connection that does not greet as one of this run, sends what is no letter, or a line longer than 1 MiB, is closed
    and counted in ``refused``, and the first one is said. A letter that has come before is passed over.

    Args:
        place: Whose it is.
        wake: Called when much waits to be taken.
    """

    def __init__(self, place: Place, wake: Callable[[], object]) -> None:
        self.refused = 0
        self.hosts: dict[int, str] = {place.rank: place.host}
        self._place = place
        self._wake = wake
        self._rows: list[Row] = []
        self._changed = Condition()
        self._peers: dict[socket.socket, _Peer] = {}
        self._numbers: dict[int, int] = {}  # of the last letter of each rank
        self._definitions: dict[str, monitel.StatDefinition] = {}
        self._paths: list[str] = []
        self._sockets = [opened for group in place.listens if (opened := self._open(group)) is not None]
        self._selector = selectors.DefaultSelector()
        for each in self._sockets:
            self._selector.register(each, selectors.EVENT_READ)
        self._closing = False
        self._thread = Thread(target=self._run, name="monitel-digest", daemon=True)
        if self._sockets:
            self._thread.start()

    def take(self) -> list[Row]:
        """The windows that have come."""
        with self._changed:
            rows, self._rows = self._rows, []
            self._changed.notify_all()
        return rows

    @property
    def ranks(self) -> set[int]:
        """Those that are connected, or alive behind one that is."""
        with self._changed:
            return {rank for peer in self._peers.values() for rank in peer.ranks}

    def wait_for_the_end(self, until: float) -> None:
        """Wait until all have come and left again, or until then (monotonic)."""

        def left() -> bool:
            return len(self._numbers) >= self._place.awaited and not any(peer.greeting for peer in self._peers.values())

        with self._changed:
            self._changed.wait_for(left, max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Hear nobody any more: what is not taken in by now is not acknowledged."""
        with self._changed:
            self._closing = True
        if self._thread.ident is not None:
            self._thread.join(2 * _ROUND)
        self.abandon()
        self._peers.clear()
        for path in self._paths:
            with suppress(OSError):
                Path(path).unlink()
        self._paths.clear()

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's; it is only closed, for both see one epoll."""
        for each in [*self._sockets, *self._peers]:
            each.close()
        self._selector.close()

    def _open(self, addresses: Sequence[Address]) -> socket.socket | None:
        """Listen at the first address that can be had."""
        failure: Exception | None = None
        for address in addresses:
            try:
                opened = self._bound(address)
                opened.setblocking(False)
            except OSError as error:
                failure = error
            else:
                return opened
        _log.warning("other ranks cannot hand in their windows here, and will export their own: %s", failure)
        return None

    def _bound(self, address: Address) -> socket.socket:
        if not isinstance(address, str):
            family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server(address, family=family, backlog=1024)
        make_folder(address)
        with suppress(FileNotFoundError):  # of a process that was killed
            Path(address).unlink()
        opened = socket.socket(socket.AF_UNIX)
        opened.bind(address)
        opened.listen(1024)
        self._paths.append(address)
        return opened

    def _run(self) -> None:
        while not self._closing:
            with self._changed:
                self._changed.wait_for(lambda: len(self._rows) < _FULL, _ROUND)
                full = len(self._rows) >= _FULL
            if full:
                self._wake()
                continue
            try:
                self._hear_all()
            except Exception:
                if not self._closing:
                    _log.exception("ranks can hand in their windows here no more, and will export their own")
                return

    def _hear_all(self) -> None:
        for key, _ in self._selector.select(_ROUND):
            if key.data is None:
                self._accept(key.fileobj)  # type: ignore[arg-type]  # a socket was registered
            else:
                self._hear(key.data)
        self._send_strangers_away()

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:  # it has gone again, or there are too many open files
            with self._changed:
                self._changed.wait(_ROUND)
            return
        connection.settimeout(_ROUND)
        peer = _Peer(connection)
        with self._changed:
            self._peers[connection] = peer
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _hear(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(1 << 18)
            if not data:
                self._part(peer)
                return
            peer.received += data
            while b"\n" in peer.received:
                line, _, peer.received = peer.received.partition(b"\n")
                self._read(peer, line)
            if len(peer.received) > (letters.LONGEST if peer.greeting else letters.LONGEST_GREETING):
                raise letters.LetterError("a line without end")
        except OSError:
            self._part(peer)
        except letters.LetterError as error:
            self._refuse(peer, str(error))

    def _read(self, peer: _Peer, line: bytes) -> None:
        if peer.greeting is None:
            peer.greeting = letters.read_greeting(line, self._place)
            with self._changed:
                peer.ranks = frozenset([peer.greeting.rank])
            peer.connection.sendall(letters.greet(self._place))
            return
        letter = letters.read(line, self._place, self._definitions)
        sender = peer.greeting.rank
        with self._changed:
            if self._closing:
                raise ConnectionAbortedError
            peer.ranks = letter.ranks
            self.hosts.update(dict.fromkeys(letter.ranks, peer.greeting.host))
            if letter.number > self._numbers.get(sender, 0):
                self._numbers[sender] = letter.number
                self._rows += letter.rows
        peer.connection.sendall(letters.acknowledge(letter.number))
        give_way()

    def _send_strangers_away(self) -> None:
        strangers = [peer for peer in self._peers.values() if peer.greeting is None]
        latest = time.monotonic() - _GREETED_WITHIN
        for number, peer in enumerate(reversed(strangers)):
            if peer.since < latest or number >= _STRANGERS:
                self._refuse(peer, "no greeting")

    def _refuse(self, peer: _Peer, why: str) -> None:
        self.refused += 1
        if self.refused == 1:
            _log.warning("a connection to the digest is refused: %s; others are counted only", why)
        self._part(peer)

    def _part(self, peer: _Peer) -> None:
        self._selector.unregister(peer.connection)
        with self._changed:
            del self._peers[peer.connection]
            self._changed.notify_all()
        peer.connection.close()


class _Peer:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.since = time.monotonic()
        self.received = b""
        self.greeting: letters.Greeting | None = None
        self.ranks: frozenset[int] = frozenset()
