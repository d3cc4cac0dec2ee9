"""Compilations by torch.compile, in progress and finished, their time, and the reasons for recompilations."""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from monitel import clock
from monitel.event import Severity
from monitel.import_hook import AfterImport
from monitel.profiler import record_function
from monitel.step import get_step
from monitel.torch._compat import COMPILER, compilation_callbacks, compilation_scopes, compilations
from monitel.torch.context import emit_at
from monitel.torch.thread_activity import training_activity
from monitel.training_counters import training_counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_STARTED = 64  # as many as the finished compilations that torch keeps


class CompilationRange:
    """Reports compilations through the compiler's callbacks: range ``torch.compile``, event ``torch.compile.started``.

    The range is in the compiling thread. Compilations that start while another one runs, within it or in another
    thread, are part of its range. The polling thread logs the event at most a second later, with the time of the start,
    even if the compilation hangs, unless it holds the GIL.

    Installing does not load the compiler.
    """

    def install(self) -> None:
        """Register the callbacks once the compiler is loaded."""
        self._started: deque[tuple[datetime, int | None, dict[str, str]]] = deque(maxlen=_MAX_STARTED)
        self._steps: deque[tuple[int, str, int | None]] = deque(maxlen=_MAX_STARTED)  # start, id, step
        self._range: record_function | None = None
        self._callbacks: list[tuple[list[Callable[..., None]], Callable[..., None]]] = []
        self._compiler = AfterImport(COMPILER, self._register)

    def remove(self) -> None:
        """Unregister the callbacks; during a compilation, only that for the start, so that its range ends."""
        self._compiler.cancel()
        for registered, callback in self._callbacks[: 1 if self._range is not None else 2]:
            if callback in registered:
                registered.remove(callback)

    def poll(self) -> None:
        """Log the compilations that have started since the last poll."""
        if self._callbacks:
            self._register()  # again, in case torch.compiler.reset() has cleared the lists
        while self._started:
            timestamp, step, data = self._started.popleft()
            emit_at(step, "torch.compile.started", data, timestamp=timestamp)

    def step_of(self, compile_id: str | None, end_us: int) -> int | None:
        """Return the step at which a compilation started, or the current step if the start was not observed.

        A compilation within another one, or beside it in another thread, has the step at which the first one started.

        Args:
            compile_id: torch's id of the compilation.
            end_us: Its end, in microseconds since the Unix epoch.
        """
        before = [(start_id, step) for start_us, start_id, step in list(self._steps) if start_us <= end_us]
        steps = [step for start_id, step in before if start_id == compile_id] or [step for _, step in before]
        return steps[-1] if steps else get_step()

    def _register(self) -> None:
        starts, ends = compilation_callbacks()
        self._callbacks = [(starts, self._on_start), (ends, self._on_end)]
        for registered, callback in self._callbacks:
            if callback not in registered:
                registered.append(callback)

    def _on_start(self, args: Any) -> None:
        """Enter the range. Runs with a compiler lock held: range listeners are fast, event handlers may not be."""
        compile_id, step = str(getattr(args, "compile_id", None)), get_step()
        data = {
            "compile.id": compile_id,
            "compile.trigger": str(getattr(getattr(args, "callback_trigger", None), "name", None)).lower(),
        }
        self._started.append((clock.now(), step, data))
        self._steps.append((time.time_ns() // 1000, compile_id, step))  # the system's clock, as torch's times
        self._range = record_function("torch.compile", data)
        self._range.__enter__()

    def _on_end(self, _args: Any) -> None:
        entered, self._range = self._range, None
        if entered is not None:  # None: the compilation started before the callbacks were registered
            entered.__exit__(None, None, None)


_INSTALL_CALLBACKS = "install_callbacks"


class CompilationActivity:
    """Counts each compilation in the training thread as ``compile``, including one that raises.

    The compiler's callbacks are not enough: of compilations in several threads at a time, they report only the start of
    the first one and the end of the last one. So the compiler's context manager around each compilation is wrapped.

    Installing does not load the compiler.
    """

    def install(self) -> None:
        """Wrap the context manager once the compiler is loaded."""
        self._on = True
        self._handler: Any = None
        self._compiler = AfterImport(COMPILER, self._wrap)

    def remove(self) -> None:
        """Restore the context manager. If somebody else has wrapped it since, it stays and only passes calls on."""
        self._on = False
        self._compiler.cancel()
        if self._handler is not None and vars(self._handler).get(_INSTALL_CALLBACKS) is self._wrapped:
            if self._replaced is None:
                delattr(self._handler, _INSTALL_CALLBACKS)  # now it is that of the class again
            else:
                setattr(self._handler, _INSTALL_CALLBACKS, self._replaced)

    def _wrap(self) -> None:
        handler = compilation_scopes()
        original, self._replaced = getattr(handler, _INSTALL_CALLBACKS), vars(handler).get(_INSTALL_CALLBACKS)

        @contextmanager
        def counted(*args: Any, **kwargs: Any) -> Iterator[Any]:
            if not self._on:
                with original(*args, **kwargs) as value:
                    yield value
                return
            with training_activity("compile"), original(*args, **kwargs) as value:
                yield value

        self._handler, self._wrapped = handler, counted
        setattr(handler, _INSTALL_CALLBACKS, counted)


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
