"""The counting of a histogram: samples in buckets whose width grows with the samples.

A signal handler, which Python runs at calls and in loops, may add to the Stat that it interrupts, or flush it.
:class:`Buckets` therefore stores results of calls by statements without calls, if they are still valid. Its twin is
``_buckets.h``, which counts exactly the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monitel.stats.histogram import Histogram

MAX_BUCKETS = 160  # this and the scale are the defaults of OpenTelemetry's SDKs
_MAX_SCALE = 20


class Buckets:
    """Counts samples in at most 160 buckets on either side of zero, at the largest scale at which they fit."""

    def __init__(self) -> None:
        self.scale, self.zero_count, self.nonfinite, self.count, self.sum = _MAX_SCALE, 0, 0, 0, 0.0
        self.min, self.max = math.inf, -math.inf
        self.positive, self.negative = dict[int, int](), dict[int, int]()  # counts, by index

    def add(self, x: float) -> None:
        """Count one sample. The sample is counted without interruption up to the caller's next call."""
        if x - x != 0:  # NaN or infinite
            self.nonfinite += 1
            return
        if x:
            finest = _finest_index(x)
            while True:
                side, index = self.positive if x > 0 else self.negative, finest >> _MAX_SCALE - self.scale
                if index in side:
                    side[index] += 1
                    break
                self._make_room(x, finest)
        else:
            self.zero_count += 1
        self.count += 1
        self.sum += x
        if x < self.min:
            self.min = x
        if x > self.max:
            self.max = x

    def _make_room(self, x: float, finest: int) -> None:
        """Add an empty bucket for a sample; make the buckets wider if necessary."""
        seen, scale, sides = self.count, self.scale, (self.positive, self.negative)
        index, shift = finest >> _MAX_SCALE - scale, 0
        used = [*sides[x < 0], index]
        first, last = min(used), max(used)
        while (last >> shift) - (first >> shift) >= MAX_BUCKETS:
            shift += 1
        wider = (_coarser(sides[0], shift), _coarser(sides[1], shift)) if shift else sides
        if seen == self.count and self.positive is sides[0]:  # else a signal handler has changed them
            self.positive, self.negative = wider
            self.scale = scale - shift
            wider[x < 0].setdefault(index >> shift, 0)

    def taken(self) -> Buckets:
        """Return all counts as another object, and empty this one, without interruption."""
        taken = Buckets()
        taken.__dict__, self.__dict__ = self.__dict__, taken.__dict__
        return taken

    def fields(self) -> tuple[Any, ...]:
        """Return the counts so far, as the fields of a :class:`monitel.Histogram`."""
        scale, positive, negative = self.scale, self.positive, self.negative
        sides = *_contiguous(positive.copy()), *_contiguous(negative.copy())
        return scale, self.zero_count, *sides, self.sum, self.min, self.max, self.nonfinite

    def histogram(self) -> Histogram:
        """Return the counts so far."""
        from monitel.stats.histogram import Histogram  # late: see there

        return Histogram(*self.fields())


def _finest_index(x: float) -> int:
    """Return the bucket at the largest scale; shifted to the right, it is the bucket at a smaller scale."""
    mantissa, exponent = math.frexp(abs(x))
    position = math.log2(2 * mantissa) * (1 << _MAX_SCALE)  # exact at powers of two, which belong to the bucket below
    whole = int(position)
    return (exponent - 1 << _MAX_SCALE) + whole - (whole == position)


def _coarser(side: dict[int, int], shift: int) -> dict[int, int]:
    """Return buckets that are ``2 ** shift`` times as wide."""
    found: dict[int, int] = {}
    for index, count in side.copy().items():
        found[index >> shift] = found.get(index >> shift, 0) + count
    return found


def _contiguous(side: dict[int, int]) -> tuple[int, tuple[int, ...]]:
    """Return the index of the first bucket with samples, and the counts up to the last one."""
    used = [index for index, count in side.items() if count]
    if not used:
        return 0, ()
    return min(used), tuple(side.get(index, 0) for index in range(min(used), max(used) + 1))
