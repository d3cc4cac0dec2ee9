"""The clocks of windows and timestamps, which a test can replace."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.testing import ManualClock

_COARSE = 0.001  # seconds
_EPOCH_YEAR = 1970
_LATEST_NS = 2**64 - 1  # 64 bits without a sign


class Clock(Protocol):
    """Two readings in nanoseconds; the standard library's :mod:`time` module is one."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds that never go back, for windows."""

    def time_ns(self) -> int:
        """Return nanoseconds since the Unix epoch, for timestamps."""


class _FineClock:
    """The system's clock where :func:`time.monotonic_ns` ticks too coarsely to measure a step."""

    monotonic_ns = staticmethod(time.perf_counter_ns)
    time_ns = staticmethod(time.time_ns)


def _choose_system_clock() -> Clock:
    """Return the clock to use without an injected one: :mod:`time`, unless its monotonic clock is coarse.

    On Windows before CPython 3.13 the monotonic clock ticks every 15.6 ms, and the performance counter is as monotonic.
    """
    monotonic, counter = time.get_clock_info("monotonic"), time.get_clock_info("perf_counter")
    fine = monotonic.resolution <= _COARSE or not counter.monotonic or counter.resolution >= monotonic.resolution
    return time if fine else _FineClock()


def _find_clock_since_boot() -> int | None:
    """Return the clock that counts suspended time, too, or the monotonic clock; None if there is neither."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        number = getattr(time, name, None)
        if number is not None:
            with suppress(OSError):  # WebAssembly has the name, but not the clock
                time.clock_gettime_ns(number)
                return int(number)
    return None


SYSTEM = _choose_system_clock()
_since_boot = _find_clock_since_boot()
_injected: ManualClock | None = None


def inject(clock: ManualClock | None) -> ManualClock | None:
    """Use ``clock`` for every Stat created and every event logged from now on, and return the previous clock.

    None stands for the system's clock. Existing Stats keep the clock they were created with.
    """
    global _injected
    previous, _injected = _injected, clock
    return previous


def injected() -> ManualClock | None:
    """Return the clock of a test; None for the system's clock."""
    return _injected


def now() -> datetime:
    """Return the current time as a naive local datetime, as torch does for events."""
    if _injected is None:
        return datetime.now()  # noqa: DTZ005  torch.monitor's events are naive and local
    return local_datetime(_injected.time_ns())


def time_ns() -> int:
    """Return nanoseconds since the Unix epoch, of the current clock."""
    return (_injected or SYSTEM).time_ns()


def local_datetime(unix_ns: int) -> datetime:
    """Return a time as a naive local datetime. Nanoseconds are cut off, so that it has the same millisecond."""
    return datetime.fromtimestamp(unix_ns // 1000 / 1e6)  # noqa: DTZ006  as in now()


def monotonic_ns() -> int:
    """Return the monotonic time of the current clock."""
    return (_injected or SYSTEM).monotonic_ns()


def since_boot_ns() -> int:
    """Return nanoseconds since the system was started, suspended time included where the system has such a clock.

    It is never the clock of a test.
    """
    return SYSTEM.monotonic_ns() if _since_boot is None else time.clock_gettime_ns(_since_boot)


def reading() -> Callable[[], int]:
    """Return the current clock's function for the monotonic time, which takes half as long as :func:`monotonic_ns`."""
    return (_injected or SYSTEM).monotonic_ns


def timestamp_ns(timestamp: datetime) -> int:
    """Return nanoseconds since the Unix epoch, limited to 64 bits without a sign; a naive datetime is local time."""
    try:
        seconds = timestamp.replace(microsecond=0).timestamp()  # whole ones are exact as a float
    except TypeError:  # a zone without an offset
        return timestamp_ns(timestamp.replace(tzinfo=None))
    except (OverflowError, ValueError, OSError):  # a year that the C library cannot convert
        return 0 if timestamp.year < _EPOCH_YEAR else _LATEST_NS
    return min(max(round(seconds * 1e6) * 1000 + timestamp.microsecond * 1000, 0), _LATEST_NS)
