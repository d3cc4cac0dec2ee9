"""The time of the run, as exporters send it: the counter ``training.time`` for each activity, and the goodput.

A run may have several attempts: processes of one rank, one after the other. Who stores a run's ledger calls
:func:`continue_run` and :func:`repeat`; without it, this process is the run.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from monitel import activities
from monitel.counter import before_reading, forget
from monitel.training_counters import training_counter

__all__ = ["DOWN", "LOST", "NAME", "Past", "continue_run", "goodput", "repeat"]

NAME = "training.time"
DOWN, LOST = "down", "lost"


class Past(NamedTuple):
    """The earlier attempts of this process's run.

    Attributes:
        elapsed_ns: From the start of the first attempt to the start of this process.
        productive_ns: Time in ``step``, without what is lost.
        down_ns: From the end of the last attempt to the start of this process.
    """

    elapsed_ns: int
    productive_ns: int
    down_ns: int


_NO_PAST = Past(0, 0, 0)
_past = _NO_PAST
_repeated_ns = 0


def continue_run(past: Past) -> None:
    """Continue a run: the time since its last attempt is ``down``.

    Example:
        >>> from monitel import training_time
        >>> training_time.continue_run(training_time.Past(elapsed_ns=0, productive_ns=0, down_ns=0))
    """
    global _past
    _past = past


def repeat(lost_ns: int) -> None:
    """Count time of earlier attempts as lost, because this process makes their last steps again.

    A counter cannot fall, so ``training.time`` shows it as ``lost`` while the steps are made again: the first
    ``lost_ns`` nanoseconds in ``step`` count as ``lost``. The goodput falls immediately.

    Args:
        lost_ns: The time that the steps took.

    Example:
        >>> from monitel import training_time
        >>> training_time.repeat(0)
    """
    global _repeated_ns
    _repeated_ns = lost_ns


def goodput() -> float | None:
    """Return the share of ``step``, less what is lost, in the time of the run; None before the first step.

    Example:
        >>> from monitel import training_time
        >>> training_time.goodput() is None or 0 <= training_time.goodput() <= 1
        True
    """
    book = activities.ledger()
    if book is None or not activities.stepping:
        return None
    productive_ns = _past.productive_ns + book.activities.get("step", 0) - _repeated_ns
    return max(productive_ns, 0) / max(_past.elapsed_ns + book.elapsed_ns, 1)


def _seconds_by_activity(book: activities.Ledger) -> dict[str, float]:
    """Return the totals of the counters."""
    found = dict(book.activities)
    if _repeated_ns and "step" in found:
        found[LOST] = min(_repeated_ns, found["step"])
        found["step"] -= found[LOST]
    if _past.down_ns:
        found[DOWN] = _past.down_ns
    return {name: total_ns / 1e9 for name, total_ns in found.items()}


def _set_counters() -> None:
    """Set the counters to the ledger's totals, if there has been an activity or a step."""
    book = activities.ledger()
    if book is None or not {*book.activities} - {"startup", "shutdown"}:
        return
    for name, seconds in _seconds_by_activity(book).items():
        training_counter(NAME, {"training.activity": name})._follow(seconds, book.start_ns)


def _forget() -> None:
    """Start without a past and without counters, in a forked child."""
    continue_run(_NO_PAST)
    repeat(0)
    forget(NAME)


before_reading(_set_counters)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
