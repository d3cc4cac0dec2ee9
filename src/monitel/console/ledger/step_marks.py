"""The steps of this process, each with the time in ``step`` before it, thinned out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.activities import total_ns
from monitel.console.ledger.history import MARKS, STEP, ascending
from monitel.step import first_step, unwatch, watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.console.ledger.history import Mark

_KEPT = MARKS // 2


class StepMarks:
    """Records steps. The training thread takes no lock for it.

    Args:
        began: Called in the training thread when the process sets its first step itself.
    """

    def __init__(self, began: Callable[[], object] = lambda: None) -> None:
        self._began = began
        self._marks: list[Mark] = []
        self._latest: Mark | None = None
        self._spacing_ns = 0
        self._begun = False
        if (first := first_step()) is not None:
            self._begun = True
            self._record_at(first, 0)

    def install(self) -> None:
        """Record each step from now on."""
        watch(self.record)

    def uninstall(self) -> None:
        """Record no more steps. Idempotent."""
        unwatch(self.record)

    def record(self, step: int) -> None:
        """Record that a step begins now, in the thread that sets it."""
        if self._begun or first_step() is None:
            self._record_at(step, total_ns(STEP))
            return
        self._begun = True
        self._marks, self._latest = [], None  # a source has counted them from 1, wherever the run resumes
        self._record_at(step, total_ns(STEP))
        self._began()

    def notice(self, step: int) -> None:
        """Record the current step if nobody has recorded it. Any thread may call it."""
        if self._latest is None or step > self._latest[0]:
            self._record_at(step, total_ns(STEP))

    def snapshot(self) -> tuple[Mark, ...]:
        """Return the marks so far, in ascending order. Any thread may call it."""
        latest, marks = self._latest, list(self._marks)
        return ascending(marks if latest is None else [*marks, latest])

    def _record_at(self, step: int, before_ns: int) -> None:
        latest, marks = self._latest, self._marks
        if latest is not None and step == latest[0]:
            return  # the same step again
        if latest is not None and step < latest[0]:
            marks = self._marks = [mark for mark in marks if mark[0] < step]
        self._latest = (step, before_ns)
        if not marks or before_ns - marks[-1][1] >= self._spacing_ns:
            marks.append(self._latest)
            if len(marks) >= MARKS - 1:
                self._marks = marks[::2]
                self._spacing_ns = (before_ns - marks[0][1]) // _KEPT
