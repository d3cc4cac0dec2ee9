"""Methods that run inside a context manager, and callbacks that never raise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec

import monitel
from monitel import run_events
from monitel.process.failures import ignored, warn_once
from monitel.training.counters import before
from monitel.training.step import checked_step

Make = Callable[..., AbstractContextManager[Any] | None]

_Arguments = ParamSpec("_Arguments")

_log = logging.getLogger("monitel")
_MARK = "_monitel_make"


def wrap_class(owner: type, name: str, make: Make) -> None:
    """Run a method within ``make(object, *args, **kwargs)``, a context manager, or None if the object is not observed.

    The method is replaced in the class that defines it, once; without one nothing is.
    """
    definer = next((each for each in owner.__mro__ if name in vars(each)), None)
    original: Any = None if definer is None else vars(definer)[name]
    if original is None or hasattr(original, _MARK):
        return

    @wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        within: AbstractContextManager[Any] | None = None
        try:
            within = make(self, *args, **kwargs)
        except Exception:
            _warn(original.__qualname__)
        with within or nullcontext():
            return original(self, *args, **kwargs)

    setattr(call, _MARK, make)
    setattr(definer, name, call)


def guarded(function: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Return a function that logs the first exception of ``function`` instead of raising it."""
    name = function.__qualname__

    @wraps(function)
    def call(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> None:
        try:
            function(*arguments, **options)
        except Exception:
            _warn(name)

    return call


def this_run() -> tuple[float | None, int]:
    """Return what is different for each run of the process."""
    return run_events._began, before().time_ns


def record_config(owner: Any, values: Any) -> None:
    """Record a configuration, unless it is the last one that ``owner`` has recorded, and in the same run."""
    event = monitel.RunConfig(values)
    if (recorded := (this_run(), str(event.config))) != owner._recorded:  # as text, NaN equals NaN
        owner._recorded = recorded
        monitel.log_event(event)


def step_of(step: Any) -> int | None:
    """Return the step of a framework as an int; None, for the step of the process, if it is not a number from 0 on."""
    with ignored:  # what the class of the step raises, too
        return checked_step(step if isinstance(step, int) else int(step))
    return None


def _warn(name: str) -> None:
    warn_once(_log, "%s() failed (further failures are not logged)", name, key=name, exc_info=True)
