"""``ranks="digest"``: windows of all ranks come together in one process, which exports their digest."""

from __future__ import annotations

import logging
import time
from threading import Condition
from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

import monitel
from monitel_otlp.cells import Cells, Row
from monitel_otlp.digest import Share
from monitel_otlp.gil import give_way
from monitel_otlp.link import Link
from monitel_otlp.listener import Listener
from monitel_otlp.processors import BoundedQueue
from monitel_otlp.stragglers import Stragglers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from opentelemetry.metrics import CallbackOptions, Meter

    from monitel_otlp.cells import Closed
    from monitel_otlp.place import Place

_log = logging.getLogger("monitel.otlp")

_LIMIT = 100_000  # windows of this rank that wait
_SLICE = 50  # windows, between which the training loop goes on
_LEAST_PATIENCE = 1.0
_END_SHARES = 0.0, 0.2, 0.4  # of the time to shut down, for the last of others: a rank, a node's first one, rank zero
_LAST_WORD = 0.3  # seconds, until it is acknowledged


class Gathering:
    """One rank's part in the digest.

    A rank hands its closed windows to the first rank of its node, which hands them to rank zero with its own. Rank zero
    puts them together (see :class:`monitel_otlp.cells.Cells`). A rank whose windows cannot be handed over makes the
    digest of what it has, itself or its node, and exports that; it says so once.

    ``put`` is called in any thread; the rest in the delivery thread.

    Args:
        place: Where this rank stands.
        interval: Seconds between two rounds of delivery; for three of them others are waited for.
        straggler_stat: The Stat by which ranks are compared.
        put: Gets the digests.
        wake: Called when much waits to be digested.
    """

    def __init__(
        self,
        place: Place,
        interval: float,
        straggler_stat: str,
        put: Callable[[monitel.Window], None],
        wake: Callable[[], object],
    ) -> None:
        self._place = place
        self._put = put
        patience = max(_LEAST_PATIENCE, 3 * interval)
        self._own: BoundedQueue[monitel.Window] = BoundedQueue(_LIMIT)
        self._listener = Listener(place, wake)
        self._link = None if place.is_zero else Link(place, patience)
        self._cells = Cells(patience, frozenset(range(place.world_size)))
        self._stragglers = Stragglers(straggler_stat, self._listener.hosts)
        self._heard: set[int] = set()
        self._alone = False
        self._rounds = Condition()
        self._end = 0.0  # of the last round, monotonic

    def __len__(self) -> int:
        return len(self._own) + (self._link.waiting if self._link else 0)

    def wait_until_empty(self, timeout: float) -> bool:
        """Whether all windows of this rank are handed over, or digested here, within so many seconds."""
        with self._rounds:
            return self._rounds.wait_for(lambda: not len(self), timeout)

    def put(self, window: monitel.Window) -> None:
        """Take one closed window of this rank."""
        self._own.put(window)

    def take_dropped(self) -> int:
        """Windows of this rank that were dropped since this was last asked."""
        return self._own.take_dropped()

    def end_within(self, timeout: float) -> None:
        """Say how long the last round may take."""
        level = 2 if self._place.is_zero else 1 if self._place.listens else 0
        self._end = time.monotonic() + _END_SHARES[level] * timeout

    def abandon(self) -> None:
        """In a forked child: let go of the sockets."""
        self._listener.abandon()
        if self._link is not None:
            self._link.close()

    def exchange(self, *, last: bool) -> None:
        """Hand over what there is, and digest what this process is to export; in the last round all of it."""
        rows = self._take_own()
        if last:
            self._listener.wait_for_the_end(self._end)
            self._listener.close()
        rows += self._listener.take()
        ranks = self._listener.ranks | {self._place.rank}
        self._heard |= ranks
        if self._link is not None:
            rows = self._link.hand_over(rows, ranks, until=self._end + _LAST_WORD if last else None)
            self._say_alone(rows)
            self._cells.world = ranks
        self._digest(rows, self._heard - ranks, everything=last)
        with self._rounds:
            self._rounds.notify_all()
        if last and self._link is not None:
            self._link.close()

    def register(self, meter: Meter) -> bool:
        """Report the digest by this meter, if this process exports for all; whether it does."""
        if not self._place.is_zero:
            return False

        def observe(read: Callable[[], int]) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
            return [lambda _options: [Observation(read())]]

        late, refused = observe(lambda: self._cells.late), observe(lambda: self._listener.refused)
        ranks = observe(lambda: len(self._listener.ranks | {self._place.rank}))
        meter.create_observable_counter("monitel.digest.late", late, "{window}", "Windows that came late")
        meter.create_observable_counter(
            "monitel.digest.refused", refused, "{connection}", "Connections that were of no rank of this run"
        )
        meter.create_observable_up_down_counter("monitel.digest.ranks", ranks, "{rank}", "Ranks that are heard")
        return True

    def _take_own(self) -> list[Row]:
        rows = []
        while windows := self._own.take(_SLICE):
            rows += [Row(window.definition, Share.of(self._place.rank, window)) for window in windows]
            give_way()
        return rows

    def _digest(self, rows: Sequence[Row], gone: set[int], *, everything: bool) -> None:
        late = self._cells.late
        for begin in range(0, len(rows), _SLICE):
            now = time.monotonic()
            for row in rows[begin : begin + _SLICE]:
                self._cells.add(row, now)
            give_way()
        if self._cells.late and not late:
            _log.warning("windows of some ranks came late and count in the next cell; monitel.digest.late counts them")
        for closed in self._cells.close(time.monotonic(), gone, everything=everything):
            self._put(closed.digest)
            self._watch(closed)
            give_way()

    def _watch(self, closed: Closed) -> None:
        for event in self._stragglers.watch(closed):
            try:
                monitel.log_event(event)
            except BaseException:  # a user's handler, in our thread
                _log.exception("a handler raised at %s; telemetry goes on", event.name)

    def _say_alone(self, rows: Sequence[Row]) -> None:
        assert self._link is not None
        if rows and not self._alone:
            self._alone = True
            _log.warning(
                "rank %d cannot hand its windows over, and exports them itself until it can: %s",
                *(self._place.rank, self._link.trouble),
            )
