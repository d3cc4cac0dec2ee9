"""Selection of the ranges that become spans, and of their parents. Ranges beyond the budget of a step are folded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from opentelemetry.trace import INVALID_SPAN, get_current_span

import monitel
from monitel.attributes import escape_surrogates
from monitel.process.os_threads import RLock

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from monitel.profiler.ranges import Listening, Range

#: The most spans of a step, by default.
BUDGET = 1000
_WITHOUT_STEPS_NS = 5 * 10**9
_NAMES = 10  # of the ranges with the longest total duration, in a fold
_NAME_LENGTH = 100  # the rest of a longer name is cut off
_SUMS = 1000  # of the names of a period; further names share one


class Period:
    """One training step, or five seconds if there are no steps: its ranges share a budget of spans.

    Ranges beyond the budget are folded.
    """

    __slots__ = ("_folds", "_lock", "budget", "closed", "first", "folding", "spans", "step", "until_ns")

    def __init__(self, step: int | None, until_ns: int | None = None, budget: int = BUDGET) -> None:
        self.step = step
        self.until_ns = until_ns  # monotonic time after which no range belongs to it; None: the step decides
        self.budget = budget
        self.spans = 0  # that were started
        self.closed = False  # ranges that begin from now on belong to another period
        self.first: Opened | None = None
        self.folding = Opened(self, INVALID_SPAN, kept=False)  # stands for each running range beyond the budget
        self._lock = RLock()
        self._folds: dict[str | None, _Sums] = {}  # by name; None: the others

    def takes(self, step: int | None, now_ns: int) -> bool:
        """Return True if a range that begins then belongs to the period."""
        return step == self.step and not self.closed and (self.until_ns is None or now_ns <= self.until_ns)

    def fold(self, ended: Range, end_ns: int) -> None:
        with self._lock:
            name = ended.name if ended.name in self._folds or len(self._folds) < _SUMS else None
            sums = self._folds.get(name)
            if sums is None:
                sums = self._folds[name] = _Sums(ended.start_ns, end_ns)
            sums.count += 1
            sums.length_ns += end_ns - ended.start_ns
            sums.start_ns = min(sums.start_ns, ended.start_ns)
            sums.end_ns = max(sums.end_ns, end_ns)
            sums.errors += ended.error_type is not None

    @property
    def folded(self) -> int:
        with self._lock:
            return sum(each.count for each in self._folds.values())

    def take_folded(self) -> FoldedRanges | None:
        with self._lock:
            folds, self._folds = self._folds, {}
        if not folds:
            return None
        named = [(name, each) for name, each in folds.items() if name is not None]
        longest = sorted(named, key=lambda each: -each[1].length_ns)[:_NAMES]
        attributes: dict[str, Any] = {
            "monitel.folded.count": sum(each.count for each in folds.values()),
            "monitel.folded.seconds": sum(each.length_ns for each in folds.values()) / 1e9,
            "monitel.folded.names": [escape_surrogates(name[:_NAME_LENGTH]) for name, _ in longest],
            "monitel.folded.name_counts": [each.count for _, each in longest],
            "monitel.folded.name_seconds": [each.length_ns / 1e9 for _, each in longest],
        }
        if errors := sum(each.errors for each in folds.values()):
            attributes["monitel.folded.errors"] = errors
        begin_ns, end_ns = min(each.start_ns for each in folds.values()), max(each.end_ns for each in folds.values())
        return FoldedRanges(begin_ns, end_ns, attributes)


@dataclass
class _Sums:
    start_ns: int
    end_ns: int
    count: int = 0
    length_ns: int = 0
    errors: int = 0


class FoldedRanges(NamedTuple):
    """The ranges beyond the budget of a step, as one span: from the first start to the last end, Unix ns."""

    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    name: str = "monitel.folded"


class Opened:
    """A running range; subclasses add the state of its span. One that is ``kept`` becomes a separate span."""

    __slots__ = ("around", "kept", "period")

    def __init__(self, period: Period, around: Span, *, kept: bool) -> None:
        self.period = period
        self.around = around  # the application's current span when the range began
        self.kept = kept


_Open = TypeVar("_Open", bound=Opened)


class Ranges(ABC, Generic[_Open]):
    """Listens to ranges and decides for each: sampled or dropped, a separate span or folded, and its parent.

    A lock is only taken when a new step begins, briefly. ``every`` exports the ranges of every n-th step, and those
    before the first one. ``by_step`` is False in a forked child: the step belongs to its parent.
    """

    def __init__(self, *, budget: int | None = None, every: int = 1, by_step: bool = True) -> None:
        self._budget = BUDGET if budget is None else budget
        self._every = every
        self._by_step = by_step
        self._lock = RLock()
        self._starting = False
        self._period = Period(None, -1)
        self._periods: list[Period] = []  # periods that still have a fold or spans to write
        self._period_of_step: dict[int | None, Period] = {}
        self._open: dict[Range, _Open] = {}
        from monitel.profiler import ranges  # late: without spans nobody needs it

        self._recorded = ranges
        self._listening: Listening | None = None

    def listen(self) -> None:
        self._listening = self._recorded.listen(began=self._began, ended=self._ended)

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()

    def abandon(self) -> None:
        """Forget all open ranges. Called in a forked child: they end in the parent."""
        self._open = {}

    def innermost(self) -> _Open | None:
        """Return the innermost running range that becomes a span; None if a span of the application runs inside it."""
        running = self._recorded.current_range()
        opened = None if running is None else self._nearest(running)
        if opened is None or not opened.kept:
            return None
        return opened if _is_within(get_current_span(), opened) else None

    @abstractmethod
    def _start(self, began: Range, period: Period, parent: _Open | None, around: Span) -> _Open:
        """Return the state of a range that begins inside ``parent``, or if None inside the current span ``around``."""

    @abstractmethod
    def _end(self, ended: Range, opened: _Open, end_ns: int) -> None:
        """End the span of a range."""

    def _new_period(self, step: int | None, until_ns: int | None, *, now: bool) -> Period:  # noqa: ARG002  subclasses use it
        """Return a new period; ``now`` is False if the process has already left that step."""
        return Period(step, until_ns, self._budget)

    def _period_started(self) -> None:
        """Do something when a new period has started."""

    def _began(self, began: Range) -> None:
        step = began.step if self._by_step else None
        if step is not None and step % self._every:
            return
        period = self._period
        if not period.takes(step, began.monotonic_start_ns):
            period = self._start_period(step, began.monotonic_start_ns)
        around = get_current_span()
        parent = None if began.parent is None else self._parent(began.parent, period, around)
        if parent is None:
            if self._is_unsampled(period, around):
                return
        elif not parent.kept:
            return
        if period.spans >= period.budget:
            self._open[began] = period.folding  # type: ignore[assignment]  # only the attributes of Opened are used
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
        elif opened is opened.period.folding:
            opened.period.fold(ended, end_ns)

    def _is_unsampled(self, period: Period, around: Span) -> bool:  # noqa: ARG002  subclasses use it
        """Return True if a range that begins in the application's span is in a trace that is not sampled."""
        context = around.get_span_context()
        return context.is_valid and not context.trace_flags.sampled

    def _parent(self, outer: Range, period: Period, around: Span) -> _Open | None:  # noqa: ARG002  subclasses use it
        """Return the parent of a range that begins in ``outer``; None: the application's span, or no parent."""
        opened = self._nearest(outer)
        return opened if opened is not None and _is_within(around, opened) else None

    def _nearest(self, found: Range | None) -> _Open | None:
        """Return the nearest enclosing range that is not folded, beginning with this one."""
        while found is not None:
            opened = self._open.get(found)
            if opened is not None and opened is not opened.period.folding:
                return opened
            found = found.parent
        return None

    def _start_period(self, step: int | None, now_ns: int) -> Period:
        """Return the period of a range that does not belong to the current one, and start it if necessary.

        A thread may begin a range of the previous step while others are in the next step already.
        """
        with self._lock:
            if self._starting:  # a garbage collection inside this method is a range, too
                return self._period
            self._starting = True
            try:
                now = step is None or step == monitel.get_step()
                known = self._period_of_step.get(step)
                current = step is None or known is self._period  # otherwise the process has gone back to that step
                if known is not None and (not now or (current and known.takes(step, now_ns))):
                    period = known
                else:
                    until_ns = now_ns + _WITHOUT_STEPS_NS if step is None else None
                    period = self._period_of_step[step] = self._new_period(step, until_ns, now=now)
                    self._periods.append(period)
                if now:
                    self._period = period
            finally:
                self._starting = False
        if period is not known:
            self._period_started()
        return period

    def _ended_periods(self, *, last: bool = False) -> list[Period]:
        """Remove and return the periods that two calls find ended: another thread may just begin or end a range."""
        found = []
        running = {id(opened.period) for opened in self._open.copy().values()}
        periods = self._periods.copy()  # before the step is read, so that none belongs to a later step
        step, now_ns = monitel.get_step() if self._by_step else None, self._recorded.now()
        for period in periods:
            if last or (period.closed and id(period) not in running):
                with suppress(ValueError):  # another thread has removed it
                    self._periods.remove(period)
                    found.append(period)
                if self._period_of_step.get(period.step) is period:
                    del self._period_of_step[period.step]
            elif not period.takes(step, now_ns):
                period.closed = True
        return found


def _is_within(around: Span, opened: Opened) -> bool:
    """Return True if no span of the application has begun inside the range."""
    return around is opened.around or around is INVALID_SPAN or not around.get_span_context().is_valid
