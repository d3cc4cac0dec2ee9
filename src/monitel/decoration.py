"""Decoration of functions of any kind with a context manager around each call, and detection of torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import wraps
from sys import is_finalizing, modules
from typing import Any, TypeVar

Make = Callable[[], AbstractContextManager[Any]]

_Function = TypeVar("_Function", bound="Callable[..., Any]")


def decorated(function: _Function, make: Make) -> _Function:
    """Return ``function`` with a new context manager around each call.

    For a generator function, it is around each run of the generator from one yield to the next.
    """
    import inspect  # late: it takes a tenth of the time that monitel does

    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return _generator(function(*args, **kwargs), make)

    elif inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            with make():
                return await function(*args, **kwargs)

    else:

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with make():
                return function(*args, **kwargs)

    return call  # type: ignore[return-value]  # wraps() keeps the signature


def _generator(
    inner: Generator[Any, Any, Any], make: Make, is_ending: Callable[[], bool] = is_finalizing
) -> Generator[Any, Any, Any]:
    resume: Callable[[Any], Any] = inner.send
    given: Any = None
    while True:
        with make():
            try:
                item = resume(given)
            except StopIteration as end:
                return end.value
        try:
            given = yield item
            resume = inner.send
        except BaseException as error:  # GeneratorExit, too: its close() is a run
            if is_ending():  # the interpreter: globals are None
                inner.close()
                raise
            resume, given = inner.throw, error


def compiling() -> bool:
    """Return True while ``torch.compile`` traces the caller. Guards and timers do nothing then.

    Dynamo silently skips the whole frame around a context manager that does real work. Nothing is traced before
    ``torch._dynamo`` is loaded, after torch itself, which another thread may be importing at this moment.
    """
    return "torch._dynamo" in modules and modules["torch"].compiler.is_dynamo_compiling()
