"""SIGTERM handling: deliver first, then do what SIGTERM did before, even if the main thread is inside C or C++ code.

Python runs signal handlers in the main thread, between two bytecodes. While that thread waits inside a library (a
collective, ``init_process_group``) no handler runs, and a process that replaced SIGTERM's default action survives it.
A handler in C therefore wakes a thread, which takes over after half a second. Without the C extension
(``MONITEL_NO_EXTENSIONS=1``, no compiler, not Linux) there is only the Python handler: the process ends when the main
thread returns to Python.
"""

from __future__ import annotations

import logging
import os
import signal
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from monitel.fork import register_at_fork
from monitel.os_threads import Event, Lock, Thread, in_main_thread, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["SigtermHandler", "call_at_end", "check", "is_default"]

_log = logging.getLogger("monitel.sigterm")

_c: Any = None
if os.environ.get("MONITEL_NO_EXTENSIONS", "0") in {"", "0"}:
    with suppress(ModuleNotFoundError):  # any other ImportError is a fault that must be raised
        _c = import_module("monitel._sigterm_c")

_MAIN_THREAD_TIMEOUT = 0.5  # seconds until the main thread counts as blocked

_OTHERS_TIMEOUT = 0.5  # seconds that the functions of call_at_end() have together

_current: SigtermHandler | None = None
_others: list[Callable[[float], object]] = []


def is_default() -> bool:
    """Return whether SIGTERM has its default action: neither Python nor a C library handles or ignores it."""
    handler = _current
    if handler is not None and handler._closed:
        handler.uninstall()  # an earlier call in another thread could not finish
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and (_c is None or _c.is_default())


def check() -> None:
    """Install the C handler again where a library removed it but left the Python handler.

    This happens when a library sets a handler for some time and then restores the previous one. Cheap; callable from
    any thread.
    """
    handler = _current
    if handler is not None:
        handler.check()


def call_at_end(function: Callable[[float], object]) -> None:
    """Call a function with a time in seconds when a handler has ended on SIGTERM: all windows are closed then."""
    _others.append(function)


