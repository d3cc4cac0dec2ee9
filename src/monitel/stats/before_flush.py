"""Functions that run before each flush, so that events which a source has queued are part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.process.failures import call, call_each
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock

if TYPE_CHECKING:
    from collections.abc import Callable

_lock = RLock()  # held briefly while the tuple is replaced
_functions: tuple[Callable[[], object], ...] = ()


def register(function: Callable[[], object]) -> None:
    """Call a function before each flush, in the thread that flushes; a forked child does not call it.

    It logs events that a source has queued, and waits for nothing. Its exception is raised when all Stats are flushed.
    """
    global _functions
    with _lock:
        _functions = (*_functions, function)


def unregister(function: Callable[[], object]) -> None:
    """Stop calling a function. Idempotent."""
    global _functions
    with _lock:
        _functions = tuple(other for other in _functions if other != function)


def run() -> None:
    """Call the functions in the order of their registration, even if one raises; then raise the first exception."""
    if _functions:
        call_each(call, _functions)


def _forget() -> None:
    global _lock, _functions
    _lock, _functions = RLock(), ()


register_at_fork(after_in_child=_forget)
