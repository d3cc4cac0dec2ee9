"""SIGTERM handling: deliver first, then do what SIGTERM did before, even if the main thread is inside C or C++ code.

Python runs signal handlers in the main thread, between two bytecodes: while a collective waits, none runs. Even then
Python writes the signal's number to its wake-up descriptor, where a thread reads it and takes over after half a second.
A forked child shares that descriptor, and only Linux names the sender; elsewhere there is no such thread.
"""

from __future__ import annotations

import _socket
import ctypes
import logging
import os
import signal
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from monitel.process.crash_stacks import keep_high
from monitel.process.exit import EXIT_TIMEOUT, LEAST, exit_timeout
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import Event, Lock, Thread, call_in_main_thread, in_main_thread, local, start_thread

__all__ = ["SigtermHandler", "call_at_end", "check", "is_default"]

_log = logging.getLogger("monitel.process.sigterm")

# Both keep the GIL.
_getsig: Any = ctypes.pythonapi.PyOS_getsig  # the handler in C, in any thread
_getsig.restype = ctypes.c_void_p
_sigaction: Any = ctypes.PyDLL(None).sigaction if hasattr(signal, "pthread_kill") else lambda *_: None

_CREDENTIALS = struct.Struct("iii")  # process, user and group
_STOP = b"\0"
_MAIN_THREAD_TIMEOUT = 0.5  # seconds until the main thread counts as blocked

_current: SigtermHandler | None = None
_others: list[Callable[[float], object]] = []


def is_default(*, replaces: bool = True) -> bool:
    """Return whether SIGTERM has its default action: neither Python nor a C library handles or ignores it.

    The caller ``replaces`` a handler that is replaceable: it is uninstalled.
    """
    handler = _current
    if handler is not None and (handler._closed or (handler._replaceable and replaces)):
        handler.uninstall()  # again, if an earlier call in another thread could not finish
    return not _getsig(signal.SIGTERM)


def check() -> None:
    """Take the wake-up descriptor again, in the main thread, where an event loop had taken it and has released it."""
    if _current is not None:
        call_in_main_thread(_listen_again)


def _listen_again() -> None:
    if _current is not None:
        _current._listen()


def call_at_end(function: Callable[[float], object]) -> None:
    """Call a function with a time in seconds when a handler has ended on SIGTERM: all windows are closed then."""
    _others.append(function)


