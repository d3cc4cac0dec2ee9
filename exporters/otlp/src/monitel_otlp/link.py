"""A rank's connection to the one above it: what was handed over, and what was not."""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from monitel_otlp import letters
from monitel_otlp.gil import give_way

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from monitel_otlp.cells import Row
    from monitel_otlp.place import Address, Place

_ATTEMPT = 1.0  # seconds to connect, to be greeted, to be rid of a letter
_MOMENT = 0.05  # seconds to wait for acknowledgements in a round
_LATE_START = 30.0  # seconds that the one above may start later than this rank
_LIMIT = 100_000  # windows that wait


class _Sent(NamedTuple):
    number: int
    rows: Sequence[Row]
    at: float  # monotonic, when it was written first


class Link:
    """Hands windows to the rank above, and keeps each until that rank says that it has it.

    A letter that is not acknowledged is written again on the next connection, and the reader passes over what it has
    already. After ``patience`` seconds in vain (half a minute as long as there was no connection yet) the windows
    are given back. For one thread at a time.

    Args:
        place: Whose it is.
        patience: Seconds.
    """

    def __init__(self, place: Place, patience: float) -> None:
        self.trouble = "nothing says where the one above is: set MASTER_ADDR or pass digest_address"
        self._place = place
        self._patience = patience
        self._number = time.time_ns()  # a rank that is started anew goes on above its former self
        self._waiting: deque[_Sent] = deque()  # for acknowledgement, the first ``_written`` of them
        self._written = 0
        self._connection: socket.socket | None = None
        self._received = b""
        self._met = False
        self._ranks: AbstractSet[int] = frozenset()  # as it was said last

    @property
    def waiting(self) -> int:
        """Windows that are not acknowledged."""
        return sum(len(sent.rows) for sent in self._waiting)

    def hand_over(self, rows: Sequence[Row], ranks: AbstractSet[int], *, until: float | None = None) -> list[Row]:
        """Write these windows, and those that are still to be written.

        Args:
            rows: Windows.
            ranks: That are alive behind this link.
            until: The end, monotonic: wait so long for acknowledgements, then give back what has none.

        Returns:
            Windows that cannot be handed over.
        """
        now = time.monotonic()
        rows = sorted(rows, key=_series)  # a letter says once what a Stat is
        for begin in range(0, len(rows), letters.ROWS):
            self._add(rows[begin : begin + letters.ROWS], now)
        if ranks != self._ranks and not rows:
            self._add([], now)  # somebody has come or gone
        try:
            self._connect(until)
            self._write(ranks)
            self._listen(until)
        except (OSError, letters.LetterError) as error:
            self.trouble = f"{type(error).__name__}: {error}"
            self.close()
        return self._give_back(last=until is not None)

    def close(self) -> None:
        """Leave; what is not acknowledged stays."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._received = b""
        self._written = 0

    def _add(self, rows: Sequence[Row], now: float) -> None:
        self._number += 1
        self._waiting.append(_Sent(self._number, rows, now))

    def _connect(self, until: float | None) -> None:
        """Connect, unless connected; the first address answers at which the run is known."""
        if self._connection is not None or not self._place.above:
            return
        failure: Exception | None = None
        for address in self._place.above:
            seconds = _ATTEMPT if until is None else min(_ATTEMPT, max(0.05, until - time.monotonic()))
            try:
                self._connection = _connected(address, seconds)
                self._connection.sendall(letters.greet(self._place))
                letters.read_greeting(self._next_line(), self._place)
            except (OSError, letters.LetterError) as error:
                failure = error
                self.close()
            else:
                self._met = True
                return
        assert failure is not None
        raise failure

    def _write(self, ranks: AbstractSet[int]) -> None:
        if self._connection is None:
            return
        while self._written < len(self._waiting):
            sent = self._waiting[self._written]
            self._connection.sendall(letters.write(sent.number, ranks, sent.rows))
            self._written += 1
            give_way()
        self._ranks = ranks

    def _listen(self, until: float | None) -> None:
        """Read acknowledgements, for a moment, or until the end."""
        end = time.monotonic() + _MOMENT if until is None else until
        while self._connection is not None and self._waiting:
            self._connection.settimeout(max(0.001, end - time.monotonic()))
            try:
                line = self._next_line()
            except TimeoutError:
                break
            number = letters.read_acknowledgement(line)
            while self._waiting and self._written and self._waiting[0].number <= number:
                self._waiting.popleft()
                self._written -= 1
        if self._connection is not None:
            self._connection.settimeout(_ATTEMPT)

    def _next_line(self) -> bytes:
        assert self._connection is not None
        while b"\n" not in self._received:
            data = self._connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError("it has closed the connection")
            self._received += data
            if len(self._received) > letters.LONGEST:
                raise letters.LetterError("a line without end")
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _give_back(self, *, last: bool) -> list[Row]:
        patience = self._patience if self._met or not self._place.above else max(self._patience, _LATE_START)
        oldest = time.monotonic() - patience
        if self._waiting and (last or self._waiting[0].at < oldest or self.waiting > _LIMIT):
            if self._connection is not None and not last:
                self.trouble = "it does not answer"
            self.close()
            rows = [row for sent in self._waiting for row in sent.rows]
            self._waiting.clear()
            return rows
        return []


def _series(row: Row) -> tuple[str, int]:
    return row.definition.name, id(row.definition)


def _connected(address: Address, seconds: float) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, timeout=seconds)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(seconds)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection
