"""Windows for those who store them: sinks of closed ones, and the open ones, in case the process is killed.

A sink is called before any event handler can be slow or raise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from monitel.process.failures import warn_once
from monitel.stats import _window
from monitel.stats._window import forget, open_windows
from monitel.stats.definition import StatDefinition
from monitel.stats.window import Window

if TYPE_CHECKING:
    from monitel.stats.stat import Stat

    Sink = Callable[[StatDefinition, Window, bytes], object]

__all__ = ["add", "forget", "live_stats", "open_windows", "remove", "send"]

_log = logging.getLogger("monitel")
_sinks: list[Sink] = []  # changed by single operations of CPython, which need no lock


def add(sink: Sink) -> None:
    """Call ``sink(definition, window, content)`` for each window that is closed, in the thread that closes it.

    Until then, and until ``forget(serial, number)``, ``open_windows()`` includes the window, in bytes, closed windows
    first. A sink forgets a window when it has stored it, under the lock under which it calls ``open_windows()``: so
    each window is in one place at any moment. Others are forgotten when the event handlers have run.
    """
    _sinks.append(sink)


def remove(sink: Sink) -> None:
    """Stop calling a sink. Idempotent."""
    with suppress(ValueError):
        _sinks.remove(sink)


def send(definition: StatDefinition, window: Window, content: bytes) -> None:
    """Pass a closed window to the sinks."""
    for sink in tuple(_sinks):
        try:
            sink(definition, window, content)
        except Exception:
            warn_once(_log, "a sink of windows raised (further failures are not logged)", exc_info=True)


def live_stats() -> list[Stat]:
    """Return all live Stats, oldest first."""
    return [stat for stat in _window.live() if hasattr(stat, "_definition")]  # else __init__() has not ended yet
