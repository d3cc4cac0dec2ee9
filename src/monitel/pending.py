"""Samples whose values come later than the samples: a device has them, and nobody waits for it.

Such a sample takes its place in the open window at once. The window closes when its time is over, as ever, and is
held until all its values are there.
"""

from __future__ import annotations

import math
import os
from collections import deque
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel._recorder_py import Recorder, fields
from monitel._window import get_step
from monitel.aggregation import Aggregation
from monitel.histogram import Histogram
from monitel.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel.stats import Stat
    from monitel.window import StatDefinition

_lock = RLock()  # held for a moment while a value is added up or a window is taken, never while handlers run


class LateSample:
    """One of them. Until it is settled it keeps its Stat alive, also where nobody else does.

    One that is dropped unsettled is lost, for its window would wait for ever.
    """

    __slots__ = ("_place", "_samples", "_stat")

    def __init__(self, stat: Stat, samples: LateSamples, place: int) -> None:
        self._stat = stat
        self._samples: LateSamples | None = samples
        self._place = place

    def settle(self, value: float | None) -> Stat:
        """Give the value, or None where it is lost; a second time does nothing.

        Returns:
            Whose ``_log_held()`` is to be called, when whatever has come together with this one is settled.
        """
        samples, self._samples = self._samples, None
        if samples is not None:
            samples.settle(self._place, value)
        return self._stat

    def __del__(self) -> None:
        self.settle(None)


class LateSamples:
    """Those of one window, added up as they come, as windows add up theirs: to the last digit.

    Args:
        definition: What the Stat was made with.
        fetch: Waits for those that are to come, for a bounded time.
    """

    settled = 0  # how many have come, or are lost
    count = 0  # how many have come
    sum = last = mean = m2 = 0.0
    min, max = math.inf, -math.inf
    _places = _last_place = 0
    _recorder: Recorder | None = None

    def __init__(self, definition: StatDefinition, fetch: Callable[[], None]) -> None:
        self._definition = definition
        self.fetch = fetch
        self.first_step = self.last_step = get_step()

    def expect(self, stat: Stat) -> LateSample:
        """One more has taken its place."""
        self.last_step = get_step()
        self._places += 1
        return LateSample(stat, self, self._places)

    def settle(self, place: int, value: float | None) -> None:
        """Take a value that has come, or None for one that is lost."""
        with _lock:
            if value is not None:
                self._add(value)
                if place > self._last_place:  # values of several streams come in any order
                    self._last_place, self.last = place, value
            self.settled += 1  # at last: a signal handler may flush, and find the window complete

    def _add(self, value: float) -> None:
        if not self.count:
            self.min = self.max = value
        elif value > self.max:
            self.max = value
        elif value < self.min:
            self.min = value
        self.count += 1
        self.sum += value
        from_mean = value - self.mean
        self.mean += from_mean / self.count
        self.m2 += from_mean * (value - self.mean)
        if Aggregation.HISTOGRAM in self._definition.aggregations:
            self._recorder = self._recorder or Recorder()
            self._recorder.add(value)

    @property
    def histogram(self) -> Histogram:
        """Their distribution, where it was asked for."""
        return Histogram(*fields((self._recorder or Recorder()).taken()))


class HeldWindow(NamedTuple):
    """A closed window that waits for late samples."""

    definition: StatDefinition
    known: tuple[Any, ...]  # the other fields of a Window, of the samples that are not late
    late: LateSamples | None
    late_count: int = 0
    late_first: bool = False  # the window's first sample is a late one
    late_last: bool = False

    @property
    def settled(self) -> bool:
        """Whether nothing is to come."""
        return self.late is None or self.late.settled == self.late_count

    def window(self) -> Window | None:
        """The window of all samples; None where every one was lost."""
        if self.late is None:
            return Window(self.definition, *self.known)
        start, end, known, total, low, high, last, discarded, first_step, last_step, stddev, histogram = self.known
        late = self.late
        count = known + late.count
        if not count:
            return None
        if stddev is not None:
            apart = late.mean - total / known if known and late.count else 0.0
            squares = stddev * stddev * known + late.m2 + apart * apart * known * late.count / count
            stddev = math.sqrt(squares / count)
        return Window(
            self.definition,
            start,
            end,
            count,
            total + late.sum,
            min(late.min, low) if self.late_first else min(low, late.min),  # a first NaN stays
            max(late.max, high) if self.late_first else max(high, late.max),
            late.last if late.count and (self.late_last or not known) else last,
            discarded,
            late.first_step if self.late_first else first_step,
            late.last_step if self.late_last else last_step,
            stddev,
            None if histogram is None else histogram.merge(late.histogram),
        )


class HeldWindows:
    """The closed windows of a Stat that wait for late samples, and those behind them: windows come in order."""

    def __init__(self) -> None:
        self._held: deque[HeldWindow] = deque()

    def put(self, held: HeldWindow) -> None:
        """Hold one more."""
        self._held.append(held)

    def fetch(self) -> None:
        """Wait for what is to come, for a bounded time."""
        for held in list(self._held):
            if held.late is not None and not held.settled:
                held.late.fetch()

    def complete(self) -> Iterator[Window]:
        """Those that are complete, each once, up to the first that is not."""
        while (held := self._next()) is not None:
            if (window := held.window()) is not None:
                yield window

    def _next(self) -> HeldWindow | None:
        with _lock:
            if not self._held or not self._held[0].settled:
                return None
            try:
                held = self._held.popleft()
            except IndexError:  # a signal handler's flush has taken the one that was looked at
                return None
            if held.settled:
                return held
            self._held.appendleft(held)  # and this is the one behind it
            return None

    def __len__(self) -> int:
        return len(self._held)


def hold(stat: Stat, held: HeldWindow) -> None:
    """Hold a window of a Stat."""
    with _lock:
        if stat._held is None:
            stat._held = HeldWindows()
        stat._held.put(held)


def _renew_lock() -> None:
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_renew_lock)
