"""Timer: the duration of a block or a function, in seconds, as a sample of a Stat."""

from __future__ import annotations

from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from monitel import clock
from monitel.compiling import compiling

if TYPE_CHECKING:
    from collections.abc import Callable

_Function = TypeVar("_Function", bound="Callable[..., Any]")


class _Sink(Protocol):
    def add(self, v: float) -> None: ...


class Timer:
    """The timer that :meth:`monitel.Stat.time` returns; for one ``with`` at a time, or as a decorator for any calls."""

    __slots__ = ("_sink", "_start_ns")

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink
        self._start_ns: int | None = None

    def __enter__(self) -> None:
        if not compiling():
            self._start_ns = clock.monotonic_ns()

    def __exit__(self, *_exception: object) -> None:
        if not compiling() and self._start_ns is not None:
            self._sink.add((clock.monotonic_ns() - self._start_ns) / 1e9)
            self._start_ns = None

    def __call__(self, function: _Function) -> _Function:
        """Time every call of ``function``; a coroutine function is timed from its first await to its result."""
        sink = self._sink
        if iscoroutinefunction(function):

            @wraps(function)
            async def timed(*args: Any, **kwargs: Any) -> Any:
                with Timer(sink):
                    return await function(*args, **kwargs)

        else:

            @wraps(function)
            def timed(*args: Any, **kwargs: Any) -> Any:
                with Timer(sink):
                    return function(*args, **kwargs)

        return timed  # type: ignore[return-value]  # wraps() keeps the signature
