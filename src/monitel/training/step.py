"""The training step of the process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import index
from typing import Any

from monitel.attributes import INT64_MAX
from monitel.process.fork import register_at_fork
from monitel.stats import _window
from monitel.training import activities

_first: int | None = None
_last: int | None = None  # that the program has set
_made = 0
_watcher: Callable[[int], object] | None = None
_set: Callable[[int], object] = _window.set_step


def set_step(n: float) -> None:
    """Set the training step of this process.

    Windows record it at their first and last sample, exporters add it to events as ``training.step``. It may go back,
    as it does when a run resumes from a checkpoint. The first call ends ``startup`` in :func:`monitel.ledger`. All
    threads share the step, and a forked child begins with that of its parent.

    Args:
        n: At least 0; an int, or a number or tensor of this value, such as 1200.0.

    Raises:
        TypeError: Not a whole number.
        ValueError: Negative, or beyond 64 bits.

    Example:
        >>> import monitel
        >>> monitel.set_step(1200)
        >>> monitel.get_step()
        1200
    """
    global _first, _last, _made
    step = checked_step(n)
    if _first is None:
        _first = step
    if step != _last:
        _made += 1 if _last is None else max(step - _last, 1)  # steps may begin again in each epoch
        _last = step
    advance(step)


def checked_step(step: Any) -> int:
    """Return a step as an int."""
    try:
        checked = index(step)
    except TypeError:
        number = 0.5
        with suppress(Exception):  # raised by the class, such as that of a tensor of several elements
            number = number if isinstance(step, str) else float(step)
        if not number.is_integer():
            raise TypeError(f"step must be a whole number, got {type(step).__qualname__}: {step!r:.80}") from None
        checked = int(number)
    if not 0 <= checked <= INT64_MAX:
        raise ValueError(f"step must be from 0 to 2**63 - 1, got {checked}")
    return checked


def first_step() -> int | None:
    """Return the step of the first :func:`set_step` of this process's run, at which it begins; None without a call."""
    return _first


def made_steps() -> int:
    """Return the number of steps that :func:`set_step` has counted in this process's run, the present one included."""
    return _made


def begin_again() -> None:
    """Forget the steps, because another run of this process begins."""
    _forget_made()
    _window.set_step(None)


def _forget_made() -> None:
    global _first, _last, _made
    _first, _last, _made = None, None, 0


def advance(step: int, *, take_over: bool = True) -> None:
    """Set the step to one that a source has counted. Unlike :func:`set_step`, it does not change the first step."""
    _set(step)
    if activities.vacant:
        activities.begin_steps(take_over=take_over)
    if (watcher := _watcher) is not None:  # read once: another thread may call unwatch()
        watcher(step)


def watch(watcher: Callable[[int], object]) -> None:
    """Call a function with each new step, in the thread that sets it. It replaces the previous function."""
    global _watcher
    _watcher = watcher


def unwatch(watcher: Callable[[int], object]) -> None:
    """Do not call a function any more. Idempotent."""
    global _watcher
    if _watcher == watcher:
        _watcher = None


def get_step() -> int | None:
    """Return the step that was last set with :func:`monitel.set_step`; None if there is none."""
    return _window.get_step()


def _set_with(function: Callable[[int], object] | None) -> None:
    """Set the step of windows with a function that does so and more; None stands for the window's own function."""
    global _set
    _set = _window.set_step if function is None else function


def _forget() -> None:
    """Leave the steps of the parent to it, in a forked child, which goes on from its step."""
    global _watcher
    _forget_made()
    _watcher = None
    _set_with(None)


register_at_fork(after_in_child=_forget)