class SigtermHandler:
    """Delivers on SIGTERM, then does what SIGTERM did before. At most one is installed in a process.

    The handler that was installed last decides whether the process ends. While this one is the last, SIGTERM calls
    ``end``, restores the previous handler, and calls it; without a previous handler, the signal is sent again, so that
    the exit status stays the same. When a later handler calls this one, ``flush`` and the previous handler are called,
    and the process continues. A further SIGTERM during ``end`` changes nothing.

    If SIGTERM had its default action and the main thread has not run for half a second, a thread calls ``end`` and
    sends the signal again. If no thread gets the GIL, the process ends five seconds after SIGTERM without ``end``.

    A forked child gets the previous handler back. An ignored SIGTERM stays ignored. The default action does not end
    process 1 of a container (see pid_namespaces(7)): there ``flush`` is called, and the process continues.

    Args:
        end: Takes a time in seconds; within it, deliver or store everything. Called once, in the main thread inside a
            signal handler, or in the thread. Returns False if the interrupted code is delivering already: that code
            continues, and SIGTERM does what it did before when :meth:`uninstall` is called.
        flush: Takes a time in seconds; within it, deliver what can be delivered. Called in the main thread inside a
            signal handler.
        timeout: Seconds from SIGTERM to the end of ``end`` or ``flush``.

    Example:
        >>> import signal
        >>> from monitel.sigterm import SigtermHandler, is_default
        >>> handler = SigtermHandler(end=lambda timeout: None, flush=lambda timeout: None)
        >>> handler.install()
        >>> is_default()
        False
        >>> handler.uninstall()
        >>> is_default()
        True
    """

    def __init__(
        self, end: Callable[[float], object], flush: Callable[[float], object], *, timeout: float = 2.0
    ) -> None:
        self._end = end
        self._flush = flush
        self._timeout = timeout
        self._callback = self._handle  # one object: handlers are compared by identity
        self._previous: Any = None
        self._disposition: bytes | None = None  # of the signal: Python cannot represent the handlers of C libraries
        self._pid = 0
        self._claim = Lock()  # taken once, by the thread that calls end
        self._closed = False
        self._postponed = False
        self._in_thread = False
        self._lives_on = False  # whatever SIGTERM did before, it does not end the process
        self._thread: Thread | None = None

    def install(self) -> None:
        """Handle SIGTERM from now on.

        Raises:
            ValueError: Not called in the main thread.
        """
        global _current
        if not in_main_thread():
            raise ValueError("a handler for SIGTERM must be installed in the main thread")
        if _current is not None:
            _current.uninstall()
        self._previous = signal.getsignal(signal.SIGTERM)
        if self._previous is signal.SIG_IGN:
            return
        default = is_default()
        self._pid = os.getpid()
        self._lives_on = default and self._pid == 1
        self._disposition = _c.disposition() if _c is not None else None
        signal.signal(signal.SIGTERM, self._callback)
        _current = self
        if _c is not None:
            _c.begin()
        if _c is not None and default and not self._lives_on:
            self._thread = start_thread(self._watch, "monitel-sigterm")  # without it only the Python handler works
            self.check()

    def uninstall(self) -> None:
        """Restore the previous handler if this one is the last. Idempotent.

        Below a later handler, or if called outside the main thread, the Python handler stays installed, and only does
        what SIGTERM did before.
        """
        global _current
        if self._claim.locked() and not self._postponed:
            return  # called by end, after which the previous handler is restored
        self._closed = True
        if _current is self and in_main_thread():
            _current = None
            if self._decides():
                self._restore()
            if self._thread is not None:
                _c.stop()
                self._thread.join(2 * _MAIN_THREAD_TIMEOUT)
        if self._postponed:
            self._postponed = False
            os.kill(os.getpid(), signal.SIGTERM)

    def check(self) -> None:
        """Install the C handler again where a library removed it but left the Python handler."""
        if self._thread is not None and self._pid == os.getpid():
            _c.chain(self._callback)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM in Python: in the main thread, between two bytecodes."""
        decides = self._decides() and not self._lives_on
        if self._pid == os.getpid() and not self._closed:
            if not decides:
                self._live_on()
                _guarded(self._flush, self._timeout, Exception)
            elif self._claim.acquire(blocking=False):
                self._postponed = self._end_all(self._timeout) is False
                if self._postponed:
                    return
            else:
                if self._in_thread and self._thread is not None:
                    self._thread.join(self._timeout)  # it ends the process
                return  # a further signal: the main thread is still in end
        if decides:
            self._closed = True
            self._restore()
        if callable(self._previous):
            self._previous(number, frame)
        elif decides:
            os.kill(os.getpid(), number)

    def _watch(self) -> None:
        """Handle SIGTERM in the thread, if the main thread does not do so in time."""
        while _c.wait():
            Event().wait(_MAIN_THREAD_TIMEOUT)
            if not self._decides():
                self._live_on()
            elif self._claim.acquire(blocking=False):
                self._in_thread = True
                if not self._closed:
                    self._end_all(self._timeout - _MAIN_THREAD_TIMEOUT)
                _c.restore(self._disposition)
                os.kill(os.getpid(), signal.SIGTERM)

    def _end_all(self, timeout: float) -> object:
        ended = _guarded(self._end, timeout, BaseException)
        if ended is not False and _others:
            thread = start_thread(lambda: [each(_OTHERS_TIMEOUT) for each in _others], "monitel-sigterm-others")
            if thread is not None:  # it may need a lock that the interrupted code holds
                thread.join(_OTHERS_TIMEOUT)
        return ended

    def _live_on(self) -> None:
        """Keep the process alive: a handler above this one made the C handler take this handler for the last one."""
        if self._thread is not None:
            _c.live_on()

    def _decides(self) -> bool:
        """Return whether this handler was installed last."""
        if _c is not None:
            return bool(_c.decides(self._callback))
        return signal.getsignal(signal.SIGTERM) is self._callback

    def _restore(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)
        if self._disposition is not None:
            _c.restore(self._disposition)


def _guarded(function: Callable[[float], object], timeout: float, errors: type[BaseException]) -> object:
    try:
        return function(timeout)
    except errors:  # SIGTERM does what it did before, whatever happens here
        _log.exception("the delivery of telemetry on SIGTERM failed")
        return None


def _in_child() -> None:
    """Restore the previous handler in a forked child."""
    global _current
    handler, _current = _current, None
    if handler is not None and handler._decides():
        handler._restore()


register_at_fork(after_in_child=_in_child)
