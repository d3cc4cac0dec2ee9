"""Failures: the first of several exceptions is raised, exceptions have a name, and warnings are not switched off."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from traceback import walk_tb
from typing import NoReturn, TypeVar

_Argument = TypeVar("_Argument")

_warned: set[tuple[str, object]] = set()  # message and key


def call_each(action: Callable[[_Argument], object], arguments: Iterable[_Argument]) -> None:
    """Call ``action`` with each argument, even if a call raises; then raise as :func:`raise_first` does."""
    failures: list[BaseException] = []
    for argument in arguments:
        try:
            action(argument)
        except BaseException as error:
            failures.append(error)
    if failures:
        raise_first(failures)


def call(function: Callable[[], object]) -> None:
    """Call a function, as the action of :func:`call_each`."""
    function()


def raise_first(failures: list[BaseException]) -> NoReturn:
    """Raise one of several exceptions, KeyboardInterrupt and SystemExit first, and report the others as unraisable.

    The list is emptied: the traceback holds the caller's frame, which would keep the exceptions alive.
    """
    urgent = [error for error in failures if isinstance(error, (KeyboardInterrupt, SystemExit))]
    first = (urgent or failures)[0]
    failures.remove(first)
    while failures:
        report_unraisable(failures.pop(0))
    try:
        raise first
    finally:
        del first, urgent


def report_unraisable(error: BaseException) -> None:
    """Pass an exception that no caller can catch to :func:`sys.unraisablehook`."""
    raiser = _Raiser(error)
    del error  # the traceback will hold this frame too
    del raiser


def is_of_signal_handler(error: BaseException) -> bool:
    """Return True for an exception that a signal handler of the application has raised, whatever it has interrupted."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    codes = {each.f_code for each in frames if not str(each.f_globals.get("__name__")).startswith("monitel.")}
    if not codes:
        return False
    import signal  # late: an error of the application is rare

    handlers = [signal.getsignal(each) for each in signal.valid_signals()]
    handlers += [getattr(each, "__call__", None) for each in handlers]  # noqa: B004  of an object
    return any(getattr(each, "__code__", None) in codes for each in handlers)


def pass_on() -> None:
    """Raise the exception that is being handled again, if a signal handler of the application has raised it."""
    error = sys.exc_info()[1]
    if error is not None and is_of_signal_handler(error):
        raise error


class _Ignored:
    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: object, _traceback: object) -> bool:
        return isinstance(error, Exception) and not is_of_signal_handler(error)


#: Suppresses an Exception, unless a signal handler of the application has raised it.
ignored = _Ignored()


def error_type(kind: object, base: type[BaseException] = Exception) -> str | None:
    """Return the name of an Exception class, with its module unless it is built in; None for any other object.

    KeyboardInterrupt, SystemExit and asyncio's CancelledError end a block on purpose, as for OpenTelemetry. The last
    one is a failure if it ends a program: ``base`` is BaseException then.
    """
    if not isinstance(kind, type) or not issubclass(kind, base) or issubclass(kind, (KeyboardInterrupt, SystemExit)):
        return None
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" or not isinstance(module, str) else f"{module}.{kind.__qualname__}"


def warn_once(
    log: logging.Logger, message: str, *arguments: object, key: object = None, exc_info: bool = False
) -> None:
    """Log a warning, unless this process has logged one with this message (without its arguments) and this key.

    ``exc_info`` is for an exception that is being handled. One of a signal handler of the application is raised again.
    """
    if exc_info:
        pass_on()
    if (message, key) not in _warned:
        _warned.add((message, key))
        log.warning(message, *arguments, exc_info=exc_info, stacklevel=2)


def enable_loggers() -> None:
    """Enable monitel's loggers, which ``logging.config.dictConfig()`` disables; a level, set on purpose, stays."""
    for name, logger in logging.Logger.manager.loggerDict.copy().items():
        if name.partition(".")[0] in {"monitel", "monitel_tensorboard"} and isinstance(logger, logging.Logger):
            logger.disabled = False


class _Raiser:
    """Raises an exception in its destructor, which is the only way to the hook from Python."""

    def __init__(self, error: BaseException) -> None:
        self._errors = [error]

    def __del__(self) -> None:
        raise self._errors.pop()  # popped: the traceback holds this frame, and would keep the exception alive
