"""Times of steps in counters: each counter is for a range of times, and each power of two has 16 of them."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNTERS = 512  # from 2**10 ns, a microsecond, to 2**42 ns, an hour and 13 minutes

_PART_BITS, _LOWEST_BIT = 4, 10
_PARTS = 1 << _PART_BITS


def counter_of(time_ns: int) -> int:
    """Return the counter of a time; the first one and the last one are for shorter and longer times as well.

    Example:
        >>> from monitel.training.step_times import counter_of
        >>> counter_of(0), counter_of(1024), counter_of(2047), counter_of(2048), counter_of(2**50)
        (0, 0, 15, 16, 511)
    """
    bit = time_ns.bit_length() - 1
    if bit < _LOWEST_BIT:
        return 0
    counter = (bit - _LOWEST_BIT) * _PARTS + (time_ns >> bit - _PART_BITS) % _PARTS
    return counter if counter < COUNTERS else COUNTERS - 1


def quantile(counts: Sequence[int], q: float) -> float | None:
    """Return the seconds that a fraction ``q`` of the times does not exceed, within 3.2 %; None without a time.

    Args:
        counts: The counters.
        q: From 0 to 1.

    Example:
        >>> from monitel.training.step_times import COUNTERS, counter_of, quantile
        >>> counts = [0] * COUNTERS
        >>> counts[counter_of(100_000_000)] = 99
        >>> counts[counter_of(1_000_000_000)] = 1
        >>> f"{quantile(counts, 0.5):.2f} {quantile(counts, 1.0):.1f}"
        '0.10 1.0'
    """
    up_to = [*accumulate(counts)]
    if not up_to or up_to[-1] < 1:
        return None
    counter = bisect_left(up_to, max(q * up_to[-1], 1))
    return (_begin_ns(counter) + _begin_ns(counter + 1)) / 2e9


def _begin_ns(counter: int) -> int:
    power, part = divmod(counter, _PARTS)
    return _PARTS + part << power + _LOWEST_BIT - _PART_BITS
