"""Threads of the operating system, and their locks, conditions, events and queues, under gevent and eventlet, too.

These libraries replace the functions of ``threading``, before or after monitel is imported. A greenlet that waits in C
stops the whole process, and their locks wake only greenlets of the same thread. monitel therefore uses a copy of
``threading`` with the interpreter's own functions.
"""

from __future__ import annotations

import builtins
import gc
import os
import sys
import threading
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from queue import Empty, SimpleQueue
    from threading import Condition, Event, Lock, RLock, Thread, current_thread, get_ident, local
    from types import FrameType
else:
    from _queue import Empty, SimpleQueue

__all__ = ["Condition", "Empty", "Event", "Lock", "RLock", "SimpleQueue", "Thread", "current_thread"]
__all__ += ["call_in_main_thread", "call_in_time", "frames", "get_ident", "in_main_thread", "local"]
__all__ += ["main_thread_pulse", "start_thread", "thread_names"]

_Result = TypeVar("_Result")


def _copy(name: str, **imported: Any) -> Any:
    """Return a new instance of a module of Python, which imports the given modules instead of those in use."""
    spec: Any = find_spec(name)
    module: Any = module_from_spec(spec)
    module.__builtins__ = {
        **vars(builtins),
        "__import__": lambda name, *options: imported.get(name) or builtins.__import__(name, *options),
    }
    spec.loader.exec_module(module)
    return module


def _copy_of_threading() -> Any:
    primitives = _copy("_thread")
    set_sentinel = getattr(primitives, "_set_sentinel", None)  # until CPython 3.12
    # For the thread that runs here it must not be called again: a join of that thread would wait for the earlier one.
    primitives._set_sentinel = primitives.allocate_lock
    module = _copy("threading", _thread=primitives)
    module._set_sentinel = set_sentinel
    module.ExceptHookArgs = threading.ExceptHookArgs  # the only type that this takes:
    module.excepthook = lambda arguments: threading.excepthook(arguments)  # noqa: PLW0108  the current one
    return module


_threading = _copy_of_threading()


def in_main_thread() -> bool:
    """Return True in the main thread, whose handlers of signals Python calls; under gevent in each of its greenlets."""
    if threading.get_ident() == get_ident():
        return threading.current_thread() is threading.main_thread()
    return bool(_threading.current_thread() is _threading.main_thread())


def thread_names() -> dict[int, str]:
    """Return the names of all threads that run, those of ``threading`` too, by identity. Waits for no lock."""
    known: Any = {**_threading._active, **threading._active}  # type: ignore[attr-defined]  # enumerate() takes a lock
    return {ident: thread.name for ident, thread in known.items()}


@contextmanager
def frames() -> Iterator[dict[int, FrameType]]:
    """Give the innermost frame of each thread, by identity; the stacks are walked in the block.

    CPython 3.11 makes the objects of frames then, and may collect garbage in the middle. If a finalizer lets another
    thread run, the object is that of a frame which has ended, and the process crashes; or it hangs forever with a lock
    that threads need (python/cpython#106883).
    """
    collects = sys.version_info[:2] == (3, 11) and gc.isenabled()
    if collects:
        gc.disable()
    try:
        found = sys._current_frames()
        found[get_ident()] = sys._getframe(2)  # of the caller: this generator has none while it waits
        yield found
    finally:
        if collects:
            gc.enable()


_scheduled: list[Callable[[], object]] = []
_run_scheduled: Any = None  # kept, because C calls it
_running_in = 0  # the process whose main thread makes such calls: one that was forked meanwhile does not


def call_in_main_thread(function: Callable[[], object]) -> None:
    """Call a function in the main thread when it executes Python code next, between two bytecodes.

    If the main thread is making such calls, the next call of this function calls it: on a busy machine, threads that
    schedule again and again would keep the main thread there forever.
    """
    global _run_scheduled
    import ctypes  # late: it is rarely needed

    if _run_scheduled is None:

        def run(_argument: None) -> int:
            global _running_in
            _running_in = os.getpid()
            try:
                for _ in range(len(_scheduled)):
                    _scheduled.pop(0)()
            finally:
                _running_in = 0
            return 0

        _run_scheduled = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(run)
    if function not in _scheduled:
        _scheduled.append(function)
    if _running_in != os.getpid():
        ctypes.pythonapi.Py_AddPendingCall(_run_scheduled, None)  # if too many calls are pending, the next one calls it


_pulse = 0


def main_thread_pulse() -> int:
    """Return a number that changes between two calls if the main thread executes Python code between them."""
    call_in_main_thread(_count_pulse)
    return _pulse


def _count_pulse() -> None:
    global _pulse
    _pulse += 1


if not TYPE_CHECKING:
    Condition, Event, Lock, RLock = _threading.Condition, _threading.Event, _threading.Lock, _threading.RLock
    current_thread, get_ident, local = _threading.current_thread, _threading.get_ident, _threading.local

    class Thread(_threading.Thread):
        """A thread of the system, which ``threading`` shows as well."""

        def run(self) -> None:
            """Run the target."""
            seen = threading._DummyThread()  # by current_thread() and enumerate(), thus in logs and debuggers
            seen.name = self.name
            try:
                super().run()
            finally:
                threading._active.pop(seen.ident, None)


def start_thread(function: Callable[[], object], name: str) -> Thread | None:
    """Start a daemon thread; return None if CPython refuses it, as at the end of the process."""
    thread = Thread(target=function, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def call_in_time(function: Callable[[], _Result], timeout: float) -> _Result:
    """Call a function that a disk may delay forever, in a thread; raise a TimeoutError after so many seconds."""
    results: list[_Result | Exception] = [TimeoutError(f"the disk has not answered within {timeout:g} s")]

    def call() -> None:
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    if (thread := start_thread(call, "monitel-disk-call")) is None:  # the process ends
        return function()
    thread.join(timeout)
    if isinstance(result := results[-1], Exception):
        raise result
    return result
