"""The thread that reads and writes the spool: a file system that hangs stops nothing else."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.spool.spool import Spool

_log = logging.getLogger("monitel.otlp")

_PATIENCE = 1.0  # seconds that a job may take before the file system counts as hanging

_HANGS = "the file system of the spool does not answer"

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
        return self._result  # type: ignore[return-value]  # of a job that has run


class Disk:
    """Runs jobs on the spool, one after the other, in a thread that nobody has to wait for.

    Args:
        spool: Used in this thread only.
    """

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._busy_since: float | None = None
        self._thread = Thread(target=self._run, name="monitel-otlp-disk", daemon=True)

    def start(self) -> None:
        """Start the thread; where CPython refuses, at the end of the process, jobs run in the caller's."""
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
        """Have a job run; its exception is logged."""
        self._put(_Job(lambda: _logged(job)))

    def call(self, job: Callable[[], _Result], timeout: float = _PATIENCE) -> _Result:
        """Have a job run, and return its result.

        Args:
            job: Called in the disk thread.
            timeout: Seconds at most.

        Raises:
            TimeoutError: It has not run by then, and may still run later; or the file system hangs already.
        """
        if self.hangs:
            raise TimeoutError(_HANGS)
        waiting = _Job(job)
        self._put(waiting)
        return waiting.result(max(0.0, timeout))

    def wait(self, timeout: float) -> None:
        """Wait until the jobs that were submitted have run, for so many seconds at most."""
        if self._busy_since is not None or not self._jobs.empty():
            with suppress(TimeoutError):
                self.call(lambda: None, timeout)

    def stop(self) -> None:
        """End the thread after the jobs that were submitted."""
        self._jobs.put(None)

    def _put(self, job: _Job[_Result]) -> None:
        if self._thread.ident is None:
            job.run()
        else:
            self._jobs.put(job)  # type: ignore[arg-type]  # whatever it returns

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._busy_since = time.monotonic()
            job.run()
            self._busy_since = None


def _logged(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception:
        _log.exception("a job on the spool failed; telemetry goes on")
