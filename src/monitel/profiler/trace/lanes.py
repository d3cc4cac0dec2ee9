"""Where a trace shows each range, so that what one line shows nests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.profiler.tracks import Track

_FIRST_MADE_UP = 1 << 22  # Linux gives threads smaller numbers


class Lanes:
    """Gives every range a line (a ``tid`` of the trace), by its track and by what is on that line already.

    A thread's line has the thread's number. A task has a line of its own, and so has what overlaps in one track
    without being nested, as ranges in generators do. Ranges come by their start.
    """

    def __init__(self) -> None:
        self._lines: dict[Track, list[tuple[int, list[int]]]] = {}  # of each: the tid, and where what is open ends
        self._made_up = _FIRST_MADE_UP
        self._threads: set[int] = set()

    def tid(self, track: Track, start_ns: int, end_ns: int) -> int:
        """The line of a range."""
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
        """Every line there is, with what it shows."""
        for track, lines in self._lines.items():
            for number, (tid, _) in enumerate(lines, 1):
                yield tid, f"{track}" if number == 1 else f"{track}, {number}"

    def _new_tid(self, track: Track) -> int:
        if track.task_name is None and track.thread_id not in self._threads:
            self._threads.add(track.thread_id)
            return track.thread_id
        self._made_up += 1
        return self._made_up
