"""The training step, process-wide."""

from __future__ import annotations

from operator import index

from monitel import _window

_LARGEST = 2**63 - 1


def set_step(n: int) -> None:
    """Say which training step this process is at.

    Windows note it at their first and last sample, exporters put it on events as ``training.step``. It may go
    back, as it does when a run resumes from a checkpoint.

    Args:
        n: At least 0; an int or what can stand for one, such as a NumPy integer.

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
    if not 0 <= step <= _LARGEST:
        raise ValueError(f"set_step() takes a step from 0 to 2**63 - 1, got {step}")
    _window.set_step(step)


def get_step() -> int | None:
    """The step last set with :func:`monitel.set_step`; None when none was set."""
    return _window.get_step()
