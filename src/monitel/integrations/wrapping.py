"""Methods that run inside a context manager, those of a class or of a single object, and callbacks that never raise."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec

from monitel.step import checked_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Make = Callable[..., AbstractContextManager[Any] | None]

_Arguments = ParamSpec("_Arguments")

_log = logging.getLogger("monitel")
_MARK = "_monitel_make"
_warned: set[str] = set()  # names of functions


def wrap_class(owner: type, name: str, make: Make) -> None:
    """Run a method of a class within ``make(object, *args, **kwargs)``. Idempotent.

    A class that does not define the method is left as it is.

    Args:
        owner: The class.
        name: The method.
        make: Returns a context manager; None if the object is not to be observed. An exception is logged once.
    """
    original = vars(owner).get(name)
    if original is None or hasattr(original, _MARK):
        return

    @wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _made(make, self, args, kwargs):
            return original(self, *args, **kwargs)

    setattr(call, _MARK, make)
    setattr(owner, name, call)


def wrap_object(owner: Any, name: str, make: Make) -> None:
    """Run a method of one object within ``make(object, *args, **kwargs)``. Idempotent.

    The method is bound to the object, so that a copy of the object runs its own method. If somebody else has replaced
    the method of this object before, that replacement runs inside.
    """
    below = f"_monitel_{name}"
    present = vars(owner).get(name)
    if hasattr(present, _MARK):
        return
    if not hasattr(type(owner), name):
        return
    if present is not None and getattr(present, "__func__", None) is not getattr(type(owner), name):  # else unpickled
        setattr(owner, below, present)

    @wraps(getattr(type(owner), name))
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = vars(self).get(below) or MethodType(getattr(type(self), name), self)
        with _made(make, self, args, kwargs):
            return original(*args, **kwargs)

    call.__name__ = name  # by which pickle finds the method; that of a decorated one may be another
    setattr(call, _MARK, make)
    setattr(owner, name, MethodType(call, owner))


def guarded(function: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Return a function that logs exceptions of ``function`` instead of raising them, the first one as a warning."""
    name = function.__qualname__

    @wraps(function)
    def call(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> None:
        try:
            function(*arguments, **options)
        except Exception:
            _warn_once(name)

    return call


def step_of(step: Any) -> int | None:
    """Return the step of a framework as an int; None, for the step of the process, if it is not a number from 0 on."""
    try:
        return checked_step(step if isinstance(step, int) else int(step))
    except Exception:  # raised by the class of the step, too
        return None


def _warn_once(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        _log.warning("%s() failed (further failures are not logged)", name, exc_info=True)


def _made(make: Make, owner: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[Any]:
    try:
        return make(owner, *args, **kwargs) or nullcontext()
    except Exception:
        _warn_once(getattr(make, "__qualname__", repr(make)))
        return nullcontext()
