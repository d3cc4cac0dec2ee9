"""Which ranges become spans, and whose children: what is the same however spans are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING, Generic, TypeVar

from opentelemetry.trace import INVALID_SPAN, get_current_span

import monitel
from monitel.profiler import ranges
from monitel_otel.periods import BUDGET, Opened, Period, check_limits

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from monitel.profiler.ranges import Range

_WITHOUT_STEPS_NS = 5 * 10**9

_Open = TypeVar("_Open", bound=Opened)


class Ranges(ABC, Generic[_Open]):
    """Hears of ranges and decides: sampled or not, in the budget or folded, and in what.

    The parent of a range is the innermost of two: the range around it, and the span of the caller's own that is
    current when it begins. What is in a span that is not sampled is not exported. Takes no lock but where a new step
    begins, for a moment.

    Args:
        budget: Spans a step; the rest of it is folded into one.
        every: Export the ranges of one in so many steps, those that it divides, and what begins before the first step.
        by_step: Whether the training step is this process's own: a forked child's is its parent's.

    Raises:
        TypeError: ``budget`` or ``every`` is no int.
        ValueError: One of them is below 1.
    """

    def __init__(self, *, budget: int = BUDGET, every: int = 1, by_step: bool = True) -> None:
        check_limits(budget, every)
        self._budget = budget
        self._every = every
        self._by_step = by_step
        self._lock = RLock()
        self._turning = False
        self._period = Period(None, -1)
        self._periods: list[Period] = []  # those of which something is still to be written
        self._of_step: dict[int | None, Period] = {}
        self._open: dict[Range, _Open] = {}
        self._listening: ranges.Listening | None = None

    def listen(self) -> None:
        """Begin with what begins from now on."""
        self._listening = ranges.listen(began=self._began, ended=self._ended)

    def close(self) -> None:
        """Export nothing that begins from now on; a second time does nothing."""
        if self._listening is not None:
            self._listening.close()

    def abandon(self) -> None:
        """In a forked child: what runs is the parent's, and ends there."""
        self._open = {}

    def innermost(self) -> _Open | None:
        """The range that runs here and is a span, unless a span of the caller's own runs in it."""
        running = ranges.current_range()
        opened = None if running is None else self._around(running)
        if opened is None or not opened.kept:
            return None
        return opened if _is_within(get_current_span(), opened) else None

    @abstractmethod
    def _start(self, began: Range, period: Period, parent: _Open | None, around: Span) -> _Open:
        """What is known of a range that begins, in a range or else in a span of the caller's own."""

    @abstractmethod
    def _end(self, ended: Range, opened: _Open, end_ns: int) -> None:
        """A range that is a span has ended."""

    def _new_period(self, step: int | None, until_ns: int | None, *, now: bool) -> Period:  # noqa: ARG002  likewise
        """A period; ``now``: the process is at that step, and not beyond it already."""
        return Period(step, until_ns)

    def _turned(self) -> None:
        """A new period has begun."""

    def _began(self, began: Range) -> None:
        step = began.step if self._by_step else None
        if step is not None and step % self._every:
            return
        period = self._period
        if not period.takes(step, began.monotonic_start_ns):
            period = self._turn(step, began.monotonic_start_ns)
        around = get_current_span()
        parent = None if began.parent is None else self._parent(began.parent, period, around)
        if parent is None:
            if self._refused(period, around):
                return
        elif not parent.kept:
            return
        if period.spans >= self._budget:
            self._open[began] = period.over  # type: ignore[assignment]  # nothing is asked of it but that
            return
        opened = self._open[began] = self._start(began, period, parent, around)
        if opened.kept:
            period.spans += 1
            if period.first is None:
                period.first = opened

    def _ended(self, ended: Range) -> None:
        opened = self._open.pop(ended, None)
        if opened is not None:
            self._finish(ended, opened, ended.end_ns or 0)

    def _finish(self, ended: Range, opened: _Open, end_ns: int) -> None:
        if opened.kept:
            self._end(ended, opened, end_ns)
        elif opened is opened.period.over:
            opened.period.fold(ended, end_ns)

    def _refused(self, period: Period, around: Span) -> bool:  # noqa: ARG002  others need the period
        """Whether what begins in the caller's own span is in a trace that is not sampled."""
        context = around.get_span_context()
        return context.is_valid and not context.trace_flags.sampled

    def _parent(self, outer: Range, period: Period, around: Span) -> _Open | None:  # noqa: ARG002  others need the period
        """What a range that begins in ``outer`` is a child of; None: of the caller's own span, or of nothing."""
        opened = self._around(outer)
        return opened if opened is not None and _is_within(around, opened) else None

    def _around(self, found: Range | None) -> _Open | None:
        """The nearest that is more than a part of a fold, outwards from this one."""
        while found is not None:
            opened = self._open.get(found)
            if opened is not None and opened is not opened.period.over:
                return opened
            found = found.parent
        return None

    def _turn(self, step: int | None, now_ns: int) -> Period:
        """The period of a range that is not of the present one.

        A thread may be late with a range of the last step, while others are in the next one already: then that
        step's period goes on, and the present one stays.
        """
        with self._lock:
            if self._turning:  # a garbage collection in here is a range too
                return self._period
            self._turning = True
            try:
                now = step is None or step == monitel.get_step()
                known = self._of_step.get(step)
                present = step is None or known is self._period  # else the process has gone back to that step
                if known is not None and (not now or (present and known.takes(step, now_ns))):
                    period = known
                else:
                    until_ns = now_ns + _WITHOUT_STEPS_NS if step is None else None
                    period = self._of_step[step] = self._new_period(step, until_ns, now=now)
                    self._periods.append(period)
                if now:
                    self._period = period
            finally:
                self._turning = False
        if period is not known:
            self._turned()
        return period

    def _over(self, *, last: bool = False) -> list[Period]:
        """The periods that are over, and of which all ranges have ended; each once.

        A period is over the second time that it is found so: a range that another thread was just about to begin in
        it, or to end, has had its time.
        """
        found = []
        running = {id(opened.period) for opened in self._open.copy().values()}
        periods = self._periods.copy()  # before the step is read: none of them is of a later one
        step, now_ns = monitel.get_step() if self._by_step else None, ranges.now()
        for period in periods:
            if last or (period.closed and id(period) not in running):
                with suppress(ValueError):  # another thread was quicker
                    self._periods.remove(period)
                    found.append(period)
                if self._of_step.get(period.step) is period:
                    del self._of_step[period.step]
            elif not period.takes(step, now_ns):
                period.closed = True
        return found


def _is_within(around: Span, opened: Opened) -> bool:
    """Whether what happens here is in this range directly: no span of the caller's own has begun since."""
    return around is opened.around or around is INVALID_SPAN or not around.get_span_context().is_valid
