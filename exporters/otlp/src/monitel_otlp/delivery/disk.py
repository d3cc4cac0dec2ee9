"""The thread that reads and writes the spool. If the file system hangs, only this thread stops."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from monitel.os_threads import SimpleQueue, Thread, start_thread
from monitel_otlp.threads.deadline import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.spool.spool import Spool

_log = logging.getLogger("monitel.otlp")

_PATIENCE = 1.0  # seconds after which the file system is treated as hanging

_HANGS = "the file system of the spool does not respond"

_Result = TypeVar("_Result")


class Disk:
    """Runs jobs on the spool, one after the other, in a separate thread.

    Args:
        spool: The spool. It is used only in this thread.
    """

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._jobs: SimpleQueue[Job[object] | None] = SimpleQueue()
        self._busy_since: float | None = None
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread. If CPython refuses it, at the end of the process, jobs run in the caller's thread."""
        self._thread = start_thread(self._run, "monitel-otlp-disk")

    @property
    def hangs(self) -> bool:
        """True while a job has been running for more than a second."""
        since = self._busy_since
        return since is not None and time.monotonic() - since > _PATIENCE

    def submit(self, job: Callable[[], object]) -> None:
        """Run a job later. Its exception is logged."""
        self._put(Job(lambda: _logged(job)))

    def call(self, job: Callable[[], _Result], timeout: float = _PATIENCE) -> _Result:
        """Run a job, and return its result.

        Args:
            job: Called in the disk thread.
            timeout: Seconds at most.

        Raises:
            TimeoutError: The job has not finished, and may still run later, or the file system hangs already.
        """
        if self.hangs:
            raise TimeoutError(_HANGS)
        waiting = Job(job)
        self._put(waiting)
        return waiting.result(max(0.0, timeout), _HANGS)

    def wait(self, timeout: float) -> None:
        """Wait until all jobs that were submitted so far have finished, for so many seconds at most."""
        thread = self._thread  # without it jobs ran where they were submitted; after its end none will run
        if thread is not None and thread.is_alive():
            with suppress(TimeoutError):
                self.call(lambda: None, timeout)

    def stop(self) -> None:
        """End the thread after all submitted jobs."""
        self._jobs.put(None)

    def _put(self, job: Job[_Result]) -> None:
        if self._thread is None:
            job.run()
        else:
            self._jobs.put(job)  # type: ignore[arg-type]  # for any type of result

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._busy_since = time.monotonic()
            job.run()
            self._busy_since = None


def _logged(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception:
        _log.exception("an operation on the spool failed; telemetry continues")
