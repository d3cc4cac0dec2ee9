"""How samples are distributed: counts in buckets that are the wider the larger the numbers in them are."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING

from monitel._recorder_py import MAX_BUCKETS, Recorder, fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Side = tuple[int, int, Sequence[int]]  # scale, offset, counts

_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Histogram:
    """The distribution of some samples: OpenTelemetry's base-2 exponential histogram.

    Bucket ``i`` counts the samples above ``base ** i`` and up to ``base ** (i + 1)``, where ``base`` is
    ``2 ** 2 ** -scale``; negative samples are counted likewise, by their distance from zero. There are 160 buckets at
    most on either side of zero, of the largest scale, 20 at most, at which the samples fit into so many. So the same
    samples give the same buckets, in whatever order they come and however they are merged.

    It is a plain value: ``==`` compares all fields, pickle takes it, and ``Histogram(**fields)`` makes it again from
    ``dataclasses.asdict(histogram)``, also after a way through JSON.

    The numbers are those of the finite samples: NaN and infinities are in ``nonfinite`` and nowhere else.

    Attributes:
        scale: How fine the buckets are; one less means that they are twice as wide.
        zero_count: Samples that are 0.0 or -0.0.
        positive_offset: The first positive bucket's ``i``.
        positive: Samples in each positive bucket, from that one on.
        negative_offset: The same for negative samples.
        negative: The same for negative samples.
        sum: The samples added up.
        min: The smallest sample, exact; ``inf`` when there is none.
        max: The largest sample, exact; ``-inf`` when there is none.
        nonfinite: Samples that were NaN or infinite.

    Example:
        >>> from monitel import Histogram
        >>> one, other = Histogram.of([0.1, 0.2, 0.3]), Histogram.of([0.2, 40.0])
        >>> both = one.merge(other)
        >>> both.count, both.quantile(0.0), both.quantile(1.0)
        (5, 0.1, 40.0)
        >>> abs(both.quantile(0.5) / 0.2 - 1) <= both.relative_error < 0.03
        True
    """

    scale: int
    zero_count: int
    positive_offset: int
    positive: tuple[int, ...]
    negative_offset: int
    negative: tuple[int, ...]
    sum: float
    min: float
    max: float
    nonfinite: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "positive", tuple(self.positive))  # JSON has lists
        object.__setattr__(self, "negative", tuple(self.negative))

    @classmethod
    def of(cls, samples: Iterable[float]) -> Histogram:
        """The distribution of some numbers."""
        recorder = Recorder()
        for sample in samples:
            recorder.add(float(sample))
        return cls(*fields(recorder.taken()))

    @property
    def count(self) -> int:
        """How many samples are in it; those that are not finite are not."""
        return self.zero_count + sum(self.positive) + sum(self.negative)

    @property
    def relative_error(self) -> float:
        """How far :meth:`quantile` may be off, as a fraction of the true sample: half a bucket, 0.011 at scale 5."""
        return math.tanh(math.log(2) / 2 * 2.0**-self.scale)  # (base - 1) / (base + 1)

    def quantile(self, q: float) -> float:
        """The sample that a fraction ``q`` of the samples do not exceed: the median for 0.5.

        That is the sample of rank ``ceil(q * count)``, ``inverted_cdf`` in NumPy's words. The smallest and the largest
        are exact; of others the middle of their bucket is given, which differs from the sample by no more than
        ``relative_error`` times the sample (below 1e-307, where floats grow coarse themselves, by more).

        Args:
            q: From 0 to 1.

        Returns:
            The quantile, NaN when there are no samples.

        Raises:
            ValueError: ``q`` is not from 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q must be from 0 to 1, such as 0.5 for the median, got {q!r}")
        return self._quantile(q, self._accumulated())

    def percentiles(self) -> dict[str, float]:
        """``p50``, ``p90``, ``p95`` and ``p99``: what events and metrics carry."""
        counts = self._accumulated()
        return {name: self._quantile(q, counts) for name, q in _PERCENTILES.items()}

    def _accumulated(self) -> list[int]:
        return list(accumulate((*reversed(self.negative), self.zero_count, *self.positive)))

    def _quantile(self, q: float, counts: list[int]) -> float:
        rank, count = math.ceil(q * counts[-1]), counts[-1]
        if not count:
            return math.nan
        if rank <= 1 or rank >= count:
            return self.min if rank <= 1 else self.max
        place = bisect_left(counts, rank) - len(self.negative)
        if place == 0:
            return 0.0
        if place > 0:
            found = self._middle(self.positive_offset + place - 1)
        else:
            found = -self._middle(self.negative_offset - place - 1)
        return min(max(found, self.min), self.max)

    def merge(self, other: Histogram) -> Histogram:
        """The distribution of the samples of both.

        Buckets, counts, min and max are those that all samples in one histogram give, in whatever order histograms are
        merged; sums are added up, and so differ in their last digits.
        """
        positive = [(each.scale, each.positive_offset, each.positive) for each in (self, other) if each.positive]
        negative = [(each.scale, each.negative_offset, each.negative) for each in (self, other) if each.negative]
        scale = min(self.scale, other.scale)
        while any(last - first >= MAX_BUCKETS for first, last in (_span(positive, scale), _span(negative, scale))):
            scale -= 1
        return Histogram(
            scale,
            self.zero_count + other.zero_count,
            *_added_up(positive, scale),
            *_added_up(negative, scale),
            self.sum + other.sum,
            min(self.min, other.min),
            max(self.max, other.max),
            self.nonfinite + other.nonfinite,
        )

    def buckets(self) -> Iterator[tuple[float, float, int]]:
        """Lower bound, upper bound and count of each bucket that has samples, from the lowest up.

        No bound is beyond ``min`` and ``max``. The bucket of the zeros is ``(0.0, 0.0, zero_count)``.
        """
        for place in reversed(range(len(self.negative))):
            if count := self.negative[place]:
                index = self.negative_offset + place
                yield max(-self._bound(index + 1), self.min), min(-self._bound(index), self.max), count
        if self.zero_count:
            yield 0.0, 0.0, self.zero_count
        for place, count in enumerate(self.positive):
            if count:
                index = self.positive_offset + place
                yield max(self._bound(index), self.min), min(self._bound(index + 1), self.max), count

    def _bound(self, index: int, factor: float = 1.0) -> float:
        """``factor * base ** index``, without overflow."""
        if self.scale > 0:
            octave, place = divmod(index, 1 << self.scale)
            factor *= 2.0 ** math.ldexp(place, -self.scale)
        else:
            octave = index << -self.scale
        return math.ldexp(factor, octave) if octave < sys.float_info.max_exp else math.inf

    def _middle(self, index: int) -> float:
        """The number from which both ends of a bucket are equally far, relatively."""
        return self._bound(index, 2 / (1 + 2.0 ** -(2.0**-self.scale)))


def _span(sides: Sequence[Side], scale: int) -> tuple[int, int]:
    """First and last bucket at a coarser scale."""
    if not sides:
        return 0, 0
    first = min(offset >> own - scale for own, offset, _ in sides)
    return first, max(offset + len(counts) - 1 >> own - scale for own, offset, counts in sides)


def _added_up(sides: Sequence[Side], scale: int) -> tuple[int, tuple[int, ...]]:
    """Offset and counts at a coarser scale."""
    if not sides:
        return 0, ()
    first, last = _span(sides, scale)
    found = [0] * (last - first + 1)
    for own, offset, counts in sides:
        if own == scale:
            there = slice(offset - first, offset - first + len(counts))
            found[there] = map(add, found[there], counts)
        else:
            for index, count in enumerate(counts, offset):
                found[(index >> own - scale) - first] += count
    return first, tuple(found)

