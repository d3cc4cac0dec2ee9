"""Give the GIL away between two slices of work: the training loop goes first."""

from __future__ import annotations

import gc
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SWITCH_INTERVAL = 0.0005  # seconds; by default a busy thread keeps the GIL for 0.005
_SLICE = 0.0005  # seconds; with what comes on top a loop of 1 ms waits for less than 0.5 ms


def give_way() -> None:
    """Let another thread go on that waits for the GIL: a sleep of no time at all may take it back too early."""
    time.sleep(1e-6)  # noqa: TID251  it does not wait: it gives the GIL away


class Pace:
    """Gives way whenever a slice of work is done."""

    def __init__(self) -> None:
        self._end = 0.0

    def pause(self) -> None:
        """Give way if it is time to; to be called more often than that."""
        if time.monotonic() >= self._end:
            give_way()
            self._end = time.monotonic() + _SLICE


@contextmanager
def in_a_hurry() -> Iterator[None]:
    """Collect no garbage, and have busy threads keep the GIL for less than 1 ms at a time: the exit has little time."""
    before, collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(min(before, _SWITCH_INTERVAL))
    gc.disable()
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        if collects:
            gc.enable()
