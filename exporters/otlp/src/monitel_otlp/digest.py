"""Many ranks' windows as one: over all samples, and over the ranks' means. All numbers are exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import monitel
from monitel_otlp.mapping import Points, WindowMapping
from monitel_otlp.spread import pooled_stddev

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monitel_otlp.windows import Entry


class Share(NamedTuple):
    """What one rank contributes to a digest: a window of its own, in the fields of :class:`monitel.Window`."""

    rank: int
    start_ns: int
    end_ns: int
    samples: int
    sum: float
    min: float
    max: float
    last: float
    discarded: int
    last_step: int | None
    stddev: float | None = None
    histogram: monitel.Histogram | None = None

    @classmethod
    def of(cls, rank: int, window: monitel.Window) -> Share:
        """A rank's window."""
        numbers = window.sum, window.min, window.max, window.last
        rest = window.discarded, window.last_step, window.stddev, window.histogram
        return cls(rank, window.start_ns, window.end_ns, window.count, *numbers, *rest)

    @property
    def mean(self) -> float:
        """``sum / samples``."""
        return self.sum / self.samples

    def joined(self, other: Share) -> Share:
        """This window and another one of the same rank as one."""
        earlier, later = sorted((self, other), key=lambda share: share.end_ns)
        return later._replace(
            start_ns=min(self.start_ns, other.start_ns),
            samples=self.samples + other.samples,
            sum=earlier.sum + later.sum,
            min=_lowest((self.min, other.min)),
            max=_highest((self.max, other.max)),
            discarded=self.discarded + other.discarded,
            stddev=_stddev((self, other)),
            histogram=_histogram((self, other)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest(monitel.Window):
    """The window of many ranks: what a window has, of all samples, and how the ranks' means are spread.

    Attributes:
        ranks: How many have reported.
        lowest: The smallest mean of a rank; means that are NaN are left out here and in the following.
        p50: The median of the ranks' means.
        p99: Their 99th percentile, between two ranks by linear interpolation.
        highest: The largest mean of a rank.
    """

    ranks: int
    lowest: float
    p50: float
    p99: float
    highest: float


def digest(definition: monitel.StatDefinition, shares: Mapping[int, Share]) -> Digest:
    """The digest of what some ranks have to say; it does not depend on the order in which that arrived.

    A NaN makes the sum, and so the mean, a NaN; ``min`` and ``max`` are those of the numbers. ``last`` is that of
    the window that ended last, of the lowest rank where several did.
    """
    by_rank = [shares[rank] for rank in sorted(shares)]
    latest = max(by_rank, key=lambda share: share.end_ns)
    means = sorted(mean for mean in (share.mean for share in by_rank) if not math.isnan(mean))
    return Digest(
        definition,
        min(share.start_ns for share in by_rank),
        latest.end_ns,
        sum(share.samples for share in by_rank),
        _total(share.sum for share in by_rank),
        _lowest(share.min for share in by_rank),
        _highest(share.max for share in by_rank),
        latest.last,
        sum(share.discarded for share in by_rank),
        None,
        max((share.last_step for share in by_rank if share.last_step is not None), default=None),
        _stddev(by_rank),
        _histogram(by_rank),
        ranks=len(by_rank),
        lowest=quantile(means, 0.0),
        p50=quantile(means, 0.5),
        p99=quantile(means, 0.99),
        highest=quantile(means, 1.0),
    )


def quantile(ascending: Sequence[float], q: float) -> float:
    """The q-quantile of sorted numbers, by linear interpolation as numpy's default; NaN when there are none."""
    if not ascending:
        return math.nan
    position = q * (len(ascending) - 1)
    below, above = ascending[math.floor(position)], ascending[math.ceil(position)]
    return below if below == above else below + (above - below) * (position % 1)


class RanksMapping(WindowMapping):
    """The mapping of any window, and for a digest five gauges more: ``<stat>.ranks.p50`` and so on.

    Args:
        mapping: How the rest is mapped.
    """

    def __init__(self, mapping: WindowMapping) -> None:
        self._mapping = mapping

    def settled(self, entry: Entry) -> Entry:
        """As the mapping has it."""
        return self._mapping.settled(entry)

    def add(self, entry: Entry, points: Points) -> None:
        """The points of one window."""
        self._mapping.add(entry, points)
        window, name, unit = entry.window, entry.series.name, entry.series.definition.unit
        if isinstance(window, Digest):
            points.add(entry, f"{name}.ranks.count", "{rank}").as_double = window.ranks
            points.add(entry, f"{name}.ranks.min", unit).as_double = window.lowest
            points.add(entry, f"{name}.ranks.p50", unit).as_double = window.p50
            points.add(entry, f"{name}.ranks.p99", unit).as_double = window.p99
            points.add(entry, f"{name}.ranks.max", unit).as_double = window.highest


def _stddev(shares: Sequence[Share]) -> float | None:
    """The standard deviation of all samples; None unless every rank has sent its own."""
    parts = [(share.samples, share.mean, share.stddev) for share in shares if share.stddev is not None]
    if len(parts) < len(shares):
        return None
    return pooled_stddev(_total(share.sum for share in shares) / sum(share.samples for share in shares), parts)


def _histogram(shares: Sequence[Share]) -> monitel.Histogram | None:
    """The distribution of all samples; None unless every rank has sent its own."""
    found = [share.histogram for share in shares if share.histogram is not None]
    return reduce(monitel.Histogram.merge, found) if len(found) == len(shares) else None


def _total(sums: Iterable[float]) -> float:
    """The sum, correctly rounded where it is finite."""
    numbers = list(sums)
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # on its way beyond what a float holds; infinities of both signs
        return sum(numbers)


def _lowest(values: Iterable[float]) -> float:
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def _highest(values: Iterable[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)
