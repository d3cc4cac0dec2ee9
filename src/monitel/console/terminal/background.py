"""Readings in a thread: a box on a disk that hangs does not stop the keys."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

SLOW_S = 3.0  # a reading that takes longer is shown


class Background(Generic[T]):
    """Reads again and again in one thread, until it is closed.

    A reading that hangs stops further readings. It does not keep the process alive.

    Args:
        read: Returns the new state. An exception ends the thread.
        deliver: Receives each state, in the thread.
        failed: Receives the exception that has ended the thread.
        interval: Seconds between two readings.
        close: Is called in the thread at its end; in :meth:`close`, if the thread was never started.
    """

    def __init__(
        self,
        read: Callable[[], T],
        deliver: Callable[[T], object],
        failed: Callable[[Exception], object],
        interval: float,
        *,
        close: Callable[[], object] = lambda: None,
    ) -> None:
        self._read, self._deliver, self._failed, self._close = read, deliver, failed, close
        self._interval = interval
        self._stop = threading.Event()
        self._began: float | None = None
        self._thread = threading.Thread(target=self._run, name="monitel-top", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def slow_seconds(self) -> float:
        """Seconds since the begin of the reading in progress, if it takes unusually long; otherwise 0."""
        began = self._began
        seconds = 0.0 if began is None else time.monotonic() - began
        return seconds if seconds >= SLOW_S else 0.0

    def close(self, timeout: float = 0.5) -> None:
        """End the thread after the reading in progress, and wait for it for at most ``timeout`` seconds. Idempotent."""
        if self._thread.ident is None and not self._stop.is_set():
            self._close()  # the thread was never started
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._began = time.monotonic()
                state = self._read()
                self._began = None
                if not self._stop.is_set():
                    self._deliver(state)
                self._stop.wait(self._interval)
        except Exception as error:
            if not self._stop.is_set():
                self._failed(error)
        finally:
            self._began = None
            self._close()
