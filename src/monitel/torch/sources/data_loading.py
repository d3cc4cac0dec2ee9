"""Time that the training loop waits for batches of a DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from monitel import clock
from monitel.torch._compat import loader_iterator
from monitel.torch.guarded_stat import duration_stat
from monitel.torch.thread_activity import training_activity
from monitel.torch.training_ranges import open_range

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_INCLUDE_DATA = frozenset(("evaluation", "checkpoint.save", "checkpoint.load"))  # activities


class DataLoading:
    """Measures ``next()`` of every DataLoader iterator, including iterators that exist already.

    Stat: ``training.data.duration`` in seconds. Neither the end of an epoch nor a batch that raises is a sample, and
    the time to start the workers is not included. Range: ``training.data``, for each call of ``next()``.

    Activity: ``data``, in the training thread, for each call of ``next()``, the end of an epoch included, and for
    ``iter()``, which starts the workers. Within an evaluation or a checkpoint the time stays part of that activity.

    Args:
        window_size: Window size of the Stat in seconds.
    """

    def __init__(self, window_size: float) -> None:
        self._duration = duration_stat("training.data.duration", "Waiting for a batch", window_size)
        self._on = False

    def install(self) -> None:
        """Wrap ``__next__`` of the base class of the iterators, and ``__iter__`` of the DataLoader."""
        self._class = loader_iterator()
        self._originals = original, original_iter = self._class.__next__, DataLoader.__iter__
        self._on = True
        add, now = self._duration.add, clock.reading()

        def timed_next(iterator: Any) -> Any:
            if not self._on:
                return original(iterator)
            end_range = open_range("training.data")
            begin_ns = now()
            try:
                with _waiting():
                    batch = original(iterator)
                seconds = (now() - begin_ns) / 1e9
            finally:
                if end_range is not None:
                    end_range(None, None, None)
            add(seconds)
            return batch

        def timed_iter(loader: Any) -> Any:
            if not self._on:
                return original_iter(loader)
            with _waiting():
                return original_iter(loader)

        self._timed = timed_next, timed_iter
        self._class.__next__, DataLoader.__iter__ = self._timed

    def remove(self) -> None:
        """Restore the methods and flush. If somebody else has wrapped one since, it stays and only passes calls on."""
        self._on = False
        if self._class.__next__ is self._timed[0]:
            self._class.__next__ = self._originals[0]
        if DataLoader.__iter__ is self._timed[1]:
            DataLoader.__iter__ = self._originals[1]
        self._duration.flush()


def _waiting() -> AbstractContextManager[None]:
    return training_activity("data", part_of=_INCLUDE_DATA)
