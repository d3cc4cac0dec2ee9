"""What runs one range at a time, so that its ranges nest: a thread, or an asyncio task in it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable


class Track:
    """Where a range runs; one object for each thread and each asyncio task.

    Attributes:
        thread_id: The operating system's number of the thread.
        thread_name: Its name, as of its first range.
        task_name: The name of the asyncio task; None for what runs in no task.
    """

    __slots__ = ("task_name", "thread_id", "thread_name")

    def __init__(self, thread_id: int, thread_name: str, task_name: str | None = None) -> None:
        self.thread_id = thread_id
        self.thread_name = thread_name
        self.task_name = task_name

    def __str__(self) -> str:
        return self.thread_name if self.task_name is None else f"{self.task_name} ({self.thread_name})"


_of_tasks: dict[int, tuple[ref[Any], Track]] = {}  # by the task's id, while it lives


def track_of_thread() -> Track:
    """A track for the thread that calls; the caller keeps it."""
    ident = threading.get_ident()
    # not current_thread(), which leaves a dummy behind for a thread that threading did not start
    names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
    return Track(threading.get_native_id(), names[0] if names else "thread")


def track_of_task(task: Any) -> Track:
    """The track of an asyncio task, which runs in the thread that calls."""
    known = _of_tasks.get(id(task))
    if known is not None:
        return known[1]
    thread = track_of_thread()
    track = Track(thread.thread_id, thread.thread_name, task.get_name())
    _of_tasks[id(task)] = ref(task, _forget(id(task))), track
    return track


def _forget(key: int) -> Callable[[ref[Any]], None]:
    def forget(_task: ref[Any]) -> None:
        _of_tasks.pop(key, None)

    return forget
