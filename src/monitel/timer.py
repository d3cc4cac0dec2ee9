"""Seconds that a block or a function takes, as samples of a Stat."""

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
    """What :meth:`monitel.Stat.time` returns. One ``with`` at a time; as a decorator each call has its own."""

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
        """Time every call of ``function``; of a coroutine function, from the first await to the result."""
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
