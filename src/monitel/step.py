"""The training step of the process."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING

from monitel import _window, activities
from monitel.attributes import INT64_MAX
from monitel.fork import register_at_fork

if TYPE_CHECKING:
    from collections.abc import Callable

_first: int | None = None
_watcher: Callable[[int], object] | None = None
_set: Callable[[int], object] = _window.set_step


def set_step(n: int) -> None:
    """Set the training step of this process.

    Windows record it at their first and last sample, exporters add it to events as ``training.step``. It may go back,
    as it does when a run resumes from a checkpoint. The first call ends ``startup`` in :func:`monitel.ledger`.

    Args:
        n: At least 0; an int, or an object that converts to one, such as a NumPy integer.

    Raises:
        TypeError: Not an int.
        ValueError: Negative, or beyond 64 bits.

    Example:
        >>> import monitel
        >>> monitel.set_step(1200)
        >>> monitel.get_step()
        1200
    """
    try:
        step = index(n)
    except TypeError:
        raise TypeError(f"set_step() takes an int, got {type(n).__qualname__}: {n!r:.80}") from None
    if not 0 <= step <= INT64_MAX:
        raise ValueError(f"set_step() takes a step from 0 to 2**63 - 1, got {step}")
    global _first
    if _first is None:
        _first = step
    advance(step)


def first_step() -> int | None:
    """Return the step of the first :func:`set_step` of this process, at which it begins; None without a call.

    Example:
        >>> from monitel.step import first_step, set_step
        >>> set_step(1200)
        >>> first_step() <= 1200
        True
    """
    return _first


def advance(step: int, *, take_over: bool = True) -> None:
    """Set the step to one that a source has counted. Unlike :func:`set_step`, it does not change the first step.

    Args:
        step: The step.
        take_over: If there is no training thread yet, or it has ended, make the calling thread the training thread.
    """
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
    """Leave the steps of the parent to it, in a forked child."""
    global _first, _watcher
    _first = _watcher = None
    _set_with(None)


register_at_fork(after_in_child=_forget)
