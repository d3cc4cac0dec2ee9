"""Windows for those who store them: sinks of closed ones, and the open ones, in case the process is killed.

A sink is called before any event handler can be slow or raise.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from monitel.stats import _window

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.stats.stat import Stat
    from monitel.stats.window import StatDefinition, Window

    Sink = Callable[[StatDefinition, Window, bytes], object]

__all__ = ["add", "forget", "live_stats", "open_windows", "remove", "replace", "send"]

_log = logging.getLogger("monitel")
_sinks: list[Sink] = []  # changed by single operations of CPython, which need no lock
_warned = False


def add(sink: Sink) -> None:
    """Call ``sink(definition, window, content)`` for each window that is closed from now on.

    It is called in the thread that closes the window, without a lock, and before the event handlers; for a window of
    samples on a device, when their values are known. Until then, and until the sink calls :func:`forget`,
    :func:`open_windows` includes the window. A forked child keeps the sinks.

    Args:
        sink: Receives the definition of the Stat, the window, and its bytes (:mod:`monitel.stats.window_bytes`). An
            exception is logged once, and never raised into the caller.

    Example:
        >>> import monitel
        >>> from monitel.stats import window_sinks
        >>> from monitel.stats.window_bytes import key
        >>> def store(definition, window, content):
        ...     print(definition.name, window.sum, key(content)[1])
        >>> window_sinks.add(store)
        >>> loss = monitel.Stat("loss", [monitel.MEAN], 60.0)
        >>> loss.add(0.5)
        >>> loss.flush()
        loss 0.5 1
        >>> window_sinks.remove(store)
    """
    _sinks.append(sink)


def remove(sink: Sink) -> None:
    """Stop calling a sink. Idempotent."""
    with suppress(ValueError):
        _sinks.remove(sink)


def replace(sink: Sink | None, following: Sink) -> None:
    """Add a sink, in the place of another one if that is there: each window goes to one of them."""
    _sinks[:] = [following if each == sink else each for each in _sinks] if sink in _sinks else [*_sinks, following]


def send(definition: StatDefinition, window: Window, content: bytes) -> None:
    """Pass a closed window to the sinks."""
    global _warned
    for sink in tuple(_sinks):
        try:
            sink(definition, window, content)
        except Exception:
            if not _warned:
                _warned = True
                _log.warning("a sink of windows raised (further failures are not logged)", exc_info=True)


def open_windows() -> tuple[bytes, tuple[int, ...]]:
    """Return the open windows of live Stats at this moment, without closing them.

    Windows that are closed and not forgotten come first, oldest first: see :func:`forget`. Takes some microseconds for
    hundreds of Stats, and runs no Python code meanwhile, except with a test's clock or without the C extension.

    Returns:
        Bytes for :func:`monitel.stats.window_bytes.decode`, and the serial number of the Stat of each window.

    Example:
        >>> import monitel
        >>> from monitel.stats.window_bytes import decode
        >>> from monitel.stats.window_sinks import open_windows
        >>> loss = monitel.Stat("loss", [monitel.MEAN], 60.0)
        >>> loss.add(0.5)
        >>> windows, serials = open_windows()
        >>> [window.snapshot.sum for window in decode(windows) if window.serial == serials[-1]]
        [0.5]
    """
    return _window.open_windows()


def forget(serial: int, number: int) -> None:
    """Remove a closed window from the result of :func:`open_windows`. Idempotent.

    A sink calls it when it has stored the window, under the lock under which it calls :func:`open_windows`: then each
    window is in one place at any moment. A window that no sink has forgotten is forgotten when its event handlers have
    run.

    Args:
        serial: Number of the Stat.
        number: Number of the window; :func:`monitel.stats.window_bytes.key` returns both.
    """
    _window.forget(serial, number)


def live_stats() -> list[Stat]:
    """Return all live Stats, oldest first.

    Example:
        >>> import monitel
        >>> from monitel.stats.window_sinks import live_stats
        >>> loss = monitel.Stat("loss", [monitel.MEAN], 60.0)
        >>> live_stats()[-1] is loss
        True
    """
    return [stat for stat in _window.live() if hasattr(stat, "_definition")]  # else __init__() has not ended yet
