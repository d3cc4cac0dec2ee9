"""Numbers in few characters: times, rates, shares, and rates over time as a row of blocks."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from monitel.console.autopsy.lines import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.console.ledger.screen import Screen

_MARKS, _PLAIN_MARKS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
_MS, _MINUTE, _HOUR = 1e-3, 60, 3600
_MANY = 10**5  # steps per second, which need an exponent
_HALF_PERCENT = 5e-3


def sparkline(rates: Sequence[float], screen: Screen, width: int) -> str:
    """Return the last numbers as a row of blocks, one for each: the maximum is the highest block, zero the lowest."""
    marks = _marks(screen)
    shown = [rate if math.isfinite(rate) and rate > 0 else 0.0 for rate in rates[-width:]] if width > 0 else []
    top = max(shown, default=0.0) or 1.0
    return "".join([marks[max(math.ceil(rate / top * len(marks)) - 1, 0)] for rate in shown])


@lru_cache(maxsize=16)
def _marks(screen: Screen) -> str:
    return _MARKS if screen.printable(_MARKS) == _MARKS else _PLAIN_MARKS


def short_time(seconds: float) -> str:
    """Return a time in at most seven characters.

    Example:
        >>> short_time(0.00042), short_time(0.0123), short_time(1.5), short_time(300), short_time(7200)
        ('0.42 ms', '12.3 ms', '1.50 s', '5.0 min', '2.0 h')
    """
    if not math.isfinite(seconds):
        return number(seconds)
    if seconds < 1 - _MS / 2:
        return f"{_three_digits(seconds / _MS)} ms"
    if seconds < 100:  # noqa: PLR2004  three digits
        return f"{_three_digits(seconds)} s"
    return f"{seconds / _MINUTE:.1f} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"


def per_second(rate: float) -> str:
    """Return a rate in at most seven characters.

    Example:
        >>> per_second(0.0), per_second(0.0123), per_second(8.25), per_second(1234.5), per_second(1e6)
        ('0', '0.0123', '8.25', '1234', '1e+06')
    """
    if not (rate and math.isfinite(rate)):
        return number(rate)
    return _three_digits(rate) if 1 <= rate < _MANY else f"{rate:.3g}"


def percent(share: float) -> str:
    """Return a share in percent.

    Example:
        >>> percent(0.0), percent(0.004), percent(0.256)
        ('0 %', '<1 %', '26 %')
    """
    if not math.isfinite(share):
        return number(share)
    return "<1 %" if 0 < share < _HALF_PERCENT else f"{share:.0%}".replace("%", " %")


def _three_digits(value: float) -> str:
    """Return a number with three digits, or more if more are before the point."""
    digits = max(2 - math.floor(math.log10(max(value, 1))), 0)
    shown = f"{value:.{digits}f}"
    return shown if digits == 0 or float(shown) < 10 ** (3 - digits) else f"{value:.{digits - 1}f}"
