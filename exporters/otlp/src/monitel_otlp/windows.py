"""Closed windows on their way out: a bounded queue, and the running totals of each series."""

from __future__ import annotations

import math
from collections import deque
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    import monitel


class Entry(NamedTuple):
    """A window, and its series' totals with it counted in."""

    window: monitel.Window
    series: Hashable
    total_count: int
    total_sum: float


class _Totals:
    __slots__ = ("count", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0


class WindowQueue:
    """Takes windows in the thread that closes them, and gives them to the delivery thread.

    When it is full the oldest window is dropped and counted. Totals are fixed when a window comes in,
    so cumulative counts and sums are right whatever is dropped, and outlive the Stats. A window whose sum is not finite
    is left out of the total and counted in ``nonfinite``; samples that ``max_samples`` kept out, in ``discarded``.

    Args:
        limit: Windows that it holds.
    """

    def __init__(self, limit: int) -> None:
        self._dropped = 0
        self.nonfinite = 0
        self.discarded = 0
        self._limit = limit
        self._lock = RLock()  # a garbage collection inside may destruct a Stat, which logs its last window
        self._entries: deque[Entry] = deque()
        self._totals: dict[Hashable, _Totals] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, window: monitel.Window) -> None:
        """Take one window."""
        series = series_key(window)
        with self._lock:
            totals = self._totals.get(series)
            if totals is None:
                totals = self._totals[series] = _Totals()
            self.discarded += window.discarded
            totals.count += window.count
            if math.isfinite(window.sum):
                totals.sum += window.sum
            else:
                self.nonfinite += 1
            self._entries.append(Entry(window, series, totals.count, totals.sum))
            if len(self._entries) > self._limit:
                self._entries.popleft()
                self._dropped += 1

    def take_dropped(self) -> int:
        """Windows dropped since this was last asked."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def take(self, limit: int) -> list[Entry]:
        """Up to ``limit`` windows, oldest first; they are in the queue no more."""
        with self._lock:
            return [self._entries.popleft() for _ in range(min(limit, len(self._entries)))]


def series_key(window: monitel.Window) -> Hashable:
    """What makes windows one series: name and attributes, ``True`` and ``1`` apart as in the protocol."""
    attributes = window.definition.attributes
    if not attributes:
        return window.name
    return window.name, frozenset((key, type(value), value) for key, value in attributes.items())
