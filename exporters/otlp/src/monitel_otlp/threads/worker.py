"""A daemon thread that takes turns."""

from __future__ import annotations

import logging
import time
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from monitel_otlp.sdk._compat import suppress_instrumentation

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("monitel.otlp")

_AFTER_FAILURE = 1.0  # seconds


class Worker:
    """Calls a function in a daemon thread: when it is woken, and when the last call has asked for another one.

    Args:
        name: The thread's name.
        turn: Called without arguments. It returns the seconds until the next turn, or None to wait until woken. An
            exception is logged once, and the next turn comes after a second.
        first: Seconds until the first turn; None waits until woken.
        ended: Called in the thread at its end.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        first: float | None = None,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        self._turn = turn
        self._ended = ended
        self._first = first
        self._failed = False
        self._starting = Lock()  # taken by the caller that starts the thread
        self._stopped = Event()
        self._bell: SimpleQueue[None] = SimpleQueue()  # a signal handler may ring it
        self._thread = Thread(target=self._run, name=name, daemon=True)

    @property
    def started(self) -> bool:
        """True once the thread runs, or has run."""
        return self._thread.ident is not None

    def start(self) -> bool:
        """Start the thread unless it runs.

        Returns:
            False where CPython refuses new threads, at the end of the process.
        """
        if not self.started and self._starting.acquire(blocking=False):  # two threads may be here at once
            try:
                self._thread.start()
            except RuntimeError:
                self._starting.release()
                return False
        return True

    def wake(self) -> None:
        """Begin the next turn now. Takes no lock."""
        self._bell.put(None)

    def stop(self) -> None:
        """End the thread after the present turn."""
        self._stopped.set()
        self.wake()

    def join(self, deadline: float) -> bool:
        """Wait for the end of the thread until a monotonic time, and return True if it has ended."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        suppress_instrumentation()
        pause = self._first
        while not self._stopped.is_set():
            self._wait(pause)
            if self._stopped.is_set():
                break
            try:
                pause = self._turn()
            except Exception:
                pause = _AFTER_FAILURE
                if not self._failed:
                    self._failed = True
                    _log.exception("a step of the delivery of telemetry failed; it goes on")
        self._ended()

    def _wait(self, pause: float | None) -> None:
        try:
            self._bell.get(timeout=None if pause is None else max(0.0, pause))
            while True:
                self._bell.get_nowait()
        except Empty:
            pass
