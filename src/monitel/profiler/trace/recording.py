"""Recording: the ranges of one profiling cycle."""

from __future__ import annotations

import gc
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from monitel.process.os_threads import RLock
from monitel.profiler import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.profiler.ranges import Listening, Range

_MAX_DISORDER = 1 << 15  # positions by which a range can be out of order, because threads append concurrently
_start = attrgetter("monotonic_start_ns")
_lock = RLock()
_recordings_with_pauses = 0
_pause_began_ns = -1  # collections do not overlap: the interpreter runs one at a time


#: A range, its beginning and its end in monotonic ns, and whether it has finished. A range that still runs when the
#: recording stops ends at the stop.
Recorded: TypeAlias = "tuple[Range, int, int, bool]"


class Recording:
    """Collects every range that begins between :meth:`start` and :meth:`stop`, in all threads.

    Each range is appended to a list when it begins. ``append`` needs no lock, and the ranges of one track are in order.
    Nothing is dropped; a million ranges take about 110 MB. A forked child does not continue the recording.

    Args:
        trace_id: Id of the trace.
        gc_pauses: Record the pauses of Python's garbage collector too.
    """

    def __init__(self, trace_id: str, *, gc_pauses: bool = False) -> None:
        self.trace_id = trace_id
        self.metadata: dict[str, str] = {}  # JSON text by key
        self.epoch_ns = 0
        self.start_ns = -1
        self.stop_ns: int | None = None
        self._gc_pauses = gc_pauses
        self._began: list[Range] = []
        self._listening: Listening | None = None

    @property
    def running(self) -> bool:
        """True between :meth:`start` and :meth:`stop`."""
        return self.start_ns >= 0 and self.stop_ns is None

    def start(self) -> None:
        """Record from now on."""
        self.epoch_ns = ranges.synchronize()
        self.start_ns = ranges.now()
        self.toggle(on=True)
        if self._gc_pauses:
            _record_pauses(+1)

    def toggle(self, *, on: bool) -> None:
        """Omit the ranges that begin from now on, or include them again."""
        if on and self._listening is None:
            self._listening = ranges.listen(began=self._began.append)
        elif not on and self._listening is not None:
            self._listening.close()
            self._listening = None

    def stop(self) -> None:
        """Stop recording."""
        self.toggle(on=False)
        self.stop_ns = ranges.now()
        if self._gc_pauses:
            _record_pauses(-1)

    def __len__(self) -> int:
        return len(self._began)

    def __iter__(self) -> Iterator[Recorded]:
        """Yield the ranges recorded so far by start, outer ranges first if the start is the same."""
        first_ns, stop_ns = self.start_ns, ranges.now() if self.stop_ns is None else self.stop_ns
        for each in self._by_start():
            start_ns, end_ns = each.monotonic_start_ns, each.monotonic_end_ns
            if start_ns >= first_ns:  # else it was recorded at its end, as a training step
                finished = 0 <= end_ns <= stop_ns
                yield each, start_ns, end_ns if finished else stop_ns, finished

    def _by_start(self) -> Iterator[Range]:
        """Yield the ranges by start, sorting a bounded part of the list at a time: they are almost in order."""
        waiting: list[Range] = []
        for first in range(0, len(self._began), _MAX_DISORDER):
            waiting += self._began[first : first + _MAX_DISORDER]
            waiting.sort(key=_start)
            yield from waiting[:-_MAX_DISORDER]
            del waiting[:-_MAX_DISORDER]
        yield from waiting


def _record_pauses(change: int) -> None:
    """Record pauses of Python's garbage collector as ranges, for one recording more or less."""
    global _recordings_with_pauses
    with _lock:
        before, _recordings_with_pauses = _recordings_with_pauses, _recordings_with_pauses + change
        if before == 0:
            gc.callbacks.append(_on_collection)
        elif _recordings_with_pauses == 0:
            gc.callbacks.remove(_on_collection)


def _on_collection(phase: str, info: dict[str, Any]) -> None:
    global _pause_began_ns
    if phase == "start":
        _pause_began_ns = ranges.now()
    elif _pause_began_ns >= 0:
        start_ns, _pause_began_ns = _pause_began_ns, -1
        ranges.record_past("Python GC", start_ns, ranges.now(), dict(info))
