"""What the life of a process means for writers: forks, and its end."""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from multiprocessing import util
from typing import TYPE_CHECKING, Protocol, TypeVar

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

logger = logging.getLogger("monitel_tensorboard")

#: Seconds that all writers of a process have together when it ends.
EXIT_TIMEOUT = 5.0


class Closable(Protocol):
    """What can be closed within a time."""

    def close(self, timeout: float) -> bool:
        """Close within ``timeout`` seconds."""


_closables: weakref.WeakSet[Closable] = weakref.WeakSet()


def after_fork(method: Callable[[], None]) -> None:
    """Call a bound method in every forked child, as long as its object lives."""
    weak_method = weakref.WeakMethod(method)

    def renew() -> None:
        if (bound := weak_method()) is not None:
            bound()

    os.register_at_fork(after_in_child=renew)


def close_at_exit(closable: Closable) -> None:
    """Close ``closable``, if it still lives, when this process or a forked child of it ends."""
    _closables.add(closable)


def guarded(call: Callable[[], T]) -> T | None:
    """Call into monitel where nobody could take the exception of somebody's handler: it is logged."""
    try:
        return call()
    except Exception:
        logger.warning("an event handler failed", exc_info=True)
        return None


def _close_all() -> None:
    """Flush and close what still lives: monitel's own hook at exit was registered earlier and runs later."""
    if not _closables:
        return
    guarded(monitel.flush)
    deadline = time.monotonic() + EXIT_TIMEOUT
    for closable in list(_closables):
        closable.close(timeout=deadline - time.monotonic())


def _close_at_end_of_multiprocessing_child(_: object = None) -> None:
    util.Finalize(None, _close_all, exitpriority=0)


# Children of multiprocessing end without atexit, and forget at their start which finalizers there were.
atexit.register(_close_all)
util.register_after_fork(_close_all, _close_at_end_of_multiprocessing_child)
_close_at_end_of_multiprocessing_child()
