"""Buckets of a histogram, in Python: the twin of ``_buckets.h``, which counts exactly the same.

A signal handler, which Python runs at calls and in loops, may add to the Stat that it interrupts, or flush it.
Therefore results of calls are stored by statements without calls, after a check that they are still valid.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Taken = tuple[int, int, "Side", "Side", float, float, float, int]

MAX_SCALE = 20  # both limits are the defaults of OpenTelemetry's SDKs
MAX_BUCKETS = 160


class Side:
    """The buckets on one side of zero, by index; for another scale, a new Side replaces this one."""

    __slots__ = ("counts", "first", "last")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.first, self.last = 0, -1

    def coarser(self, shift: int) -> Side:
        """Return a Side whose buckets are ``2 ** shift`` times as wide."""
        found = Side()
        for index, count in self.counts.copy().items():
            found.counts[index >> shift] = found.counts.get(index >> shift, 0) + count
        if found.counts:
            found.first, found.last = min(found.counts), max(found.counts)
        return found

    def contiguous(self) -> tuple[int, tuple[int, ...]]:
        """Return the first index, and the counts from the first to the last bucket."""
        return self.first, tuple(self.counts.get(index, 0) for index in range(self.first, self.last + 1))


class Buckets:
    """Counts samples in at most 160 buckets on either side of zero, at the largest scale at which they fit."""

    __slots__ = ("count", "max", "min", "negative", "nonfinite", "positive", "scale", "sum", "zero_count")

    def __init__(self) -> None:
        self.scale, self.zero_count, self.nonfinite, self.sum = MAX_SCALE, 0, 0, 0.0
        self.min, self.max = math.inf, -math.inf
        self.positive, self.negative = Side(), Side()
        self.count = 0

    def add(self, x: float) -> None:  # noqa: C901  smaller functions would mean calls
        """Count one sample. The sample is counted without interruption up to the caller's next call."""
        if x - x != 0:  # NaN or infinite
            self.nonfinite += 1
            return
        if x:
            finest = _finest_index(x)
            while True:
                side = self.positive if x > 0 else self.negative
                counts, index = side.counts, finest >> MAX_SCALE - self.scale
                if index in counts:
                    counts[index] += 1
                    break
                if not counts:
                    side.first = side.last = index
                elif index - side.first >= MAX_BUCKETS or side.last - index >= MAX_BUCKETS:
                    self._coarsen(x, finest)
                    continue
                elif index < side.first:
                    side.first = index
                elif index > side.last:
                    side.last = index
                counts[index] = 1
                break
        else:
            self.zero_count += 1
        self.count += 1
        self.sum += x
        if x < self.min:
            self.min = x
        if x > self.max:
            self.max = x

    def _coarsen(self, x: float, finest: int) -> None:
        """Make the buckets wide enough for one more, unless a signal handler has changed them meanwhile."""
        seen, positive, negative, scale = self.count, self.positive, self.negative, self.scale
        side, index = positive if x > 0 else negative, finest >> MAX_SCALE - scale
        first, last = min(side.first, index), max(side.last, index)
        shift = 0
        while (last >> shift) - (first >> shift) >= MAX_BUCKETS:
            shift += 1
        coarser = positive.coarser(shift), negative.coarser(shift)
        if seen == self.count and positive is self.positive:
            self.positive, self.negative = coarser
            self.scale = scale - shift

    def read(self) -> Taken:
        """Return all counts, without emptying the buckets."""
        return (
            self.scale,
            self.zero_count,
            self.positive,
            self.negative,
            self.sum,
            self.min,
            self.max,
            self.nonfinite,
        )

    def taken(self) -> Taken:
        """Return all counts and empty the buckets, without interruption."""
        fresh, highest, lowest = (Side(), Side()), math.inf, -math.inf
        taken: Taken = (
            self.scale,
            self.zero_count,
            self.positive,
            self.negative,
            self.sum,
            self.min,
            self.max,
            self.nonfinite,
        )
        self.positive, self.negative = fresh
        self.scale = MAX_SCALE
        self.count = self.zero_count = self.nonfinite = 0
        self.sum = 0.0
        self.min, self.max = highest, lowest
        return taken


def fields(taken: Taken) -> tuple[Any, ...]:
    """Return the fields of a :class:`monitel.Histogram`."""
    scale, zero_count, positive, negative, *rest = taken
    return scale, zero_count, *positive.contiguous(), *negative.contiguous(), *rest


def _finest_index(x: float) -> int:
    """Return the bucket at the largest scale; shifted to the right, it is the bucket at a smaller scale."""
    mantissa, exponent = math.frexp(abs(x))
    position = math.log2(2 * mantissa) * (1 << MAX_SCALE)  # exact at powers of two, which belong to the bucket below
    whole = int(position)
    return (exponent - 1 << MAX_SCALE) + whole - (whole == position)
