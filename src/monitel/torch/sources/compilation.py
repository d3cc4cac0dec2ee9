"""What torch.compile has compiled, and why again."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from monitel.event import Severity
from monitel.handlers import emit
from monitel.torch._compat import compilations
from monitel.torch.compilation_range import CompilationRange
from monitel.torch.place import place

if TYPE_CHECKING:
    from collections.abc import Callable


class Compilation:
    """Logs an event for each compilation, at most a second after it has ended; :class:`CompilationRange` has its start.

    ``torch.compile``, and ``torch.recompile`` (WARN) where the same code was compiled before, with the guard that has
    failed; ERROR where it failed. torch keeps the latest 64 compilations, which are looked at each second: nothing is
    added to the compiler, and torch.compile is not loaded where the job does not use it.
    """

    def install(self) -> None:
        """What was compiled before stays unsaid."""
        self._list: Callable[[], list[Any]] | None = compilations()
        self._last = self._latest()[-1:]
        self._range = CompilationRange()
        self._range.install()

    def remove(self) -> None:
        """Hear of no further beginnings."""
        self._range.remove()

    def tick(self) -> None:
        """Log what has come since."""
        self._range.tick()
        known = self._latest()
        new = known
        for number, each in enumerate(known):
            if self._last and each is self._last[0]:
                new = known[number + 1 :]
        self._last = known[-1:] or self._last
        for each in new:
            _say(each)

    def _latest(self) -> list[Any]:
        if self._list is None:
            self._list = compilations()
        return [] if self._list is None else self._list()


def _say(metrics: Any) -> None:
    attributes = {
        "compile.id": "compile_id",
        "compile.function": "co_name",
        "compile.file": "co_filename",
        "compile.line": "co_firstlineno",
        "compile.reason": "recompile_reason",
        "compile.graph_breaks": "num_graph_breaks",
        "compile.failure": "fail_type",
        "compile.failure.reason": "fail_reason",
    }
    data: dict[str, Any] = {key: getattr(metrics, field, None) for key, field in attributes.items()}
    said = {key: value for key, value in data.items() if isinstance(value, (str, int, float))}
    if (duration_us := getattr(metrics, "duration_us", None)) is not None:
        said["compile.duration"] = duration_us / 1e6
    end_us = getattr(metrics, "end_time_us", None)
    again = "compile.reason" in said
    emit(
        "torch.recompile" if again else "torch.compile",
        {**said, **place()},
        severity=Severity.ERROR if "compile.failure" in said else Severity.WARN if again else Severity.INFO,
        timestamp=None if end_us is None else datetime.fromtimestamp(end_us / 1e6),  # noqa: DTZ006  naive, as torch's
    )
