"""Quantiles of step times, from the counters that a process keeps in its context page."""

from __future__ import annotations

from collections import deque
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from monitel.context_page import unpack_step_times
from monitel.step_times import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

_PERIOD_NS = 180 * 10**9  # that quantiles are about
_APART_NS = 10 * 10**9  # between two readings that are kept
_ENOUGH = 100  # steps


class _Reading(NamedTuple):
    """The counters at one moment, monotonic ns."""

    time_ns: int
    counters: bytes


class StepDistribution:
    """The distribution of the step times of one process, as it counts them itself.

    It is that of the last three minutes that were observed. If they have fewer than 100 steps, it is that of all steps
    of the process.

    Attributes:
        median: The median, seconds; None without a step.
        p99: The time that 99 of 100 steps do not exceed, seconds; None with fewer than 100 steps.
    """

    def __init__(self) -> None:
        self.median: float | None = None
        self.p99: float | None = None
        self._kept: deque[_Reading] = deque()
        self._last = b""

    def see(self, counters: bytes, now_ns: int) -> None:
        """Take over the counters of a reading.

        Args:
            counters: As :func:`monitel.context_page.read_step_times` returns them.
            now_ns: Monotonic time.
        """
        if not self._kept or now_ns - self._kept[-1].time_ns >= _APART_NS:
            self._kept.append(_Reading(now_ns, counters))
        forgotten = now_ns - self._kept[0].time_ns > _PERIOD_NS
        while now_ns - self._kept[0].time_ns > _PERIOD_NS:
            self._kept.popleft()
        if forgotten or counters != self._last:
            self._last = counters
            counts = self._counts()
            self.median = quantile(counts, 0.5)
            self.p99 = quantile(counts, 0.99) if sum(counts) >= _ENOUGH else None

    def _counts(self) -> Sequence[int]:
        life, before = unpack_step_times(self._last), unpack_step_times(self._kept[0].counters)
        recent = [*map(sub, life, before)]
        return recent if sum(recent) >= _ENOUGH and min(recent) >= 0 else life
