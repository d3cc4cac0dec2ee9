"""The thread that runs code of the application: event handlers, and sources of wait counters. It may hang."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from monitel.process.failures import warn_once
from monitel.process.os_threads import Condition, Thread, current_thread, start_thread

_log = logging.getLogger("monitel.otlp")

PATIENCE_S = 1.0  # for one call


class ApplicationThread:
    """Calls one function after the other in a separate thread.

    A call that takes more than a second while another one waits is abandoned together with its thread, and a warning is
    logged once for each noun. It is not begun again before it has ended, so there are few such threads.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._jobs: list[tuple[str, Callable[[], object]]] = []  # that wait
        self._running: dict[Thread, tuple[str, float]] = {}  # noun and begin, in abandoned threads, too
        self._thread: Thread | None = None

    def start(self) -> None:
        with self._changed:
            self._thread = start_thread(self._run, "monitel-otlp-application")

    def call(self, noun: str, function: Callable[[], object]) -> None:
        """Call a function after those that wait, unless its last call has not ended; log messages name it by the noun.

        If CPython refuses threads, it is called here.
        """
        with self._changed:
            self._replace_if_hung()
            if noun in {each for each, _ in (*self._jobs, *self._running.values())}:
                return
            if self._thread is not None:
                self._jobs.append((noun, function))
                self._changed.notify_all()
                return
        self._run_job(noun, function)

    def wait(self, timeout: float) -> None:
        """Wait until every call has ended or is abandoned, for so many seconds at most."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._replace_if_hung()
            while (self._jobs or self._thread in self._running) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, 0.1))
                self._replace_if_hung()

    def stop(self) -> None:
        """End the thread after the current call."""
        with self._changed:
            self._jobs.clear()
            self._thread = None
            self._changed.notify_all()

    def _replace_if_hung(self) -> None:
        noun, began_s = self._running.get(self._thread, ("", 0.0))  # type: ignore[arg-type]  # None is not in it
        if noun and self._jobs and time.monotonic() - began_s > PATIENCE_S:
            message = "%s takes more than %g s; telemetry continues without it"
            warn = partial(warn_once, _log, message, noun, PATIENCE_S, key=noun)
            self._jobs.insert(0, ("a logging handler", warn))  # one of the application may hang, too
            self.start()

    def _run(self) -> None:
        own = current_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._thread is not own)
                if self._thread is not own:
                    return
                noun, function = self._jobs.pop(0)
                self._running[own] = noun, time.monotonic()
            self._run_job(noun, function)
            with self._changed:
                del self._running[own]
                self._changed.notify_all()

    @staticmethod
    def _run_job(noun: str, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException:  # even a SystemExit must not stop the delivery
            warn_once(_log, "%s failed; telemetry continues", noun, key=noun, exc_info=True)
