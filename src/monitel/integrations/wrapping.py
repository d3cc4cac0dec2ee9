"""Methods of a framework that run inside a context manager: those of a class, or those of a single object."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Make = Callable[..., AbstractContextManager[Any] | None]

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


def _made(make: Make, owner: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[Any]:
    try:
        return make(owner, *args, **kwargs) or nullcontext()
    except Exception:
        function = getattr(make, "__qualname__", repr(make))
        if function not in _warned:
            _warned.add(function)
            _log.warning("%s() failed (further failures are not logged)", function, exc_info=True)
        return nullcontext()
