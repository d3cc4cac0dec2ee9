"""Requests of the training loop for batches: from DataLoaders, and from iterators that :func:`batches` wraps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar, overload

from torch import is_grad_enabled
from torch.utils.data import DataLoader

from monitel import clock
from monitel.profiler import ranges
from monitel.torch.cycle import TrainingThread
from monitel.torch.hooks import NO_GRAPH, Patch, Source, current_graph, find
from monitel.torch.recording import open_range, training_activity

_Batch = TypeVar("_Batch")
_INCLUDE_DATA = frozenset(("data", "evaluation", "checkpoint.save", "checkpoint.load"))  # activities
_running: BatchLoading | None = None


class BatchLoading(Source):
    """Reports each ``next()`` of a DataLoader's iterator to the thread's cycle, also of iterators that exist already.

    ``iter(loader)``, which starts the workers, is a request too. A request within another one is part of it.
    """

    def __init__(self, thread: TrainingThread) -> None:
        self.activity: Callable[[], AbstractContextManager[object]] = nullcontext
        self._thread = thread
        self._now = clock.monotonic_ns

    def install(self) -> None:
        global _running
        self._graph = current_graph()
        self.hook(Patch(find("torch.utils.data.dataloader", "_BaseDataLoaderIter"), "__next__", self.request))
        self.hook(Patch(DataLoader, "__iter__", lambda get, loader: self.request(get, loader, opens=True)))
        _running = self

    def remove(self) -> None:
        global _running
        self.unhook()
        _running = None

    def request(self, get: Callable[[Any], Any], source: Any, *, opens: bool = False) -> Any:
        """Call ``get(source)`` as a request."""
        thread = self._thread
        if thread.requests:
            return get(source)
        end_range, iterator, received = None, None if opens else source, None
        cycle = thread.cycle if self._graph() == NO_GRAPH else None
        try:
            thread.requests = True
            if ranges.active and not opens:
                end_range = open_range("training.data")
            if cycle is not None:
                cycle.batch_began(self._now())
            with self.activity():
                result = get(source)
            if opens:
                iterator, received = result, 0
            else:
                received = 1
        finally:
            thread.requests = False
            if end_range is not None:  # before the range of forward begins
                end_range(None, None, None)
            if cycle is not None:
                cycle.batch_ended(self._now(), iterator, received, is_grad_enabled())
        return result

    def reset(self) -> None:
        self._thread.requests = False


class DataActivity(Source):
    """Counts requests for batches as the activity ``data``, in the training thread."""

    def __init__(self, loading: BatchLoading) -> None:
        self.needs = (loading,)
        self._loading = loading

    def install(self) -> None:
        self._loading.activity = partial(training_activity, "data", part_of=_INCLUDE_DATA)

    def remove(self) -> None:
        self._loading.activity = nullcontext


class Batches(Generic[_Batch]):
    """The result of :func:`batches`: an iterable with the length of the original, if that has one.

    Opening an iterator is a request too, as it is for a DataLoader.
    """

    def __init__(self, iterable: Iterable[_Batch]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[_Batch]:
        running = _running
        iterator: Iterator[_Batch] = (
            _opened(self._iterable) if running is None else running.request(_opened, self._iterable, opens=True)
        )
        return iterator

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # raises TypeError if it has no length

    def __bool__(self) -> bool:
        return bool(self._iterable)


class BatchIterator(Batches[_Batch]):
    """The result of :func:`batches` for an iterator: ``next()`` returns the next batch."""

    _iterable: Iterator[_Batch]

    def __iter__(self) -> Iterator[_Batch]:
        opened = super().__iter__()
        return self if isinstance(opened, BatchIterator) and opened._iterable is self._iterable else opened

    def __next__(self) -> _Batch:
        running = _running
        batch: _Batch = next(self._iterable) if running is None else running.request(_next, self)
        return batch


def _opened(iterable: Iterable[_Batch]) -> BatchIterator[_Batch]:
    return BatchIterator(iter(iterable))


def _next(iterator: BatchIterator[_Batch]) -> _Batch:
    return next(iterator._iterable)


@overload
def batches(iterable: Iterator[_Batch]) -> BatchIterator[_Batch]: ...


@overload
def batches(iterable: Iterable[_Batch]) -> Batches[_Batch]: ...


def batches(iterable: Iterable[_Batch]) -> Batches[_Batch]:
    """Return an iterable over batches whose ``next()`` is measured like that of a DataLoader.

    Use it for batches that no DataLoader makes: waiting for them is the stage and the activity ``data``. While
    :func:`monitel.torch.instrument` is not in effect it only passes batches on. A DataLoader inside is not counted
    twice. It does not change the batches, their order, or exceptions. Requests of other threads do not count: wrap the
    iterator that the training thread asks.

    Args:
        iterable: Anything that ``for`` accepts. For an iterator, such as a generator, the result is an iterator.

    Raises:
        TypeError: Not iterable.

    Example:
        >>> import monitel.torch
        >>> sum(monitel.torch.batches([1, 2, 3]))
        6
        >>> next(monitel.torch.batches(iter("abc")))
        'a'
    """
    kind: Any = type(iterable)
    if getattr(kind, "__iter__", None) is None and not hasattr(kind, "__getitem__"):
        raise TypeError(f"batches() takes an iterable, got {kind.__qualname__}: {iterable!r:.80}")
    return BatchIterator(iterable) if isinstance(iterable, Iterator) else Batches(iterable)
