"""Schedules: the steps of a training loop that a profile records."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING
from warnings import warn

if TYPE_CHECKING:
    from collections.abc import Callable


class ProfilerAction(Enum):
    """Action of a profile at a step, with torch's names and numbers.

    A schedule can return any action except DEVICE_STOPPED, which torch sets when a device stops collecting early.
    """

    NONE = 0  #: do not record
    WARMUP = 1  #: prepare to record
    RECORD = 2  #: record
    RECORD_AND_SAVE = 3  #: record; the trace is ready after this step
    DEVICE_STOPPED = 4  #: set only by torch


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """Return a schedule of cycles. A cycle has ``wait`` idle, ``warmup`` preparing and ``active`` recorded steps.

    Args:
        wait: Idle steps at the beginning of a cycle.
        warmup: Steps between the idle and the recorded ones.
        active: Recorded steps; the trace is ready after the last one.
        repeat: Number of cycles; 0 means no limit.
        skip_first: Steps before the first cycle.
        skip_first_wait: If not 0, the first cycle has no idle steps.

    Returns:
        A function of the step number, for ``profile(schedule=...)``. It raises AssertionError for a negative step.

    Raises:
        AssertionError: A number is negative, or ``active`` is 0.

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
        done, position = divmod(step + offset, cycle)
        if position < wait or 0 < repeat <= done:
            return ProfilerAction.NONE
        if position < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if position < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


def always(_step: int) -> ProfilerAction:
    """Return RECORD for every step: the schedule of a profile without one."""
    return ProfilerAction.RECORD
