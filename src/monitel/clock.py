"""The clocks of windows and timestamps, which a test can replace."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monitel.testing import ManualClock

_EPOCH_YEAR = 1970
_EXACT_S = 2**31  # a float has the microsecond
_LATEST_NS = 2**64 - 1  # 64 bits without a sign

_injected: ManualClock | None = None


class SYSTEM:
    """The clock without an injected one. That of :func:`time.monotonic_ns` ticks too coarsely on some systems."""

    monotonic_ns = staticmethod(time.perf_counter_ns)
    time_ns = staticmethod(time.time_ns)


#: Return nanoseconds since the Unix epoch, and the monotonic time, of the current clock; read as attributes of the
#: module, because :func:`inject` replaces them.
time_ns: Callable[[], int] = SYSTEM.time_ns
monotonic_ns: Callable[[], int] = SYSTEM.monotonic_ns


def inject(clock: ManualClock | None) -> ManualClock | None:
    """Use a clock, None for the system's, for later Stats and events; return the previous one."""
    global _injected, time_ns, monotonic_ns
    previous, _injected = _injected, clock
    time_ns, monotonic_ns = (clock or SYSTEM).time_ns, (clock or SYSTEM).monotonic_ns
    return previous


def injected() -> ManualClock | None:
    """Return the clock of a test; None for the system's clock."""
    return _injected


def now() -> datetime:
    """Return the current time as a naive local datetime, as torch does for events."""
    if _injected is None:
        return datetime.now()  # noqa: DTZ005  torch.monitor's events are naive and local
    return local_datetime(_injected.time_ns())


#: Returns nanoseconds since the system was started, suspended time included on Linux; never of a test's clock.
since_boot_ns: Callable[[], int] = SYSTEM.monotonic_ns
with suppress(AttributeError, OSError):  # WebAssembly has the name, but not the clock
    time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    since_boot_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


def local_datetime(unix_ns: int) -> datetime:
    """Return a time as a naive local datetime. Nanoseconds are cut off, so that it has the same millisecond."""
    return datetime.fromtimestamp(unix_ns // 1000 / 1e6)  # noqa: DTZ006  as in now()


def timestamp_ns(timestamp: datetime) -> int:
    """Return nanoseconds since the Unix epoch, limited to 64 bits without a sign; a naive datetime is local time."""
    try:
        seconds = timestamp.timestamp()
        if 0 <= seconds < _EXACT_S:
            return round(seconds * 1e6) * 1000
        seconds = timestamp.replace(microsecond=0).timestamp()  # whole ones are exact as a float
    except TypeError:  # a zone without an offset
        return timestamp_ns(timestamp.replace(tzinfo=None))
    except (OverflowError, ValueError, OSError):  # a year that the C library cannot convert
        return 0 if timestamp.year < _EPOCH_YEAR else _LATEST_NS
    return min(max(round(seconds * 1e6) * 1000 + timestamp.microsecond * 1000, 0), _LATEST_NS)