class SigtermHandler:
    """Delivers on SIGTERM, then does what SIGTERM did before. At most one is installed in a process.

    The handler that was installed last decides whether the process ends. If it is this one, ``end`` is called, then the
    previous handler; without one, the signal is sent again, so that the exit status stays the same. When a later
    handler calls this one, ``flush`` and the previous handler are called, and the process continues. So it does as
    process 1 of a container, which the default action does not end. ``end`` returns False if the interrupted code is
    delivering already: then SIGTERM does what it did before when :meth:`uninstall` is called. One that is
    ``replaceable`` gives way to a pipeline, which asks :func:`is_default`. It flushes the Stats and ends the run:
    the first one serves all exporters without a pipeline.
    """

    def __init__(
        self,
        end: Callable[[float], object],
        flush: Callable[[float], object],
        *,
        timeout: float = EXIT_TIMEOUT,
        replaceable: bool = False,
    ) -> None:
        self._end = end
        self._flush = flush
        self._timeout = timeout
        self._replaceable = replaceable
        self._callback = self._handle  # one object: handlers are compared by identity
        self._previous: Any = None
        self._disposition = ctypes.create_string_buffer(1024)  # Python cannot represent the handlers of C libraries
        self._ours: int | None = None  # Python's own handler in C
        self._pid = 0
        self._claim = Lock()  # taken once, by the thread that calls end
        self._closed = False
        self._postponed = False
        self._in_thread = False
        self._lives_on = False  # whatever SIGTERM did before, it does not end the process
        self._thread: Thread | None = None
        self._sockets: tuple[_socket.socket, _socket.socket] | None = None  # those of gevent wait for greenlets

    def install(self) -> None:
        """Handle SIGTERM from now on, unless it is ignored."""
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
        _sigaction(signal.SIGTERM, None, self._disposition)
        signal.signal(signal.SIGTERM, self._callback)
        self._ours = _getsig(signal.SIGTERM)
        _current = self
        if default and not self._lives_on and hasattr(_socket, "SO_PASSCRED"):
            self._watch()

    def uninstall(self) -> None:
        """Restore the previous handler if this one is the last. Idempotent.

        Below a later handler, and outside the main thread, it stays, and only does what SIGTERM did before.
        """
        global _current
        if self._claim.locked() and not self._postponed:
            return  # called by end, after which the previous handler is restored
        self._closed = True
        if _current is self and in_main_thread():
            _current = None
            if self._decides():
                self._restore()
            self._unwatch()
        if self._postponed:
            self._postponed = False
            os.kill(os.getpid(), signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM in Python: in the main thread, between two bytecodes."""
        decides = self._decides() and not self._lives_on
        if self._pid == os.getpid() and not self._closed:
            if not decides:
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
        """Start the thread that handles SIGTERM if the main thread does not do so in time."""
        try:
            pair = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        except OSError:  # no descriptor is left: Python's handler alone remains
            return
        reading, writing = (_socket.socket(fileno=keep_high(each.detach())) for each in pair)
        reading.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
        writing.setblocking(False)
        self._sockets = reading, writing
        self._thread = start_thread(lambda: self._read(reading), "monitel-sigterm")
        self._listen()

    def _unwatch(self) -> None:
        """End the thread; in a forked child, forget that of the parent."""
        if self._sockets is not None:
            reading, writing = self._sockets
            self._listen(-1)
            self._sockets = None
            if self._thread is not None and self._pid == os.getpid():
                with suppress(OSError):
                    writing.send(_STOP)
                self._thread.join(2 * _MAIN_THREAD_TIMEOUT)
            for each in (writing, reading):
                with suppress(OSError):  # the application has closed it
                    each.close()

    def _listen(self, descriptor: int | None = None) -> None:
        """Set the wake-up descriptor, unless an event loop of the application has set another one."""
        if self._sockets is not None:
            own = self._sockets[1].fileno()
            with suppress(ValueError, OSError):  # the application has closed one of them
                now = signal.set_wakeup_fd(own if descriptor is None else descriptor, warn_on_full_buffer=False)
                if now not in {-1, own}:
                    signal.set_wakeup_fd(now)

    def _read(self, reading: _socket.socket) -> None:
        """Handle SIGTERM in the thread, if the main thread does not do so in time."""
        while True:
            try:
                number, details, *_ = reading.recvmsg(1, _socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:  # the application has closed it
                return
            if _CREDENTIALS.unpack(details[0][2])[0] != self._pid:
                continue  # a forked child, in which no code of monitel has run
            if number == _STOP:
                return
            if number[0] != signal.SIGTERM:
                continue
            Event().wait(_MAIN_THREAD_TIMEOUT)
            if self._decides() and self._claim.acquire(blocking=False):
                self._in_thread = True
                if not self._closed:
                    self._end_all(self._timeout - _MAIN_THREAD_TIMEOUT)
                _sigaction(signal.SIGTERM, self._disposition, None)
                os.kill(os.getpid(), signal.SIGTERM)

    def _end_all(self, timeout: float) -> object:
        deadline = time.monotonic() + timeout
        with exit_timeout():
            ended = _guarded(self._end, timeout, BaseException)
            left = max(LEAST, deadline - time.monotonic())
            if ended is not False and _others:
                thread = start_thread(lambda: [each(left) for each in _others], "monitel-sigterm-others")
                if thread is not None:  # it may need a lock that the interrupted code holds
                    thread.join(left)
        return ended

    def _decides(self) -> bool:
        """Return whether this handler was installed last, in Python and in C."""
        return signal.getsignal(signal.SIGTERM) is self._callback and _getsig(signal.SIGTERM) == self._ours

    def _restore(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)
        _sigaction(signal.SIGTERM, self._disposition, None)


def _guarded(function: Callable[[float], object], timeout: float, errors: type[BaseException]) -> object:
    try:
        return function(timeout)
    except errors:  # SIGTERM does what it did before, whatever happens here
        _log.exception("the delivery of telemetry on SIGTERM failed")
        return None


_mask = local()


def _block() -> None:
    """Block SIGTERM in this thread: a child would forget it before it has the previous handler."""
    if _current is not None:
        _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock() -> None:
    if (before := _mask.__dict__.pop("before", None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_child() -> None:
    """Restore the previous handler in a forked child."""
    global _current
    handler, _current = _current, None
    if handler is not None:
        handler._unwatch()
        if handler._decides():
            handler._restore()
    _unblock()


register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_in_child)
