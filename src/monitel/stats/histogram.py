"""Histogram: the distribution of samples, as counts in buckets whose width grows with the samples.

Only Stats with a distribution import this module: a dataclass is a third of the time that the rest of monitel takes.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from monitel.stats.buckets import MAX_BUCKETS, Buckets

_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution of samples: OpenTelemetry's base-2 exponential histogram.

    Bucket ``i`` counts the samples above ``base ** i`` and up to ``base ** (i + 1)``, where ``base`` is
    ``2 ** 2 ** -scale``; negative samples are counted in the same way, by their distance from zero. Each side of zero
    has at most 160 buckets. The scale is the largest one, at most 20, at which the samples fit into 160 buckets.
    Therefore the same samples always give the same buckets, in any order of adding and merging.

    It is a plain value: ``==`` compares all fields, it can be pickled, and ``Histogram(**fields)`` restores it from
    ``dataclasses.asdict(histogram)``, even after a conversion to JSON and back.

    All fields describe the finite samples; NaN and infinities are only counted in ``nonfinite``.

    Attributes:
        scale: Resolution of the buckets; one less means that they are twice as wide.
        zero_count: Number of samples that are 0.0 or -0.0.
        positive_offset: Index ``i`` of the first positive bucket.
        positive: Number of samples in each positive bucket, from the first one on.
        negative_offset: Index ``i`` of the first negative bucket.
        negative: Number of samples in each negative bucket, from the first one on.
        sum: Sum of the samples.
        min: The smallest sample, exact; ``inf`` when there is none.
        max: The largest sample, exact; ``-inf`` when there is none.
        nonfinite: Number of samples that were NaN or infinite.

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

    @staticmethod
    def of(samples: Iterable[float]) -> Histogram:
        """Return the distribution of some numbers."""
        buckets = Buckets()
        for sample in samples:
            buckets.add(float(sample))
        return Histogram(*buckets.fields())

    @property
    def count(self) -> int:
        """Number of finite samples."""
        return self.zero_count + sum(self.positive) + sum(self.negative)

    @property
    def relative_error(self) -> float:
        """Largest relative error of :meth:`quantile`: half a bucket, which is 0.011 at scale 5."""
        return math.tanh(math.log(2) / 2 * 2.0**-self.scale)  # (base - 1) / (base + 1)

    def quantile(self, q: float) -> float:
        """Return the sample that a fraction ``q`` of the samples do not exceed: the median for 0.5.

        This is the sample of rank ``ceil(q * count)``, as NumPy's method ``inverted_cdf``. The smallest and the largest
        sample are exact; any other sample is represented by the middle of its bucket, with a relative error of at most
        ``relative_error`` (more below 1e-307, where floats themselves are less precise).

        Args:
            q: A number between 0 and 1.

        Returns:
            The quantile, NaN when there are no samples.

        Raises:
            ValueError: ``q`` is not between 0 and 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q must be between 0 and 1, such as 0.5 for the median, got {q!r}")
        return self._quantile(q, self._accumulated())

    def percentiles(self) -> dict[str, float]:
        """Return ``p50``, ``p90``, ``p95`` and ``p99``, as in events and metrics."""
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
        position = bisect_left(counts, rank) - len(self.negative)
        if position == 0:
            return 0.0
        if position > 0:
            found = self._middle(self.positive_offset + position - 1)
        else:
            found = -self._middle(self.negative_offset - position - 1)
        return min(max(found, self.min), self.max)

    def merge(self, other: Histogram) -> Histogram:
        """Return the distribution of the samples of both.

        Buckets, counts, min and max are exactly those of one histogram of all samples, whatever the order of merging;
        the sum may differ in its last digits.
        """
        both = self, other
        positive = [(each.scale, each.positive_offset, each.positive) for each in both if each.positive]
        negative = [(each.scale, each.negative_offset, each.negative) for each in both if each.negative]
        scale = min(self.scale, other.scale)
        while any(last - first >= MAX_BUCKETS for first, last in (_span(positive, scale), _span(negative, scale))):
            scale -= 1
        return Histogram(
            scale,
            self.zero_count + other.zero_count,
            *_summed(positive, scale),
            *_summed(negative, scale),
            self.sum + other.sum,
            min(self.min, other.min),
            max(self.max, other.max),
            self.nonfinite + other.nonfinite,
        )

    def buckets(self) -> Iterator[tuple[float, float, int]]:
        """Yield lower bound, upper bound and count of each bucket with samples, in ascending order.

        All bounds are between ``min`` and ``max``. The bucket of the zeros is ``(0.0, 0.0, zero_count)``.
        """
        for position in reversed(range(len(self.negative))):
            if count := self.negative[position]:
                index = self.negative_offset + position
                yield max(-self._bound(index + 1), self.min), min(-self._bound(index), self.max), count
        if self.zero_count:
            yield 0.0, 0.0, self.zero_count
        for position, count in enumerate(self.positive):
            if count:
                index = self.positive_offset + position
                yield max(self._bound(index), self.min), min(self._bound(index + 1), self.max), count

    def _bound(self, index: int, factor: float = 1.0) -> float:
        """Return ``factor * base ** index``, without overflow."""
        if self.scale > 0:
            octave, bucket = divmod(index, 1 << self.scale)
            factor *= 2.0 ** math.ldexp(bucket, -self.scale)
        else:
            octave = index << -self.scale
        return math.ldexp(factor, octave) if octave < sys.float_info.max_exp else math.inf

    def _middle(self, index: int) -> float:
        """Return the number whose relative distance to both bounds of a bucket is the same."""
        return self._bound(index, 2 / (1 + 2.0 ** -(2.0**-self.scale)))


def _span(sides: list[tuple[int, int, tuple[int, ...]]], scale: int) -> tuple[int, int]:
    """Return the first and the last bucket at a scale; each side has its scale, its first bucket, and its counts."""
    ends = [(offset >> own - scale, offset + len(counts) - 1 >> own - scale) for own, offset, counts in sides]
    return min((first for first, _ in ends), default=0), max((last for _, last in ends), default=0)


def _summed(sides: list[tuple[int, int, tuple[int, ...]]], scale: int) -> tuple[int, tuple[int, ...]]:
    """Return the first bucket at a scale, and the counts."""
    if not sides:
        return 0, ()
    first, last = _span(sides, scale)
    found = [0] * (last - first + 1)
    for own, offset, counts in sides:
        for index, count in enumerate(counts, offset):
            found[(index >> own - scale) - first] += count
    return first, tuple(found)
