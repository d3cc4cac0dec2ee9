"""Periods: the ranges of one training step share a budget of spans, and a fold of the ranges beyond it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.trace import INVALID_SPAN

from monitel.attributes import escape_surrogates
from monitel.process.os_threads import get_ident

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from monitel.profiler.ranges import Range

#: The most spans of a step, by default.
BUDGET = 1000

_NAMES = 10  # of the ranges with the longest total duration, in a fold
_NAME_LENGTH = 100  # the rest of a longer name is cut off
_SUMS = 1000  # of the names of a period, in all threads; further names share a sum for each thread


class Period:
    """One training step, or five seconds if there are no steps.

    Ranges beyond the budget are folded: the number, total duration and errors of each name are kept. No lock is needed:
    each thread has separate sums. Names that come after the first thousand are not kept.

    Args:
        step: The training step; None if there are no steps.
        until_ns: Monotonic time after which no range belongs to the period; None: the step decides.
        budget: The most spans of the period.

    Attributes:
        spans: Number of spans that were started.
        closed: Ranges that begin from now on belong to another period.
        first: The first span of the period.
        folding: Stands for each running range that is beyond the budget.
    """

    __slots__ = ("_folds", "budget", "closed", "first", "folding", "spans", "step", "until_ns")

    def __init__(self, step: int | None, until_ns: int | None = None, budget: int = BUDGET) -> None:
        self.step = step
        self.until_ns = until_ns
        self.budget = budget
        self.spans = 0
        self.closed = False
        self.first: Opened | None = None
        self.folding = Opened(self, INVALID_SPAN, kept=False)
        # By thread and name (None: the others): count, duration, start, end, errors.
        self._folds: dict[tuple[int, str | None], list[int]] = {}

    def takes(self, step: int | None, now_ns: int) -> bool:
        """Return True if a range that begins in this step and at this time belongs to the period."""
        return step == self.step and not self.closed and (self.until_ns is None or now_ns <= self.until_ns)

    def fold(self, ended: Range, end_ns: int) -> None:
        """Add a range that is beyond the budget to the fold."""
        start_ns = ended.start_ns
        key: tuple[int, str | None] = get_ident(), ended.name
        sums = self._folds.get(key)
        if sums is None and len(self._folds) >= _SUMS:
            key = key[0], None
            sums = self._folds.get(key)
        if sums is None:
            sums = self._folds[key] = [0, 0, start_ns, end_ns, 0]
        sums[0] += 1
        sums[1] += end_ns - start_ns
        sums[2] = min(sums[2], start_ns)
        sums[3] = max(sums[3], end_ns)
        if ended.error_type is not None:
            sums[4] += 1

    @property
    def folded(self) -> int:
        """Number of ranges that were folded."""
        return sum(sums[0] for sums in self._folds.copy().values())

    def take_folded(self) -> Fold | None:
        """Remove and return the fold; None if no range was folded."""
        folds, self._folds = self._folds, {}
        return Fold(folds) if folds else None


class Fold:
    """The ranges beyond the budget of a step, as one span.

    Attributes:
        start_ns: Start of the first range, Unix ns.
        end_ns: End of the last range, Unix ns.
        attributes: Number of ranges and their total seconds, for all of them and for each of the names with the longest
            total duration; the number of ranges that were left by an exception, if any.
    """

    name = "monitel.folded"

    def __init__(self, folds: dict[tuple[int, str | None], list[int]]) -> None:
        by_name: dict[str | None, tuple[int, int]] = {}
        for (_thread, name), (count, length_ns, *_) in folds.items():
            known_count, known_ns = by_name.get(name, (0, 0))
            by_name[name] = known_count + count, known_ns + length_ns
        named = [(name, sums) for name, sums in by_name.items() if name is not None]
        longest = sorted(named, key=lambda item: item[1][1], reverse=True)[:_NAMES]
        self.start_ns = min(sums[2] for sums in folds.values())
        self.end_ns = max(sums[3] for sums in folds.values())
        self.attributes: dict[str, int | float | list[str] | list[int] | list[float]] = {
            "monitel.folded.count": sum(count for count, _ in by_name.values()),
            "monitel.folded.seconds": sum(length_ns for _, length_ns in by_name.values()) / 1e9,
            "monitel.folded.names": [escape_surrogates(name[:_NAME_LENGTH]) for name, _ in longest],
            "monitel.folded.name_counts": [count for _, (count, _) in longest],
            "monitel.folded.name_seconds": [length_ns / 1e9 for _, (_, length_ns) in longest],
        }
        if errors := sum(sums[4] for sums in folds.values()):
            self.attributes["monitel.folded.errors"] = errors


class Opened:
    """The state of a running range; subclasses add the state of its span.

    Attributes:
        period: The period to which the range belongs.
        around: The application's current span when the range began.
        kept: The range becomes a separate span.
    """

    __slots__ = ("around", "kept", "period")

    def __init__(self, period: Period, around: Span, *, kept: bool) -> None:
        self.period = period
        self.around = around
        self.kept = kept
