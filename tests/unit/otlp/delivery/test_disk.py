"""The disk thread: waiting for jobs, at each moment between their submission and their end."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.inbox import DEADLINE

from monitel_otlp.delivery.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOMENT = 0.2  # seconds; a wait that is too short ends within them, unless the machine is very busy


class _Queue:
    """A queue that holds each job back, after it was taken out, until ``released``."""

    def __init__(self) -> None:
        self.taken, self.released = Event(), Event()
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self.put, self.empty = self._jobs.put, self._jobs.empty

    def get(self) -> Any:
        job = self._jobs.get()
        self.taken.set()
        assert self.released.wait(DEADLINE)
        return job


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A disk thread without a spool."""
    disk = Disk(cast("Any", None))
    yield disk
    disk.stop()


def test_wait_includes_a_job_that_the_thread_has_just_taken(disk: Disk) -> None:
    """The job is neither in the queue nor running."""
    queue, done, seen = _Queue(), Event(), list[bool]()
    disk._jobs = cast("Any", queue)
    disk.start()

    def wait() -> None:
        disk.wait(DEADLINE)
        seen.append(done.is_set())

    disk.submit(done.set)
    assert queue.taken.wait(DEADLINE)
    waiting = Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(_MOMENT)
    queue.released.set()
    waiting.join(DEADLINE)
    assert [True] == seen


@pytest.mark.parametrize("stopped", [False, True])
def test_wait_without_a_thread_returns_at_once(disk: Disk, *, stopped: bool) -> None:
    """Before the start jobs run where they are submitted; after the end they do not run."""
    ran: list[int] = []
    if stopped:
        disk.start()
        disk.stop()
        disk._thread.join(DEADLINE)
    disk.submit(lambda: ran.append(1))
    waiting = Thread(target=disk.wait, args=[3600.0], daemon=True)
    waiting.start()
    waiting.join(DEADLINE)
    assert not waiting.is_alive()
    assert ran == ([] if stopped else [1])
