"""Calls that may hang, in another thread: the caller waits until a deadline, and Ctrl-C ends the wait at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monitel.os_threads import Event, SimpleQueue, Thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Result = TypeVar("_Result")


def call_within(seconds: float, job: Callable[[], _Result]) -> _Result:
    """Return what a function returns.

    Args:
        seconds: The limit of time.
        job: The function. If it does not end, its thread remains, and does not keep the process alive.

    Raises:
        TimeoutError: The function has not ended in time.
        Exception: What it has raised.
    """
    (result,) = each_within(seconds, lambda: iter([job()]))
    return result


def each_within(seconds: float, make: Callable[[], Iterator[_Result]]) -> Iterator[_Result]:
    """Yield the items of an iterator.

    Args:
        seconds: The limit of time for each item.
        make: Returns the iterator.

    Raises:
        TimeoutError: An item has not come in time.
        Exception: What the iterator has raised.
    """
    wanted: SimpleQueue[_Item[_Result] | None] = SimpleQueue()
    Thread(target=_serve, args=(make, wanted), name="monitel-otlp-deadline", daemon=True).start()
    try:
        while True:
            item: _Item[_Result] = _Item()
            wanted.put(item)
            if not item.done.wait(seconds):
                raise TimeoutError(f"no answer within {seconds:g} s")
            if item.error is not None:
                raise item.error
            if item.is_end:
                return
            yield item.result
    finally:
        wanted.put(None)


class _Item(Generic[_Result]):
    """A place for the next item, which the other thread fills."""

    def __init__(self) -> None:
        self.done = Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_end = False


def _serve(make: Callable[[], Iterator[Any]], wanted: SimpleQueue[_Item[Any] | None]) -> None:
    """Fill one item after the other."""
    items: Iterator[Any] | None = None
    while (item := wanted.get()) is not None:
        try:
            items = make() if items is None else items
            item.result = next(items)
        except StopIteration:
            item.is_end = True
        except BaseException as error:
            item.error = error
        item.done.set()
