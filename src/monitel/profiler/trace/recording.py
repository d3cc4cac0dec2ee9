"""The ranges of one cycle, from its start to its stop."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from monitel.profiler import _ranges, gc_pauses, ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.profiler.ranges import Listening, Range

_OUT_OF_ORDER = 1 << 15  # ranges that other threads may have begun before one that began earlier is in the list
_start = attrgetter("monotonic_start_ns")


class Recorded(NamedTuple):
    """A range as a recording knows it: what still runs at the stop ends there.

    Attributes:
        range: The range.
        start_ns: Monotonic.
        end_ns: Monotonic, and not after the stop.
        finished: False for what still ran.
    """

    range: Range
    start_ns: int
    end_ns: int
    finished: bool


class Recording:
    """Collects every range that begins between :meth:`start` and :meth:`stop`, in all threads.

    A list takes each range as it begins: ``append`` needs no lock, and ranges of one track are in order. Nothing is
    dropped; a million ranges take about 110 MB. In a forked child a recording goes no further.

    Args:
        trace_id: What the trace is known by.
        gc_pauses: Record garbage collections too.
    """

    def __init__(self, trace_id: str, *, gc_pauses: bool = False) -> None:
        self.trace_id = trace_id
        self.metadata: dict[str, str] = {}  # JSON texts, by key
        self.epoch_ns = 0
        self.start_ns = -1
        self.stop_ns: int | None = None
        self._gc_pauses = gc_pauses
        self._began: list[Range] = []
        self._listening: Listening | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped yet."""
        return self.start_ns >= 0 and self.stop_ns is None

    def start(self) -> None:
        """Record from now on."""
        self.epoch_ns = ranges.synchronize()
        self.start_ns = _ranges.now()
        self.toggle(on=True)
        if self._gc_pauses:
            gc_pauses.record()

    def toggle(self, *, on: bool) -> None:
        """Leave out what begins from now on, or take it in again."""
        if on and self._listening is None:
            self._listening = ranges.listen(began=self._began.append)
        elif not on and self._listening is not None:
            self._listening.close()
            self._listening = None

    def stop(self) -> None:
        """Record no more."""
        self.toggle(on=False)
        self.stop_ns = _ranges.now()
        if self._gc_pauses:
            gc_pauses.stop()

    def __len__(self) -> int:
        return len(self._began)

    def __iter__(self) -> Iterator[Recorded]:
        """What was recorded so far, by start; of what starts at once, the outer one first."""
        stop_ns = _ranges.now() if self.stop_ns is None else self.stop_ns
        for each in self._by_start():
            end_ns = each.monotonic_end_ns
            finished = 0 <= end_ns <= stop_ns
            yield Recorded(each, each.monotonic_start_ns, end_ns if finished else stop_ns, finished)

    def _by_start(self) -> Iterator[Range]:
        """In memory that does not grow: threads hand their ranges over a little out of order, not arbitrarily."""
        waiting: list[Range] = []
        for place in range(0, len(self._began), _OUT_OF_ORDER):
            waiting += self._began[place : place + _OUT_OF_ORDER]
            waiting.sort(key=_start)
            yield from waiting[:-_OUT_OF_ORDER]
            del waiting[:-_OUT_OF_ORDER]
        yield from waiting
