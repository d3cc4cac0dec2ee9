"""A compilation while it lasts: a range, and an event that it has begun."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from monitel import clock
from monitel.handlers import emit
from monitel.profiler import record_function
from monitel.step import get_step
from monitel.torch._compat import COMPILER, compilation_callbacks
from monitel.torch.import_hook import AfterImport
from monitel.torch.place import place_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

_MOST = 64  # as many as torch keeps of those that have ended


class CompilationRange:
    """Has the compiler say when it begins and ends: the range ``torch.compile``, and ``torch.compile.started``.

    The range is in the thread that compiles; compilations within one, or beside it in another thread, are part of it.
    The event is logged at most a second later, with its own time, by the thread of the bridge: also while the
    compilation hangs, unless it keeps the GIL.

    The compiler is not loaded for this.
    """

    def install(self) -> None:
        """Listen once the compiler is there."""
        self._begun: deque[tuple[datetime, int | None, dict[str, str]]] = deque(maxlen=_MOST)
        self._range: record_function | None = None
        self._listening: list[tuple[list[Callable[..., None]], Callable[..., None]]] = []
        self._compiler = AfterImport(COMPILER, self._listen)

    def remove(self) -> None:
        """Listen no more."""
        self._compiler.cancel()
        for callbacks, ours in self._listening:
            if ours in callbacks:
                callbacks.remove(ours)

    def tick(self) -> None:
        """Log what has begun since."""
        if self._listening:
            self._listen()  # again, where torch.compiler.reset() has cleared the lists
        while self._begun:
            timestamp, step, said = self._begun.popleft()
            emit("torch.compile.started", {**said, **place_at(step)}, timestamp=timestamp)

    def _listen(self) -> None:
        starts, ends = compilation_callbacks()
        self._listening = [(starts, self._on_start), (ends, self._on_end)]
        for callbacks, ours in self._listening:
            if ours not in callbacks:
                callbacks.append(ours)

    def _on_start(self, about: Any) -> None:
        """Run with a lock of the compiler's held: whoever hears of ranges is quick, handlers of events may not be."""
        said = {
            "compile.id": str(getattr(about, "compile_id", None)),
            "compile.trigger": str(getattr(getattr(about, "callback_trigger", None), "name", None)).lower(),
        }
        self._begun.append((clock.now(), get_step(), said))
        self._range = record_function("torch.compile", said)
        self._range.__enter__()

    def _on_end(self, _about: Any) -> None:
        begun, self._range = self._range, None
        if begun is not None:  # None: it began before anybody listened
            begun.__exit__(None, None, None)
