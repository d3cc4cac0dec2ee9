"""The open windows of all Stats at one moment, for exporters that keep them in case the process is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.stats import _window
from monitel.stats.window_bytes import OpenWindow, Snapshot, decode

if TYPE_CHECKING:
    from monitel.stats.stat import Stat

__all__ = ["OpenWindow", "Snapshot", "decode", "forget", "live_stats", "open_windows"]


def open_windows() -> tuple[bytes, tuple[int, ...]]:
    """Return the open windows of live Stats at this moment, without closing them.

    Windows that are closed and not forgotten come first, oldest first: see :func:`forget`. Takes some microseconds for
    hundreds of Stats, and runs no Python code meanwhile, except with a test's clock or without the C extension.

    Returns:
        Bytes for :func:`decode`, and the serial number of the Stat of each window.

    Example:
        >>> import monitel
        >>> from monitel.stats.open_windows import decode, open_windows
        >>> loss = monitel.Stat("loss", [monitel.MEAN], 60.0)
        >>> loss.add(0.5)
        >>> windows, serials = open_windows()
        >>> [window.snapshot.sum for window in decode(windows) if window.serial == serials[-1]]
        [0.5]
    """
    return _window.open_windows()


def forget(serial: int, number: int) -> None:
    """Remove a closed window from the result of :func:`open_windows`. Idempotent.

    A sink calls it when it has stored the window (:mod:`monitel.stats.window_sinks`), under the lock under which it
    calls :func:`open_windows`: then each window is in one place at any moment. A window that no sink has forgotten is
    forgotten when its event handlers have run.

    Args:
        serial: Number of the Stat.
        number: Number of the window; :func:`monitel.stats.window_bytes.key` returns both.
    """
    _window.forget(serial, number)


def live_stats() -> list[Stat]:
    """Return all live Stats, oldest first.

    Example:
        >>> import monitel
        >>> from monitel.stats.open_windows import live_stats
        >>> loss = monitel.Stat("loss", [monitel.MEAN], 60.0)
        >>> live_stats()[-1] is loss
        True
    """
    return [stat for stat in _window.live() if hasattr(stat, "_definition")]  # else __init__() has not ended yet
