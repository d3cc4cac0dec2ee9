"""Time that the training loop waits for batches of a DataLoader."""

from __future__ import annotations

from typing import Any

from monitel import clock
from monitel.torch._compat import loader_iterator
from monitel.torch.guarded_stat import duration_stat
from monitel.torch.training_ranges import open_range


class DataLoading:
    """Measures ``next()`` of every DataLoader iterator, including iterators that exist already.

    Stat: ``training.data.duration`` in seconds. Neither the end of an epoch nor a batch that raises is a sample, and
    the time to start the workers is not included. Range: ``training.data``, for each call of ``next()``.

    Args:
        window_size: Window size of the Stat in seconds.
    """

    def __init__(self, window_size: float) -> None:
        self._duration = duration_stat("training.data.duration", "Waiting for a batch", window_size)
        self._on = False

    def install(self) -> None:
        """Wrap ``__next__`` of the base class of the iterators."""
        self._class = loader_iterator()
        self._original = original = self._class.__next__
        self._on = True
        add, now = self._duration.add, clock.reading()

        def timed_next(iterator: Any) -> Any:
            if not self._on:
                return original(iterator)
            end_range = open_range("training.data")
            begin_ns = now()
            try:
                batch = original(iterator)
                seconds = (now() - begin_ns) / 1e9
            finally:
                if end_range is not None:
                    end_range(None, None, None)
            add(seconds)
            return batch

        self._timed = self._class.__next__ = timed_next

    def remove(self) -> None:
        """Restore the method and flush. If somebody else has wrapped it since, it stays and only passes calls on."""
        self._on = False
        if self._class.__next__ is self._timed:
            self._class.__next__ = self._original
        self._duration.flush()
