"""The rate of the steps of one process, as another process sees them, and quantiles of their times."""

from __future__ import annotations

from collections import deque
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from monitel.context_page import unpack_step_times
from monitel.step_times import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

RATE_NS = 10 * 10**9  # of the last steps that a rate is about
RATES = 60  # looks
_MOST = 256  # notes
_LATE = 2  # times the time between the last two notes, after which a step is overdue and the rate falls


class _Mark(NamedTuple):
    """A step, and the time at which it was set, monotonic ns."""

    step: int
    set_ns: int


class StepRate:
    """Steps per second, from steps that are noted again and again.

    Attributes:
        rates: Steps per second at each of the last looks, the oldest first.
    """

    def __init__(self) -> None:
        self.rates: deque[float] = deque(maxlen=RATES)
        self._marks: deque[_Mark] = deque(maxlen=_MOST)
        self._looked: _Mark | None = None

    def note(self, step: int, set_ns: int) -> None:
        """Note the current step, and the monotonic time at which it was set. A step that falls is a new beginning."""
        last = self._marks[-1] if self._marks else None
        if last is not None and (step < last.step or set_ns < last.set_ns):
            self._marks.clear()
            self._looked = last = None
        if last is None or (step > last.step and set_ns > last.set_ns):
            self._marks.append(_Mark(step, set_ns))

    def look(self, now_ns: int) -> None:
        """Add the rate since the previous call to :attr:`rates`."""
        if not self._marks:
            return
        last, looked = self._marks[-1], self._looked
        self._looked = last
        if looked is None:
            return
        if last.step > looked.step:
            self.rates.append((last.step - looked.step) * 1e9 / (last.set_ns - looked.set_ns))
        elif len(self._marks) > 1 and not self._is_overdue(now_ns):
            before = self._marks[-2]
            self.rates.append((last.step - before.step) * 1e9 / (last.set_ns - before.set_ns))  # within a long step
        else:
            self.rates.append(0.0)

    def rate(self, now_ns: int) -> float | None:
        """Return steps per second over the last ten seconds; None if no step was seen to end.

        The time since the last step counts as soon as it is twice as long as that step.

        Args:
            now_ns: Monotonic time.
        """
        if len(self._marks) < 2:  # noqa: PLR2004  the ends of an interval
            return None
        last = self._marks[-1]
        end_ns = now_ns if self._is_overdue(now_ns) else last.set_ns
        begin_ns = max(end_ns - RATE_NS, self._marks[0].set_ns)
        return self._steps_since(begin_ns) * 1e9 / (end_ns - begin_ns)

    def _steps_since(self, time_ns: int) -> float:
        """Return the steps since a time after the first mark; between two marks they rise steadily."""
        last = after = self._marks[-1]
        for before in reversed(self._marks):
            if before.set_ns <= time_ns:
                share = (time_ns - before.set_ns) / ((after.set_ns - before.set_ns) or 1)
                return last.step - before.step - share * (after.step - before.step)  # exact for large steps
            after = before
        return last.step - after.step

    def _is_overdue(self, now_ns: int) -> bool:
        last, before = self._marks[-1], self._marks[-2]
        return now_ns - last.set_ns > _LATE * (last.set_ns - before.set_ns)


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
