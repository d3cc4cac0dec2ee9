"""Which steps of a training loop are profiled."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING
from warnings import warn

if TYPE_CHECKING:
    from collections.abc import Callable


class ProfilerAction(Enum):
    """What a profile does at a step; the names and numbers are torch's (``torch/profiler/profiler.py``).

    A schedule gives any but DEVICE_STOPPED, which torch keeps for a device whose collection stopped early.
    """

    NONE = 0  #: nothing is recorded
    WARMUP = 1  #: about to record
    RECORD = 2  #: recording
    RECORD_AND_SAVE = 3  #: recording; the trace is ready after this step
    DEVICE_STOPPED = 4  #: torch's own


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """Make a schedule of cycles: so many steps of waiting, of warming up, of recording, and again.

    Args:
        wait: Steps at the beginning of a cycle in which nothing happens.
        warmup: Steps before the recorded ones.
        active: Recorded steps; the trace is ready after the last of them.
        repeat: How many cycles; 0 is without end.
        skip_first: Steps before the first cycle.
        skip_first_wait: Anything but 0 leaves out the waiting of the first cycle.

    Returns:
        A function of the step's number, for ``profile(schedule=...)``.

    Raises:
        AssertionError: A negative number, or nothing that is recorded; by the schedule, a negative step.

    Example:
        >>> from monitel.profiler import schedule
        >>> plan = schedule(wait=1, warmup=1, active=2, repeat=1)
        >>> [plan(step).name for step in range(5)]
        ['NONE', 'WARMUP', 'RECORD', 'RECORD_AND_SAVE', 'NONE']
    """
    if min(wait, warmup, active - 1, repeat, skip_first) < 0:
        raise AssertionError(
            f"Invalid profiler schedule arguments. Got wait={wait} (need >= 0), warmup={warmup} (need >= 0), "
            f"active={active} (need > 0), repeat={repeat} (need >= 0), skip_first={skip_first} (need >= 0)."
        )
    if warmup == 0:
        warn("Profiler won't be using warmup, this can skew profiler results", stacklevel=2)
    cycle = wait + warmup + active
    offset = (wait if skip_first_wait else 0) - skip_first

    def action(step: int) -> ProfilerAction:
        if step < 0:
            raise AssertionError(f"Step must be non-negative. Got {step}.")
        if step < skip_first:
            return ProfilerAction.NONE
        done, place = divmod(step + offset, cycle)
        if place < wait or 0 < repeat <= done:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


def always(_step: int) -> ProfilerAction:
    """Record from start to stop: a profile without a schedule."""
    return ProfilerAction.RECORD
