"""The clocks that windows and timestamps are made from, and where a test puts its own."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(Protocol):
    """Two readings in nanoseconds; the standard library's :mod:`time` module is one."""

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back: what windows are cut on."""

    def time_ns(self) -> int:
        """Nanoseconds since the Unix epoch: what timestamps are made from."""


_injected: Clock | None = None


def inject(clock: Clock | None) -> Clock | None:
    """Use ``clock`` for every Stat made and every event logged from now on; give back the one before.

    None is the system's clock. What is already made keeps the clock it was made with.
    """
    global _injected
    previous, _injected = _injected, clock
    return previous


def injected() -> Clock | None:
    """The clock a test has put in place, None when it is the system's."""
    return _injected


def now() -> datetime:
    """This moment as torch stamps events: a naive local datetime."""
    if _injected is None:
        return datetime.now()  # noqa: DTZ005  torch.monitor's events are naive and local
    return datetime.fromtimestamp(_injected.time_ns() / 1e9)  # noqa: DTZ006


def monotonic_ns() -> int:
    """The monotonic reading of the clock in place."""
    return (_injected or time).monotonic_ns()


def reading() -> Callable[[], int]:
    """The monotonic reading of the clock in place now, for who keeps it: half the cost of asking each time."""
    return (_injected or time).monotonic_ns
