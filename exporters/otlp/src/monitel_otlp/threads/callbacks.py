"""The thread that calls code of the application (event handlers, sources of wait counters), which may hang."""

from __future__ import annotations

import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from monitel.os_threads import Condition, Thread, current_thread, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("monitel.otlp")

CALLBACK_TIMEOUT = 1.0  # seconds that a callback may take
_SHORT_TIMEOUT = 0.1  # seconds that a callback may take while an urgent one waits
_MOST_ABANDONED = 3
_TICK = 0.005  # seconds


class Callback:
    """A function of the application that the callback thread calls.

    Args:
        noun: Names it in log messages.
        function: Called without arguments.
        often: Call it in each round, not only in those that send the metrics of the process.

    Attributes:
        often: The argument.
        queued: The function is being called, or will be.
        returned: The last call has ended.
    """

    def __init__(self, noun: str, function: Callable[[], object], *, often: bool = False) -> None:
        self.often = often
        self.queued = False
        self.returned = False
        self._noun = noun
        self._function = function
        self._failed = False
        self._hung = False

    def run(self) -> None:
        """Call the function. An exception is logged once."""
        self.returned = False
        try:
            self._function()
        except BaseException:  # even a SystemExit must not stop the delivery
            if not self._failed:
                self._failed = True
                _log.warning("%s failed; telemetry continues", self._noun, exc_info=True)
        self.returned = True

    def warning(self, timeout: float) -> Callback | None:
        """Return a callback that logs, once, that this one hangs. A logging handler of the application may hang too."""
        if self._hung:
            return None
        self._hung = True
        message = "%s takes more than %g s; it is skipped until it returns"
        warning = Callback("a logging handler", partial(_log.warning, message, self._noun, timeout))
        warning._hung = True  # a warning that hangs is not logged
        return warning


class CallbackThread:
    """Calls functions of the application in a separate thread.

    A call that takes more than a second is abandoned together with its thread, and a new thread continues. The callback
    is skipped until the call returns, and a warning is logged once. At most three threads are abandoned at a time; then
    only callbacks whose last call has returned are called. The thread starts with the first callback.
    """

    def __init__(self) -> None:
        self._callbacks: list[Callback] = []
        self._queue: deque[Callback] = deque()
        self._changed = Condition()
        self._abandoned = 0
        self._thread: Thread | None = None
        self._current: Callback | None = None
        self._began = 0.0  # monotonic start of the current call

    def add(self, callback: Callback) -> None:
        """Add a callback that :meth:`refresh` calls."""
        with self._changed:
            self._callbacks.append(callback)
            if self._thread is None:
                self._start()

    def refresh(
        self, timeout: float, meanwhile: Callable[[], object] = lambda: None, *, often: bool | None = None
    ) -> None:
        """Call the callbacks, and wait for them.

        Args:
            timeout: Seconds at most.
            meanwhile: Called repeatedly during the wait. The wait ends when it returns True.
            often: Call only those that are called often, or only the others. By default all are called.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            for callback in self._callbacks:
                if not callback.queued and often in {None, callback.often}:
                    callback.queued = True
                    self._queue.append(callback)
            self._changed.notify_all()
        while not meanwhile() and (left := deadline - time.monotonic()) > 0:
            with self._changed:
                if not self._can_progress():
                    break
                self._changed.wait(min(left, _TICK))

    def call(self, callback: Callback, timeout: float) -> bool:
        """Call one callback once, before all others, and wait for it.

        Args:
            callback: The callback. It is called even if three threads are abandoned; then one more may be.
            timeout: Seconds at most.

        Returns:
            False if CPython has refused the thread for the call, which then has not begun.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            callback.queued = callback.returned = True
            self._queue.appendleft(callback)
            self._changed.notify_all()
            while callback.queued and (left := deadline - time.monotonic()) > 0:
                if callback in self._queue and not self._can_progress(_SHORT_TIMEOUT, urgent=True):
                    self._queue.remove(callback)
                    callback.queued = False
                    return False
                self._changed.wait(min(left, _TICK))
        return True

    def wait(self, callback: Callback, timeout: float) -> bool:
        """Wait until a callback has been called, for so many seconds at most; return True if it has."""
        with self._changed:
            return self._changed.wait_for(lambda: not callback.queued, timeout)

    def restart_timeout(self) -> None:
        """Restart the timeout of the current call. A call of many steps does this in its thread."""
        if current_thread() is self._thread:
            self._began = time.monotonic()

    def stop(self) -> None:
        """End the thread after the current call."""
        with self._changed:
            self._callbacks.clear()
            self._thread = None
            self._changed.notify_all()

    def _can_progress(self, timeout: float = CALLBACK_TIMEOUT, *, urgent: bool = False) -> bool:
        """Return True if a call can be expected to end. A call that takes too long is abandoned, with its thread."""
        if self._thread is None:
            return False
        if self._current is None:
            return self._next() is not None
        if time.monotonic() - self._began <= timeout:
            return True
        if self._abandoned >= _MOST_ABANDONED and not urgent:
            return False
        self._abandoned += 1
        if (warning := self._current.warning(timeout)) is not None:
            warning.queued = warning.returned = True
            self._queue.append(warning)
        self._start()
        return self._thread is not None

    def _start(self) -> None:
        """Start the thread."""
        self._current = None
        self._thread = start_thread(self._run, "monitel-otlp-callbacks")

    def _next(self) -> Callback | None:
        """Return the next callback."""
        return next((each for each in self._queue if each.returned or self._abandoned < _MOST_ABANDONED), None)

    def _run(self) -> None:
        own = current_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() or self._thread is not own)
                callback = self._next()
                if self._thread is not own or callback is None:
                    return
                self._current = callback
                self._queue.remove(callback)
                self._began = time.monotonic()
            callback.run()
            with self._changed:
                callback.queued = False
                self._changed.notify_all()
                if self._thread is not own:
                    self._abandoned -= 1
                    return
                self._current = None
