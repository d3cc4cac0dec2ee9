"""Requests of the training loop for batches: from DataLoaders, and from iterators that :func:`batches` wraps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import wraps
from operator import length_hint
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload, runtime_checkable

from torch import is_grad_enabled
from torch.utils.data import DataLoader

from monitel.fork import register_at_fork
from monitel.profiler.ranges import recorder
from monitel.torch._compat import NO_GRAPH, current_graph, loader_iterator
from monitel.torch.boundaries.shared_hooks import SharedHooks
from monitel.torch.training_ranges import open_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.torch.stages.cycle import TrainingThread

_Batch = TypeVar("_Batch")
_running: BatchLoading | None = None


@runtime_checkable
class BatchListener(Protocol):
    """Receives requests for batches, in the thread that waits for them."""

    def batch_began(self) -> Any:
        """A request begins; what this returns is passed to batch_ended()."""

    def batch_ended(self, began: Any) -> None:
        """A request has ended.

        Args:
            began: The result of batch_began().
        """


class BatchLoading(SharedHooks[BatchListener]):
    """Reports each ``next()`` of a DataLoader's iterator, including iterators that exist already.

    The reports go to the thread's cycle, and to those users that are listeners. ``iter(loader)``, which starts the
    workers, is a request too. A request within another one is part of it.

    Range: ``training.data``, for each ``next()``.

    Args:
        thread: State of each thread.
    """

    def __init__(self, thread: TrainingThread) -> None:
        super().__init__(thread, BatchListener)

    def _install(self) -> None:
        """Wrap ``__next__`` of the base class of the iterators, and ``__iter__`` of the DataLoader."""
        global _running
        self._class = loader_iterator()
        self._graph = current_graph()
        self._originals = original, original_iter = self._class.__next__, DataLoader.__iter__

        @wraps(original)
        def timed_next(iterator: Any) -> Any:
            return self.request(original, iterator) if self.users else original(iterator)

        @wraps(original_iter)
        def timed_iter(loader: Any) -> Any:
            return self.request(original_iter, loader, opens=True) if self.users else original_iter(loader)

        self._timed = timed_next, timed_iter
        self._class.__next__, DataLoader.__iter__ = self._timed
        _running = self

    def _remove(self) -> None:
        """Restore the methods. If somebody else has wrapped one since, it stays and only passes calls on."""
        global _running
        if self._class.__next__ is self._timed[0]:
            self._class.__next__ = self._originals[0]
        if DataLoader.__iter__ is self._timed[1]:
            DataLoader.__iter__ = self._originals[1]
        if _running is self:
            _running = None

    def request(self, get: Callable[[Any], Any], source: Any, *, opens: bool = False) -> Any:
        """Call ``get(source)`` as a request, and return its result.

        Args:
            get: Returns the next batch of an iterator, or opens an iterator.
            source: The iterator, or what is opened.
            opens: Whether an iterator is opened.
        """
        thread = self._thread
        if thread.requests:
            return get(source)
        began: list[tuple[BatchListener, Any]] = []
        end_range, iterator, received = None, None if opens else source, None
        cycle = thread.cycle if self._graph() == NO_GRAPH else None
        try:
            thread.requests = True
            if recorder.active and not opens:
                end_range = open_range("training.data")
            if cycle is not None:
                cycle.batch_began(self._now())
            for each in self._listeners:
                began.append((each, each.batch_began()))  # noqa: PERF401  an interrupt leaves what has begun
            result = get(source)
            if opens:
                iterator, received = result, 0
            else:
                received = 1
        finally:
            thread.requests = False
            for each, token in began:
                each.batch_ended(token)
            if cycle is not None:
                cycle.batch_ended(self._now(), iterator, received, is_grad_enabled())
            if end_range is not None:
                end_range(None, None, None)
        return result

    def reset(self) -> None:
        """Forget the request in progress. For a forked child."""
        self._thread.requests = False


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

    def __length_hint__(self) -> int:
        return length_hint(self._iterable)


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
    try:
        iter_method = type(iterable).__iter__
    except AttributeError:
        iter_method = getattr(type(iterable), "__getitem__", None)  # type: ignore[assignment]
    if iter_method is None:
        raise TypeError(f"batches() takes an iterable, got {type(iterable).__qualname__}: {iterable!r:.80}")
    return BatchIterator(iterable) if isinstance(iterable, Iterator) else Batches(iterable)


def _forget_requests() -> None:
    if _running is not None:
        _running.reset()


register_at_fork(after_in_child=_forget_requests)
