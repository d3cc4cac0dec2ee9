"""Ranges of a training step and its stages, for profiles and spans. Without listeners they cost next to nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monitel.os_threads import local
from monitel.profiler.ranges import Track, record_function, record_past, recorder
from monitel.profiler.ranges.tracks import track_of_thread

if TYPE_CHECKING:
    from collections.abc import Callable

_STEP = "training.step"


def open_range(name: str) -> Callable[[None, None, None], None] | None:
    """Begin a range, and return the function that ends it; None if nothing listens."""
    if not recorder.active:
        return None
    opened = record_function(name)
    opened.__enter__()
    return opened.__exit__


def record_step(start_ns: int, end_ns: int) -> None:
    """Record the range ``training.step``, when the step has ended.

    A range that began at the end of the previous step could be wrong: an evaluation or the rest of the program may
    follow, and all of its ranges would be inside a step that never ends. Ranges of the user often begin in one step and
    end in the next. Therefore steps have a separate track.

    Args:
        start_ns: End of the previous step, monotonic.
        end_ns: End of this step.
    """
    if recorder.active:
        record_past(_STEP, start_ns, end_ns, track=_thread.track())


class _Thread(local):
    _track: Track | None = None
    _pid = 0

    def track(self) -> Track:
        """Return the track of this thread's steps. The thread has another id in a forked child."""
        if self._track is None or self._pid != os.getpid():
            thread, self._pid = track_of_thread(), os.getpid()
            self._track = Track(thread.thread_id, thread.thread_name, "steps")
        return self._track


_thread = _Thread()
