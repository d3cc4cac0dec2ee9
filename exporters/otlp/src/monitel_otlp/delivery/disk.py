"""The thread that reads and writes the spool. If the file system hangs, only this thread stops."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from monitel.os_threads import Event, SimpleQueue, Thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.spool.spool import Spool

_log = logging.getLogger("monitel.otlp")

_PATIENCE = 1.0  # seconds after which the file system is treated as hanging

_HANGS = "the file system of the spool does not respond"

_Result = TypeVar("_Result")


class _Job(Generic[_Result]):
    def __init__(self, run: Callable[[], _Result]) -> None:
        self._run = run
        self._done = Event()
        self._result: _Result | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._run()
        except BaseException as error:
            self._error = error
        self._done.set()

    def result(self, timeout: float) -> _Result:
        if not self._done.wait(timeout):
            raise TimeoutError(_HANGS)
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # the job has finished


class Disk:
    """Runs jobs on the spool, one after the other, in a separate thread.

    Args:
        spool: The spool. It is used only in this thread.
    """

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._busy_since: float | None = None
        self._thread = Thread(target=self._run, name="monitel-otlp-disk", daemon=True)

    def start(self) -> None:
        """Start the thread. If CPython refuses it, at the end of the process, jobs run in the caller's thread."""
        try:
            self._thread.start()
        except RuntimeError:
            _log.debug("no disk thread at the end of the process")

    @property
    def hangs(self) -> bool:
        """True while a job has been running for more than a second."""
        since = self._busy_since
        return since is not None and time.monotonic() - since > _PATIENCE

    def submit(self, job: Callable[[], object]) -> None:
        """Run a job later. Its exception is logged."""
        self._put(_Job(lambda: _logged(job)))

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
        waiting = _Job(job)
        self._put(waiting)
        return waiting.result(max(0.0, timeout))

    def wait(self, timeout: float) -> None:
        """Wait until all jobs that were submitted so far have finished, for so many seconds at most."""
        if self._thread.is_alive():  # else there is none: jobs ran where they were submitted, or will not run
            with suppress(TimeoutError):
                self.call(lambda: None, timeout)

    def stop(self) -> None:
        """End the thread after all submitted jobs."""
        self._jobs.put(None)

    def _put(self, job: _Job[_Result]) -> None:
        if self._thread.ident is None:
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
