"""The clocks of windows and timestamps, which a test can replace."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(Protocol):
    """Two readings in nanoseconds; the standard library's :mod:`time` module is one."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds that never go back, for windows."""

    def time_ns(self) -> int:
        """Return nanoseconds since the Unix epoch, for timestamps."""


_injected: Clock | None = None


def inject(clock: Clock | None) -> Clock | None:
    """Use ``clock`` for every Stat created and every event logged from now on, and return the previous clock.

    None stands for the system's clock. Existing Stats keep the clock they were created with.
    """
    global _injected
    previous, _injected = _injected, clock
    return previous


def injected() -> Clock | None:
    """Return the clock of a test; None for the system's clock."""
    return _injected


def now() -> datetime:
    """Return the current time as a naive local datetime, as torch does for events."""
    if _injected is None:
        return datetime.now()  # noqa: DTZ005  torch.monitor's events are naive and local
    return local_datetime(_injected.time_ns())


def time_ns() -> int:
    """Return nanoseconds since the Unix epoch, of the current clock."""
    return (_injected or time).time_ns()


def local_datetime(unix_ns: int) -> datetime:
    """Return a time as a naive local datetime."""
    return datetime.fromtimestamp(unix_ns / 1e9)  # noqa: DTZ006  as in now()


def monotonic_ns() -> int:
    """Return the monotonic time of the current clock."""
    return (_injected or time).monotonic_ns()


def reading() -> Callable[[], int]:
    """Return the current clock's function for the monotonic time, which takes half as long as :func:`monotonic_ns`."""
    return (_injected or time).monotonic_ns
