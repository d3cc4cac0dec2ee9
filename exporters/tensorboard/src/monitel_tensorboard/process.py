"""Forks and the exit of the process, for writers."""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util  # noqa: F401  its exit function is called after ours only if it is registered first
import time
import weakref
from typing import TYPE_CHECKING, TypeVar

import monitel
from monitel.process.exit import finalize_with_children
from monitel.process.fork import register_at_fork
from monitel.process.run_events import end_if_due
from monitel.process.sigterm import call_at_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_tensorboard.writer import SummaryWriter

T = TypeVar("T")

logger = logging.getLogger("monitel_tensorboard")

#: Seconds that all writers of a process have together at exit.
EXIT_TIMEOUT = 5.0


_closables: weakref.WeakSet[SummaryWriter] = weakref.WeakSet()
_last_calls: list[weakref.WeakMethod[Callable[[], object]]] = []


def after_fork(method: Callable[[], None]) -> None:
    """Call a bound method in every forked child, as long as its object is alive."""
    weak_method = weakref.WeakMethod(method)

    def renew() -> None:
        if (bound := weak_method()) is not None:
            bound()

    register_at_fork(after_in_child=renew)


def close_at_exit(closable: SummaryWriter) -> None:
    """Close ``closable``, if it is still alive, when this process or a forked child of it ends."""
    _closables.add(closable)


def call_at_exit(method: Callable[[], object]) -> None:
    """Call a bound method at exit, before the Stats are flushed, as long as its object is alive."""
    _last_calls[:] = [each for each in _last_calls if each() is not None]
    _last_calls.append(weakref.WeakMethod(method))


def guarded(call: Callable[[], T]) -> T | None:
    """Call a function of monitel, and log an exception of an event handler, which no caller could catch."""
    try:
        return call()
    except Exception:
        logger.warning("an event handler failed", exc_info=True)
        return None


def _call_last() -> None:
    for weak_method in _last_calls:
        if (bound := weak_method()) is not None:
            guarded(bound)


def _flush_all(timeout: float) -> None:
    """Write what is queued on SIGTERM, when all windows have been closed."""
    _call_last()
    deadline = time.monotonic() + timeout
    for closable in list(_closables):
        closable.flush(deadline - time.monotonic())


def _close_all() -> None:
    """Flush the Stats, and close all objects; monitel's flush at exit was registered earlier and runs later."""
    if not _closables:
        return
    end_if_due()
    _call_last()
    guarded(monitel.flush)
    deadline = time.monotonic() + EXIT_TIMEOUT
    for closable in list(_closables):
        closable.close(timeout=deadline - time.monotonic())


atexit.register(_close_all)
finalize_with_children(_close_all, priority=0)
call_at_end(_flush_all)
