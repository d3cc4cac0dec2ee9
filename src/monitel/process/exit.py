"""End of the process, including that of children of multiprocessing, which skip ``atexit``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from monitel.process.fork import register_at_fork
from monitel.process.os_threads import in_main_thread

__all__ = ["EXIT_TIMEOUT", "LEAST", "exit_timeout", "finalize", "finalize_with_children", "imports_main", "is_child"]
__all__ += ["without_interruption"]

EXIT_TIMEOUT = 2.0  # seconds by which all of telemetry together may delay the end of a process
LEAST = 0.1  # seconds that each part of telemetry has even if the others have spent EXIT_TIMEOUT

_spent = 0.0  # seconds of EXIT_TIMEOUT
_in_children: list[tuple[Callable[[], object], int]] = []
_registered = False


@contextmanager
def exit_timeout() -> Iterator[float]:
    """Measure a part of the end of this process, which may take what the earlier parts have left of EXIT_TIMEOUT.

    The time of the application's functions between two parts does not count. A further Ctrl-C has no effect.
    """
    global _spent
    began = time.monotonic()
    try:
        with without_interruption(raises=False):
            yield max(LEAST, EXIT_TIMEOUT - LEAST - _spent)  # the interpreter ends in the rest
    finally:
        _spent += time.monotonic() - began


@contextmanager
def without_interruption(*, raises: bool = True) -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block, for EXIT_TIMEOUT at most, unless the program handles SIGINT.

    KeyboardInterrupt is raised there, unless one is being handled, or not at all.
    """
    import signal  # late: few programs need it

    held: list[int] = []
    end = time.monotonic() + EXIT_TIMEOUT  # code of the application may hang in the block

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)
        if time.monotonic() > end:
            signal.default_int_handler(number, frame)

    if in_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is hold:  # else code in the block has its own
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if held and raises and not isinstance(sys.exc_info()[1], KeyboardInterrupt):
        raise KeyboardInterrupt


def is_child() -> bool:
    """Return True in a child of multiprocessing."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def imports_main() -> bool:
    """Return True while multiprocessing imports the main module in a child that it spawns, or in its server."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and getattr(processes.current_process(), "_inheriting", False)


def finalize(function: Callable[[], object], priority: int) -> None:
    """Call ``function`` when multiprocessing ends this process, if it has been imported; its children skip ``atexit``.

    The highest priority is called first: Stats are flushed at 100, and a ``multiprocessing.Queue`` closes at 10.
    """
    util = sys.modules.get("multiprocessing.util")  # not imported here: a child of multiprocessing has it
    if util is not None:
        util.Finalize(None, function, exitpriority=priority)


def finalize_with_children(function: Callable[[], object], priority: int) -> None:
    """Call :func:`finalize` in this process and in each child of multiprocessing that is forked from now on.

    A child empties its list of finalizers and then runs what is registered for after its fork.
    """
    _in_children.append((function, priority))
    if _registered:
        finalize(function, priority)
    else:
        _register()


def _register() -> None:
    """Register with multiprocessing, once it is imported: before each fork is early enough."""
    global _registered
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _registered:
        _registered = True
        util.register_after_fork(_finalize_all, _finalize_all)
        _finalize_all()


def _finalize_all(_registered_object: object = None) -> None:
    for function, priority in _in_children:
        finalize(function, priority)


register_at_fork(before=_register)
