"""How long the loop waits for each batch of a DataLoader."""

from __future__ import annotations

from typing import Any

from monitel import clock
from monitel.torch._compat import loader_iterator
from monitel.torch.work import duration_stat


class Loading:
    """Times ``next()`` of every DataLoader's iterator, of those under way too.

    Stat: ``training.data.duration``, in seconds.
    The end of an epoch, and a batch that fails, are no samples. To start the workers is not in it.

    Args:
        window_size: Of the Stat, seconds.
    """

    def __init__(self, window_size: float) -> None:
        self._duration = duration_stat("training.data.duration", "Waiting for a batch", window_size)
        self._on = False

    def install(self) -> None:
        """Wrap the method of the class."""
        self._class = loader_iterator()
        self._original = original = self._class.__next__
        self._on = True
        add, now = self._duration.add, clock.reading()

        def timed_next(iterator: Any) -> Any:
            begin_ns = now()
            batch = original(iterator)
            if self._on:
                add((now() - begin_ns) / 1e9)
            return batch

        self._timed = self._class.__next__ = timed_next

    def remove(self) -> None:
        """Put the method back, unless somebody has wrapped ours: then it only passes on."""
        self._on = False
        if self._class.__next__ is self._timed:
            self._class.__next__ = self._original
        self._duration.flush()
