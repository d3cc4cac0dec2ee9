"""Compilations by torch.compile, and the reasons for recompilations."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from monitel.event import Severity
from monitel.torch._compat import compilations
from monitel.torch.context import emit_at
from monitel.torch.sources.compilation_activity import CompilationActivity
from monitel.torch.sources.compilation_range import CompilationRange
from monitel.training_counters import training_counter

if TYPE_CHECKING:
    from collections.abc import Callable

_FIELDS = {
    "compile.id": "compile_id",
    "compile.function": "co_name",
    "compile.file": "co_filename",
    "compile.line": "co_firstlineno",
    "compile.reason": "recompile_reason",
    "compile.graph_breaks": "num_graph_breaks",
    "compile.failure": "fail_type",
    "compile.failure.reason": "fail_reason",
}


class Compilation:
    """Logs an event for each compilation at most a second after its end. :class:`CompilationRange` reports the start.

    :class:`CompilationActivity` counts the time in the ledger.

    The event is ``torch.compile`` (INFO), or ``torch.recompile`` (WARN) with the failed guard if the same code was
    compiled before; ERROR if the compilation failed. The counters ``training.recompilations`` and
    ``training.recompilation.time`` have the number and the seconds of the latter, and do not exist without them. torch
    keeps the latest 64 compilations, which are polled each second: nothing is added to the compiler, and torch.compile
    is not loaded if the job does not use it.
    """

    def install(self) -> None:
        """Start to report. Earlier compilations are not reported."""
        self._list: Callable[[], list[Any]] | None = compilations()
        self._last = self._latest()[-1:]
        self._range = CompilationRange()
        self._range.install()
        self._activity = CompilationActivity()
        self._activity.install()

    def remove(self) -> None:
        """Stop reporting starts of compilations, and counting their time."""
        self._activity.remove()
        self._range.remove()

    def poll(self) -> None:
        """Log the compilations that have ended since the last poll."""
        self._range.poll()
        known = self._latest()
        new = known
        for number, each in enumerate(known):
            if self._last and each is self._last[0]:
                new = known[number + 1 :]
        self._last = known[-1:] or self._last
        for each in new:
            self._report(each)

    def _latest(self) -> list[Any]:
        if self._list is None:
            self._list = compilations()
        return [] if self._list is None else self._list()

    def _report(self, metrics: Any) -> None:
        values: dict[str, Any] = {key: getattr(metrics, field, None) for key, field in _FIELDS.items()}
        data = {key: value for key, value in values.items() if isinstance(value, (str, int, float))}
        seconds = None if (taken_us := getattr(metrics, "duration_us", None)) is None else taken_us / 1e6
        if seconds is not None:
            data["compile.duration"] = seconds
        end_us = getattr(metrics, "end_time_us", None) or time.time_ns() // 1000
        again = "compile.reason" in data
        if again:
            training_counter("training.recompilations").add(1)
            training_counter("training.recompilation.time").add(max(seconds or 0.0, 0.0))
        emit_at(
            self._range.step_of(values["compile.id"], end_us),
            "torch.recompile" if again else "torch.compile",
            data,
            severity=Severity.ERROR if "compile.failure" in data else Severity.WARN if again else Severity.INFO,
            timestamp=datetime.fromtimestamp(end_us / 1e6),  # noqa: DTZ006  naive, as torch's
        )
