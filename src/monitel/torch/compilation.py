"""Compilations by torch.compile, in progress and finished, their time, and the reasons for recompilations."""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any

from monitel import clock
from monitel.event import Severity
from monitel.process.import_hook import AfterImport
from monitel.process.os_threads import Lock
from monitel.profiler import record_function
from monitel.torch.hooks import COMPILER, Patch, Source, find
from monitel.torch.recording import emit_at, training_activity
from monitel.training.counters import training_counter
from monitel.training.step import get_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_STARTED = 64  # as many as the finished compilations that torch keeps
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


class Compilations(Source):
    """Reports each compilation, including one that raises, by the compiler's context manager around it.

    Starts are queued, so that one that hangs is logged. torch keeps the latest 64 finished ones, which are polled.
    Compilations that start while another one runs are part of its range. Installing does not load the compiler.
    """

    def install(self) -> None:
        self._lock = Lock()
        self._running = 0  # compilations under way
        self._started: deque[tuple[datetime, int | None, dict[str, str]]] = deque(maxlen=_MAX_STARTED)
        self._steps: deque[tuple[str, int | None]] = deque(maxlen=_MAX_STARTED)  # id and step of each one
        self._list: Callable[[], list[Any]] | None = None
        self._last = self._latest()[-1:]
        self._compiler = AfterImport(COMPILER, self._wrap)

    def remove(self) -> None:
        self._compiler.cancel()
        self.unhook()

    def poll(self) -> None:
        while self._started:
            timestamp, step, data = self._started.popleft()
            emit_at(step, "torch.compile.started", data, timestamp=timestamp)
        known = self._latest()
        new = known
        for number, each in enumerate(known):
            if self._last and each is self._last[0]:
                new = known[number + 1 :]
        self._last = known[-1:] or self._last
        for each in new:
            self._report(each)

    def _wrap(self) -> None:
        self.hook(Patch(find(f"{COMPILER}.callback", "callback_handler"), "install_callbacks", self._compiling))

    @contextmanager
    def _compiling(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        """A compiler lock is held: range listeners are fast, event handlers may not be."""
        trigger, compile_id = (*args, *kwargs.values(), None, None)[:2]
        data = {"compile.id": str(compile_id), "compile.trigger": str(getattr(trigger, "name", None)).lower()}
        step = get_step()
        self._steps.append((str(compile_id), step))
        with self._lock:
            self._running += 1
            first = self._running == 1
        try:
            if first:
                self._started.append((clock.now(), step, data))
            range_ = record_function("torch.compile", data) if first else nullcontext()
            with range_, training_activity("compile"), original(*args, **kwargs) as value:
                yield value
        finally:
            with self._lock:
                self._running -= 1

    def _latest(self) -> list[Any]:
        """Return the latest compilations; none while the compiler is not loaded, which takes a second."""
        if self._list is None and f"{COMPILER}.utils" in sys.modules:
            self._list = find(f"{COMPILER}.utils", "get_compilation_metrics")
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
        steps = [step for started, step in list(self._steps) if started == str(values["compile.id"])]
        emit_at(
            steps[-1] if steps else get_step(),
            "torch.recompile" if again else "torch.compile",
            data,
            severity=Severity.ERROR if "compile.failure" in data else Severity.WARN if again else Severity.INFO,
            timestamp=datetime.fromtimestamp(end_us / 1e6),  # noqa: DTZ006  naive, as torch's
        )
