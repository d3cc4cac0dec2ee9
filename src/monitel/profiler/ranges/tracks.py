"""Tracks: the threads and asyncio tasks that ranges run in. Ranges of one track nest."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import ref

from monitel.process.os_threads import get_ident, names

if TYPE_CHECKING:
    from collections.abc import Callable


class Track:
    """Thread or asyncio task of a range; there is one object for each.

    Attributes:
        thread_id: Native id of the thread, as the operating system shows it; Python's where there is no native one.
        thread_name: Name of the thread when its first range began.
        task_name: Name of the asyncio task; None outside of tasks. The track of training steps is beside that of their
            thread, with the name ``steps`` here.
    """

    __slots__ = ("task_name", "thread_id", "thread_name")

    def __init__(self, thread_id: int, thread_name: str, task_name: str | None = None) -> None:
        self.thread_id = thread_id
        self.thread_name = thread_name
        self.task_name = task_name

    def __str__(self) -> str:
        return self.thread_name if self.task_name is None else f"{self.task_name} ({self.thread_name})"


_thread_id: Callable[[], int] = getattr(threading, "get_native_id", get_ident)
_of_tasks: dict[int, tuple[ref[Any], Track]] = {}  # by id(task), as long as the task exists


def track_of_thread() -> Track:
    """Return a new track for the calling thread. The caller stores it."""
    # Not current_thread(): it registers a dummy for a thread that the threading module did not start.
    return Track(_thread_id(), names().get(get_ident(), "thread"))


def track_of_task(task: Any) -> Track:
    """Return the track of an asyncio task that runs in the calling thread."""
    known = _of_tasks.get(id(task))
    if known is not None:
        return known[1]
    thread = track_of_thread()
    track = Track(thread.thread_id, thread.thread_name, task.get_name())
    _of_tasks[id(task)] = ref(task, _forget(id(task))), track
    return track


def forget_tasks() -> None:
    """Forget the tracks of tasks. Called in a forked child, where a task runs in a thread with another id."""
    global _of_tasks
    _of_tasks = {}  # not clear(): another thread of the parent may have locked it


def _forget(key: int) -> Callable[[ref[Any]], None]:
    def forget(_task: ref[Any]) -> None:
        _of_tasks.pop(key, None)

    return forget
