"""The training step of the process."""

from __future__ import annotations

from operator import index

from monitel import _window, activities
from monitel.attributes import INT64_MAX


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
    _window.set_step(step)
    if not activities.stepping:
        activities.begin_steps()


def get_step() -> int | None:
    """Return the step that was last set with :func:`monitel.set_step`; None if there is none."""
    return _window.get_step()
