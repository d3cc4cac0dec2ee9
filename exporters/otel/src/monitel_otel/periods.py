"""What the ranges of one training step share: a budget of spans, and what is beyond it as one sum."""

from __future__ import annotations

from operator import itemgetter
from threading import get_ident
from typing import TYPE_CHECKING

from opentelemetry.trace import INVALID_SPAN

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from monitel.profiler.ranges import Range

BUDGET = 1000  # spans a step
_NAMES = 10  # said of a fold: those that took longest


class Period:
    """A training step as far as spans are concerned, or five seconds where there are no steps.

    Beyond the budget ranges are not lost: how many, how long and which is kept as :attr:`folded`. No lock: each
    thread adds to numbers of its own.

    Args:
        step: The training step, None where there are none.
        until_ns: Monotonic time after which no range begins in it; None: until the step is another.

    Attributes:
        spans: Spans begun.
        closed: A new period is to be made for what begins from now on.
        first: The first span of the period.
        over: What stands for each of the ranges beyond the budget while it runs.
    """

    __slots__ = ("_folds", "closed", "first", "over", "spans", "step", "until_ns")

    def __init__(self, step: int | None, until_ns: int | None = None) -> None:
        self.step = step
        self.until_ns = until_ns
        self.spans = 0
        self.closed = False
        self.first: Opened | None = None
        self.over = Opened(self, INVALID_SPAN, kept=False)
        self._folds: dict[tuple[int, str], list[int]] = {}

    def takes(self, step: int | None, now_ns: int) -> bool:
        """Whether a range of this step that begins now is one of this period's."""
        return step == self.step and not self.closed and (self.until_ns is None or now_ns <= self.until_ns)

    def fold(self, ended: Range, end_ns: int) -> None:
        """Add a range that is beyond the budget."""
        start_ns = ended.start_ns
        key = get_ident(), ended.name
        own = self._folds.get(key)
        if own is None:
            own = self._folds[key] = [0, 0, start_ns, end_ns]
        own[0] += 1
        own[1] += end_ns - start_ns
        own[2] = min(own[2], start_ns)
        own[3] = max(own[3], end_ns)

    @property
    def folded(self) -> int:
        """Ranges beyond the budget so far."""
        return sum(own[0] for own in self._folds.copy().values())

    def take_folded(self) -> Fold | None:
        """All of them in one; None where there are none."""
        folds, self._folds = self._folds, {}
        return Fold(folds) if folds else None


class Fold:
    """Ranges beyond the budget of a step, as one span.

    Attributes:
        start_ns: Start of the first, Unix ns.
        end_ns: End of the last.
        attributes: How many, how many seconds in all, and the names that took longest.
    """

    name = "monitel.folded"

    def __init__(self, folds: dict[tuple[int, str], list[int]]) -> None:
        by_name: dict[str, int] = {}
        for (_thread, name), (_count, length_ns, _start_ns, _end_ns) in folds.items():
            by_name[name] = by_name.get(name, 0) + length_ns
        longest = sorted(by_name.items(), key=itemgetter(1), reverse=True)[:_NAMES]
        self.start_ns = min(start_ns for _, _, start_ns, _ in folds.values())
        self.end_ns = max(end_ns for _, _, _, end_ns in folds.values())
        self.attributes: dict[str, int | float | list[str]] = {
            "monitel.folded.count": sum(count for count, _, _, _ in folds.values()),
            "monitel.folded.seconds": sum(by_name.values()) / 1e9,
            "monitel.folded.names": [name for name, _ in longest],
        }


class Opened:
    """What is known of a range while it runs; those who make spans of it add to it.

    Attributes:
        period: Whose budget it is from.
        around: The caller's own span when it began.
        kept: It becomes a span of its own.
    """

    __slots__ = ("around", "kept", "period")

    def __init__(self, period: Period, around: Span, *, kept: bool) -> None:
        self.period = period
        self.around = around
        self.kept = kept


def check_limits(budget: object, every: object) -> None:
    """Refuse what cannot be a budget of spans, or a number of steps."""
    for name, value in (("span_budget", budget), ("span_steps", every)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, got {type(value).__qualname__}: {value!r:.80}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
