"""Pacing of background work: the GIL is released between slices of work, so that the training loop goes first."""

from __future__ import annotations

import gc
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monitel.os_threads import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

_never = Event()

_SWITCH_INTERVAL = 0.0005  # seconds; by default a busy thread holds the GIL for 0.005
_SLICE = 0.0005  # seconds; a training loop of 1 ms then waits for less than 0.5 ms


def yield_gil() -> None:
    """Release the GIL to another thread that waits for it. A pause of zero may take the GIL back too early."""
    _never.wait(1e-6)  # no sleep(): gevent would run other greenlets in it


class Pace:
    """Releases the GIL after each slice of work."""

    def __init__(self) -> None:
        self._end = 0.0

    def pause(self) -> None:
        """Release the GIL if the slice of work has ended. Call it several times per slice."""
        if time.monotonic() >= self._end:
            yield_gil()
            self._end = time.monotonic() + _SLICE


@contextmanager
def low_latency() -> Iterator[None]:
    """Disable garbage collection, and limit busy threads to less than 1 ms of the GIL at a time, for the exit."""
    before, collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(min(before, _SWITCH_INTERVAL))
    gc.disable()
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        if collects:
            gc.enable()
