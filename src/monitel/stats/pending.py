"""Samples whose values are still on a device, and the closed windows that wait for such values.

A pending sample is counted in the open window immediately; its value is filled in later. The window closes on time, and
is logged when all its values are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from sys import is_finalizing
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock
from monitel.stats._window import get_step
from monitel.stats.buckets import Buckets
from monitel.stats.definition import Aggregation, StatDefinition
from monitel.stats.window import Window

if TYPE_CHECKING:
    from monitel.stats.stat import Stat

#: The last event of each name of log() that waits for a number of that name, which is still on a device.
waiting: dict[str, Any] = {}

#: Held briefly while a value is added or a window is taken, never while handlers run. A forked child has a new one.
lock = RLock()


class PendingSample:
    """One pending sample. It keeps its Stat alive until it is resolved; if collected before, its value is lost."""

    __slots__ = ("_owner", "_position", "_samples")

    def __init__(self, owner: Stat, samples: PendingSamples, position: int) -> None:
        self._owner = owner
        self._samples: PendingSamples | None = samples
        self._position = position

    def resolve(self, value: float | None) -> Stat:
        """Set the value, or None if it is lost, and return the Stat, to call its ``_log_resolved()``. Idempotent."""
        with lock:  # two threads may have received the value
            samples, self._samples = self._samples, None
            if samples is not None:
                samples.resolve(self._position, value)
        return self._owner

    def __del__(self, is_ending: Callable[[], bool] = is_finalizing) -> None:
        if not is_ending():  # at the end, globals are None
            self.resolve(None)


class PendingSamples:
    """The pending samples of one window, added up as their values arrive, bit for bit like an Accumulator."""

    resolved = 0  # samples whose values have arrived or are lost
    _count = _reserved = _last_position = 0
    _sum = _last = _mean = _m2 = 0.0
    _min, _max = math.inf, -math.inf

    def __init__(self, definition: StatDefinition, fetch: Callable[[], None]) -> None:
        self._buckets = Buckets() if Aggregation.HISTOGRAM in definition.aggregations else None
        self._has_stddev = Aggregation.STDDEV in definition.aggregations
        self.fetch = fetch
        self._first_step = self._last_step = get_step()

    def sample(self, owner: Stat) -> PendingSample:
        """Return a new pending sample, for which the window has reserved a slot."""
        with lock:
            self._last_step = get_step()
            self._reserved = position = self._reserved + 1
        return PendingSample(owner, self, position)

    def resolve(self, position: int, value: float | None) -> None:
        """Add a value that has arrived, or count a lost one (None). The caller holds the lock."""
        if value is not None:
            self._add(value)
            if position > self._last_position:  # values of several streams arrive in any order
                self._last_position, self._last = position, value
        self.resolved += 1  # after all else: a signal handler may flush, and find the window complete

    def _add(self, value: float) -> None:
        if not self._count:
            self._min = self._max = value
        elif value > self._max:
            self._max = value
        elif value < self._min:
            self._min = value
        self._count += 1
        self._sum += value
        from_mean = value - self._mean
        self._mean += from_mean / self._count
        self._m2 += from_mean * (value - self._mean)
        if self._buckets is not None:
            self._buckets.add(value)

    def window(self, known: Window) -> Window:
        """Return the resolved samples as a window, with the times of the window of the samples with known values."""
        return known._replace(
            count=self._count,
            sum=self._sum,
            min=self._min,
            max=self._max,
            last=self._last,
            discarded=0,
            first_step=self._first_step,
            last_step=self._last_step,
            stddev=math.sqrt(self._m2 / (self._count or 1)) if self._has_stddev else None,
            histogram=None if self._buckets is None else self._buckets.histogram(),
        )


class PendingWindow(NamedTuple):
    """A closed window that waits for its pending samples, or for windows before it."""

    known: Window  # of the samples with known values; its count may be 0
    number: int
    content: bytes  # the known samples
    samples: PendingSamples | None  # None if the window has none
    slots: int  # number of samples for which the window reserved a slot
    first: bool  # the window's first sample is pending
    last: bool  # the window's last sample is pending

    @property
    def resolved(self) -> bool:
        """True if no value is missing any more."""
        return self.samples is None or self.samples.resolved == self.slots

    def window(self) -> Window:
        """Return the window of all samples; it has none if all values were lost."""
        if self.samples is None:
            return self.known
        pending = self.samples.window(self.known)
        if not (self.known.count and pending.count):
            return (pending if pending.count else self.known)._replace(discarded=self.known.discarded)
        if self.first:
            return pending.merge(self.known, other_last=not self.last)
        return self.known.merge(pending, other_last=self.last)


def take_resolved(stat: Stat) -> PendingWindow | None:
    """Remove and return the first of a Stat's windows, unless it misses a value."""
    with lock:
        windows = stat._pending_windows
        if windows and windows[0].resolved and stat._pending_windows is windows:  # else a signal handler has it
            stat._pending_windows = windows[1:]  # no call in between
            return windows[0]
        return None


def _renew_lock() -> None:
    global lock
    lock = RLock()
    waiting.clear()  # the parent logs its events


register_at_fork(after_in_child=_renew_lock)
