"""The thread that runs code of the application: event handlers, and sources of wait counters. It may hang."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from monitel.os_threads import Condition, current_thread, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.os_threads import Thread

_log = logging.getLogger("monitel.otlp")

PATIENCE_S = 1.0  # for one call
_MOST_ABANDONED = 3


class Job:
    """A function of the application that is called, or will be.

    Args:
        noun: Names it in log messages.
        function: Called without arguments.

    Attributes:
        is_over: The call has ended.
    """

    def __init__(self, noun: str, function: Callable[[], object]) -> None:
        self.noun = noun
        self.function = function
        self.is_over = False


class ApplicationThread:
    """Runs one job after the other in a separate thread.

    A job that takes more than a second while another one waits is abandoned together with its thread, and a warning is
    logged once for each noun. At most three threads are abandoned at a time; then jobs wait.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._jobs: list[Job] = []
        self._current: Job | None = None
        self._began_s = 0.0
        self._thread: Thread | None = None
        self._abandoned = 0
        self._reported: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Start the thread. Idempotent."""
        with self._changed:
            if self._thread is None:
                self._start()

    def submit(self, job: Job) -> Job:
        """Run a job after those that wait. If CPython refuses threads, it is run here."""
        with self._changed:
            self._replace_if_hung()
            if self._thread is not None:
                self._jobs.append(job)
                self._changed.notify_all()
                return job
        self._run_job(job)
        return job

    def wait(self, job: Job, timeout: float) -> bool:
        """Wait until a job is over, for so many seconds at most; return True if it is over."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not job.is_over:
                self._replace_if_hung()
                if (left := deadline - time.monotonic()) <= 0:
                    break
                self._changed.wait(min(left, 0.1))
            return job.is_over

    def stop(self) -> None:
        """End the thread after the current job."""
        with self._changed:
            self._jobs.clear()
            self._thread = None
            self._changed.notify_all()

    def _replace_if_hung(self) -> None:
        job = self._current
        if job is None or not self._jobs or time.monotonic() - self._began_s <= PATIENCE_S:
            return
        if self._abandoned >= _MOST_ABANDONED:
            return
        self._abandoned += 1
        message = "%s takes more than %g s; telemetry continues without it"
        if self._is_first("hangs", job.noun):  # a logging handler of the application may hang, too
            self._jobs.insert(0, Job("a logging handler", lambda: _log.warning(message, job.noun, PATIENCE_S)))
        self._start()

    def _start(self) -> None:
        self._current = None
        self._thread = start_thread(self._run, "monitel-otlp-application")

    def _run(self) -> None:
        own = current_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._thread is not own)
                if self._thread is not own:
                    return
                job = self._current = self._jobs.pop(0)
                self._began_s = time.monotonic()
            self._run_job(job)
            with self._changed:
                if self._thread is not own:
                    self._abandoned -= 1
                    return
                self._current = None

    def _run_job(self, job: Job) -> None:
        try:
            job.function()
        except BaseException:  # even a SystemExit must not stop the delivery
            if self._is_first("failed", job.noun):
                _log.warning("%s failed; telemetry continues", job.noun, exc_info=True)
        with self._changed:
            job.is_over = True
            self._changed.notify_all()

    def _is_first(self, what: str, noun: str) -> bool:
        first = (what, noun) not in self._reported
        self._reported.add((what, noun))
        return first
