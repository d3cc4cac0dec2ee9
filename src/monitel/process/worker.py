"""A daemon thread that calls a function repeatedly, and releases the GIL so that the training loop goes first."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from monitel.process.os_threads import Empty, Event, Lock, SimpleQueue, Thread

_log = logging.getLogger("monitel")

_AFTER_FAILURE = 1.0  # seconds


class Worker:
    """Calls a function in a daemon thread, when it is woken and after the seconds that the last call has returned.

    An exception is logged once. ``begun`` and ``ended`` are called in the thread.
    """

    def __init__(
        self,
        name: str,
        run_once: Callable[[], float | None],
        first: float | None = None,
        begun: Callable[[], object] = lambda: None,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        self._begun = begun
        self._run_once = run_once
        self._ended = ended
        self._first = first
        self._failed = False
        self._starting = Lock()  # acquired by the caller that starts the thread
        self._stopped = Event()
        self._wakes: SimpleQueue[None] = SimpleQueue()  # a signal handler may put into it
        self._thread = Thread(target=self._run, name=name, daemon=True)

    @property
    def started(self) -> bool:
        """True if the thread runs, or has run."""
        return self._thread.ident is not None

    def start(self) -> bool:
        """Start the thread unless it has been started; False if CPython refuses it, as at the end of the process."""
        if not self.started and self._starting.acquire(blocking=False):  # two threads may call this at once
            try:
                self._thread.start()
            except RuntimeError:
                self._starting.release()
                return False
        return True

    def wake(self) -> None:
        """Call the function now. A signal handler may call it, and may interrupt it."""
        if self._wakes.empty():  # else a function that hangs would let the queue grow
            self._wakes.put(None)

    def run_now(self) -> None:
        """Call the function now; in the caller's thread, if CPython has refused another."""
        if self.started:
            self.wake()
        else:
            self._run_once()

    def stop(self) -> None:
        """End the thread after the current call."""
        self._stopped.set()
        self.wake()

    def join(self, deadline: float) -> bool:
        """Wait until the thread has ended or a monotonic deadline has passed; return True if it has ended."""
        if self.started:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._begun()
        pause = self._first
        while not self._stopped.is_set():
            self._wait(pause)
            if self._stopped.is_set():
                break
            try:
                pause = self._run_once()
            except Exception:
                pause = _AFTER_FAILURE
                if not self._failed:
                    self._failed = True
                    name = self._thread.name
                    _log.exception("an error in the thread %s; it continues (further errors are not logged)", name)
        self._ended()

    def _wait(self, pause: float | None) -> None:
        try:
            self._wakes.get(timeout=None if pause is None else max(0.0, pause))
            while True:
                self._wakes.get_nowait()
        except Empty:
            pass


_never = Event()

_SWITCH_INTERVAL = 0.0005  # seconds; by default a busy thread holds the GIL for 0.005
_SLICE = 0.0005  # seconds; a training loop of 1 ms then waits for less than 0.5 ms


def yield_gil() -> None:
    """Release the GIL to another thread that waits for it. A pause of zero may take the GIL back too early."""
    _never.wait(1e-6)  # no sleep(): gevent would run other greenlets in it


class Pace:
    """Releases the GIL after each slice of work."""

    def __init__(self) -> None:
        self._end = 0.0

    def pause(self) -> None:
        """Release the GIL if the slice of work has ended. Call it several times per slice."""
        if time.monotonic() >= self._end:
            yield_gil()
            self._end = time.monotonic() + _SLICE


@contextmanager
def low_latency() -> Iterator[None]:
    """Disable garbage collection, and limit busy threads to less than 1 ms of the GIL at a time, for the exit."""
    before, collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(min(before, _SWITCH_INTERVAL))
    gc.disable()
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        if collects:
            gc.enable()
