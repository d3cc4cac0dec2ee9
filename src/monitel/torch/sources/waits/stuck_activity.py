"""The activity ``stuck``: the training thread waits, and the wait has exceeded the time limit."""

from __future__ import annotations

from threading import main_thread
from typing import TYPE_CHECKING

from monitel import activities
from monitel.os_threads import Event, Thread, frames, get_ident, main_thread_pulse
from monitel.step import get_step
from monitel.wait_counter import waits_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel.activities import Activity

    Evidence = tuple[object, ...]

_FROM = frozenset(("startup", "init", "step", "other"))  # activities; a wait in another one belongs to that one
_INTERVAL_S = 0.25


class StuckActivity:
    """Counts the time of the training thread as ``stuck`` from the time limit of a wait on.

    A wait is that of the training thread if

    * it is of monitel's own counters and was begun by this thread, or
    * it is of another source, whose waits have no thread, and this thread has not left its call of a function: at each
      poll since the first one that found the wait, all of its frames were at the same instructions. The main thread
      has also executed nothing in between: another thread may wait while it repeats a long call.

    In addition the thread has made no step since then, and entered and left no activity. What was counted before is not
    changed. ``stuck`` ends, at most a quarter of a second later, when any of this changes. A separate thread checks it
    while ``stuck`` lasts: a poll may hang in an event handler.

    Args:
        seconds: The time limit.
    """

    def __init__(self, seconds: float) -> None:
        self._limit_ns = seconds * 1e9
        self._since: dict[str, tuple[Evidence, int]] = {}
        self._entered: _Stuck | None = None

    def poll(self, waits: Mapping[str, int], now_ns: int) -> None:
        """Enter ``stuck`` or leave it.

        Args:
            waits: The keys of waits in flight, each with the number of its waits that have ended.
            now_ns: The time, monotonic.
        """
        if self._entered is not None:
            if self._entered.is_over(waits):
                self.remove()
            return
        thread, current, changed_ns = activities.position()
        if thread in {0, get_ident()}:  # there is no ledger, or the training thread polls, so it is not stuck
            self._since.clear()
            return
        before, self._since = self._since, {}
        for key, ended in waits.items():
            evidence = _evidence(thread, key, ended)
            if evidence is None:
                continue
            evidence = (*evidence, changed_ns)
            known, since_ns = before.get(key, (None, 0))
            self._since[key] = evidence, since_ns if known == evidence else now_ns
        if current in _FROM:
            for key, (evidence, since_ns) in self._since.items():
                if now_ns - since_ns >= self._limit_ns:
                    self._enter(thread, key, evidence[:-1], changed_ns)
                    return

    def remove(self) -> None:
        """Leave ``stuck``."""
        self._since.clear()
        if self._entered is not None:
            self._entered.leave()
            self._entered = None

    def _enter(self, thread: int, key: str, evidence: Evidence, changed_ns: int) -> None:
        entered = activities.enter_for_owner("stuck", changed_ns)
        if entered is not None:  # else the thread has entered or left an activity just now
            self._entered = _Stuck(entered, thread, key, evidence)
            self._entered.watch()


class _Stuck:
    """The activity ``stuck`` of one wait."""

    def __init__(self, activity: Activity, thread: int, key: str, evidence: Evidence) -> None:
        self._activity = activity
        self._thread = thread
        self._key = key
        self._evidence = evidence
        self._position = activities.position()
        self._left = Event()

    def watch(self) -> None:
        """Leave as soon as the wait is over, in a thread."""
        try:
            Thread(target=self._run, name="monitel-stuck", daemon=True).start()
        except RuntimeError:  # the process ends, or cannot have more threads
            self.leave()

    def is_over(self, waits: Mapping[str, int] | None = None) -> bool:
        """Return whether the training thread has gone on.

        Args:
            waits: As for :meth:`StuckActivity.poll`; None if they are not known.
        """
        ended = self._evidence[-1] if waits is None else waits.get(self._key)
        return (
            self._left.is_set()
            or activities.position() != self._position
            or _evidence(self._thread, self._key, ended) != self._evidence
        )

    def leave(self) -> None:
        """Leave the activity. Idempotent."""
        self._left.set()
        self._activity.__exit__(None, None, None)

    def _run(self) -> None:
        while not self._left.wait(_INTERVAL_S):
            if self.is_over():
                self.leave()


def _evidence(thread: int, key: str, ended: object) -> Evidence | None:
    """Return values that change when a thread goes on; None if a wait is not that of this thread."""
    waits = waits_of(thread)
    if key not in waits:
        executed = main_thread_pulse() if thread == main_thread().ident else None
        return get_step(), _instructions(thread), executed, ended
    return None if waits[key] is None else (get_step(), waits[key], None)


def _instructions(thread: int) -> Evidence:
    """Return the frames of a thread, each with the instruction that it executes."""
    found: list[object] = []
    frame = frames().get(thread)
    while frame is not None:
        found += (id(frame), frame.f_lasti)
        frame = frame.f_back
    return tuple(found)
