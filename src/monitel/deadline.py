"""Calls that may hang, in another thread: the caller waits until a deadline, and Ctrl-C ends the wait at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monitel.os_threads import Event, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Result = TypeVar("_Result")

_END: Any = object()


class Job(Generic[_Result]):
    """A call, and a place for its result or exception, for which another thread waits.

    Args:
        function: Called by :meth:`run`.
    """

    def __init__(self, function: Callable[[], _Result]) -> None:
        self._function = function
        self._done = Event()
        self._result: _Result | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Call the function. Never raises."""
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error
        self._done.set()

    def result(self, seconds: float) -> _Result:
        """Return what the function returns.

        Args:
            seconds: The limit of time.

        Raises:
            TimeoutError: The function has not ended in time.
            Exception: What it has raised.
        """
        if not self._done.wait(seconds):
            raise TimeoutError(f"no answer within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # the function has returned


def call_within(seconds: float, function: Callable[[], _Result]) -> _Result:
    """Return what a function returns, as :meth:`Job.result` does. If it hangs, so does its daemon thread."""
    job = Job(function)
    start_thread(job.run, "monitel-otlp-deadline")
    return job.result(seconds)


def each_within(seconds: float, make: Callable[[], Iterator[_Result]]) -> Iterator[_Result]:
    """Yield the items of the iterator that a function makes, each within so many seconds; see :func:`call_within`."""
    items = call_within(seconds, make)
    while (item := call_within(seconds, lambda: next(items, _END))) is not _END:
        yield item
