"""Assignment of ranges to the lines of a trace, such that the ranges of a line nest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.profiler.ranges.tracks import Track

_FIRST_EXTRA_TID = 1 << 22  # thread ids of Linux are smaller


class Lanes:
    """Assigns a line (a ``tid`` of the trace) to each range. Ranges must be passed in order of their start.

    The line of a thread has the thread's id. Each task has a separate line. A range that overlaps others of its track
    without nesting, as ranges in generators can, goes to an additional line of the track.
    """

    def __init__(self) -> None:
        self._lines: dict[Track, list[tuple[int, list[int]]]] = {}  # tid, and the ends of open ranges, of each line
        self._last_extra_tid = _FIRST_EXTRA_TID
        self._threads: set[int] = set()

    def tid(self, track: Track, start_ns: int, end_ns: int) -> int:
        """Return the line of a range."""
        lines = self._lines.setdefault(track, [])
        for tid, ends in lines:
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return tid
        tid = self._new_tid(track)
        lines.append((tid, [end_ns]))
        return tid

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield each line and its name."""
        for track, lines in self._lines.items():
            for number, (tid, _) in enumerate(lines, 1):
                yield tid, f"{track}" if number == 1 else f"{track}, {number}"

    def _new_tid(self, track: Track) -> int:
        if track.task_name is None and track.thread_id not in self._threads:
            self._threads.add(track.thread_id)
            return track.thread_id
        self._last_extra_tid += 1
        return self._last_extra_tid
