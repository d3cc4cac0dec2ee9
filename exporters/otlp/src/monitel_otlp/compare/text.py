"""Numbers of runs as short texts, and their differences from the first run."""

from __future__ import annotations

import math
import time

from monitel_otlp.ledger.shares import duration

NOTHING = "-"

_LARGE = 10**6
_WHOLE_PERCENT = 10  # from here on without a decimal


def number(value: float | None) -> str:
    """Return a number with six digits at most.

    Example:
        >>> number(0.123456789), number(1200), number(1e-9), number(None)
        ('0.123457', '1,200', '1e-09', '-')
    """
    if value is None:
        return NOTHING
    if math.isfinite(value) and value == int(value) and abs(value) < 10**15:
        return f"{int(value):,}"
    return f"{value:,.6g}" if abs(value) < _LARGE else f"{value:.6g}"


def percent(share: float | None) -> str:
    """Return a share in percent."""
    return NOTHING if share is None else f"{100 * share:.1f} %"


def period(time_ns: int | None) -> str:
    """Return a duration in words."""
    return NOTHING if time_ns is None else duration(time_ns)


def moment(time_ns: int | None) -> str:
    """Return a time by the local clock."""
    if time_ns is None:
        return NOTHING
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9))
    except (OverflowError, ValueError, OSError):
        return "an impossible time"


def difference(value: float | None, first: float | None) -> str:
    """Return the difference of a value from that of the first run in percent; empty where it has no meaning.

    Example:
        >>> difference(1.1, 1.0), difference(30.0, 10.0), difference(1.0, 1.0), difference(1.0, 0.0)
        ('+10 %', '+200 %', '', '')
    """
    if value is None or not first or value == first or not (math.isfinite(value) and math.isfinite(first)):
        return ""
    change = 100 * (value - first) / abs(first)
    if not math.isfinite(change):
        return ""
    return f"{change:+,.0f} %" if abs(round(change, 1)) >= _WHOLE_PERCENT else f"{change:+.1f} %"


def points(share: float | None, first: float | None) -> str:
    """Return the difference of two shares in percentage points; empty without one."""
    if share is None or first is None or share == first or not math.isfinite(share - first):
        return ""
    return f"{100 * (share - first):+.1f} points"
