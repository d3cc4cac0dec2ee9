"""Functions that run before each flush, so that events which a source has queued are part of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from monitel.process.failures import call, call_each
from monitel.process.fork import register_at_fork

_functions: list[Callable[[], object]] = []  # changed by single operations of CPython, which need no lock


def register(function: Callable[[], object]) -> None:
    """Call a function before each flush, in the thread that flushes; a forked child does not call it.

    It logs events that a source has queued, and waits for nothing. Its exception is raised when all Stats are flushed.
    """
    _functions.append(function)


def unregister(function: Callable[[], object]) -> None:
    """Stop calling a function. Idempotent."""
    with suppress(ValueError):
        _functions.remove(function)


def run() -> None:
    """Call the functions in the order of their registration, even if one raises; then raise the first exception."""
    call_each(call, tuple(_functions))


register_at_fork(after_in_child=_functions.clear)
