"""A histogram that is being filled, in Python: the twin of ``_recorder.h``, to the last bucket.

A signal handler, which Python runs at calls and at loops, may add to the Stat that it interrupts, or flush it. So what
is found out by calls is put in place by statements that have none, after a look whether it still holds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Taken = tuple[int, int, "Side", "Side", float, float, float, int]

MAX_SCALE = 20  # both limits are those of OpenTelemetry's SDKs
MAX_BUCKETS = 160


class Side:
    """The buckets on one side of zero, by index; they are only ever replaced by a side that has another scale."""

    __slots__ = ("counts", "first", "last")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.first, self.last = 0, -1

    def coarser(self, shift: int) -> Side:
        """The same in buckets that are ``2 ** shift`` times as wide."""
        found = Side()
        for index, count in self.counts.copy().items():
            found.counts[index >> shift] = found.counts.get(index >> shift, 0) + count
        if found.counts:
            found.first, found.last = min(found.counts), max(found.counts)
        return found

    def in_a_row(self) -> tuple[int, tuple[int, ...]]:
        """The first index, and the counts from there to the last."""
        return self.first, tuple(self.counts.get(index, 0) for index in range(self.first, self.last + 1))


class Recorder:
    """Counts samples in at most 160 buckets on either side of zero, as fine as they fit."""

    __slots__ = ("count", "max", "min", "negative", "nonfinite", "positive", "scale", "sum", "zero_count")

    def __init__(self) -> None:
        self.scale, self.zero_count, self.nonfinite, self.sum = MAX_SCALE, 0, 0, 0.0
        self.min, self.max = math.inf, -math.inf
        self.positive, self.negative = Side(), Side()
        self.count = 0

    def add(self, x: float) -> None:  # noqa: C901  taken apart it would have calls
        """Count one sample; nothing can come in between that and what the caller does next without a call."""
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
        """Make the buckets so wide that there is room for one more, unless something came in between."""
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

    def taken(self) -> Taken:
        """What was counted; the recorder is empty then, and nothing can come in between."""
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
    """What makes a :class:`monitel.Histogram`."""
    scale, zero_count, positive, negative, *rest = taken
    return scale, zero_count, *positive.in_a_row(), *negative.in_a_row(), *rest


def _finest_index(x: float) -> int:
    """The bucket at the largest scale; shifted to the right it is the bucket at a smaller one."""
    mantissa, exponent = math.frexp(abs(x))
    place = math.log2(2 * mantissa) * (1 << MAX_SCALE)  # exact at powers of two, which belong to the bucket below
    whole = int(place)
    return (exponent - 1 << MAX_SCALE) + whole - (whole == place)
