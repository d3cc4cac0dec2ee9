"""Callbacks that never raise into a framework's training loop."""

from __future__ import annotations

import logging
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from monitel.step import checked_step

if TYPE_CHECKING:
    from collections.abc import Callable

_Arguments = ParamSpec("_Arguments")

_log = logging.getLogger("monitel")
_warned: set[str] = set()  # names of functions


def guarded(function: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Return a function that logs exceptions of ``function`` instead of raising them, the first one as a warning."""
    name = function.__qualname__

    @wraps(function)
    def call(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> None:
        try:
            function(*arguments, **options)
        except Exception:
            if name not in _warned:
                _warned.add(name)
                _log.warning("%s() failed (further failures are not logged)", name, exc_info=True)

    return call


def step_of(step: Any) -> int | None:
    """Return the step of a framework as an int; None, for the step of the process, if it is not a number from 0 on."""
    try:
        return checked_step(step if isinstance(step, int) else int(step))
    except Exception:  # raised by the class of the step, too
        return None
