"""Compilations in progress: a range, and an event for the start."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from monitel import clock
from monitel.import_hook import AfterImport
from monitel.profiler import record_function
from monitel.step import get_step
from monitel.torch._compat import COMPILER, compilation_callbacks
from monitel.torch.context import emit_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

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
