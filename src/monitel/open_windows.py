"""The open windows of all Stats at one moment, for exporters that keep them in case the process is killed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monitel import _window
from monitel.snapshot import Snapshot
from monitel.window_bytes import OpenWindow, decode

if TYPE_CHECKING:
    from monitel.stats import Stat

__all__ = ["OpenWindow", "Snapshot", "decode", "live_stats", "open_windows"]


def open_windows(most: int = sys.maxsize) -> tuple[bytes, tuple[int, ...]]:
    """Return the open windows of live Stats at this moment, without closing them.

    Windows that are closed, and are being passed to the event handlers, come first. Takes some microseconds for
    hundreds of Stats, and runs no Python code meanwhile, except with a test's clock or without the C extension.

    Args:
        most: The largest number of live Stats to read, the oldest ones first; all by default.

    Returns:
        Bytes for :func:`decode`, and the serial number of the Stat of each window.

    Example:
        >>> import monitel
        >>> from monitel.open_windows import decode, open_windows
        >>> loss = monitel.Stat("loss", [monitel.MEAN], 60.0)
        >>> loss.add(0.5)
        >>> windows, serials = open_windows()
        >>> [window.snapshot.sum for window in decode(windows) if window.serial == serials[-1]]
        [0.5]
    """
    return _window.open_windows(most)


def live_stats() -> list[Stat]:
    """Return all live Stats, oldest first.

    Example:
        >>> import monitel
        >>> from monitel.open_windows import live_stats
        >>> loss = monitel.Stat("loss", [monitel.MEAN], 60.0)
        >>> live_stats()[-1] is loss
        True
    """
    return [stat for stat in _window.live() if hasattr(stat, "_definition")]  # else __init__() has not ended yet
