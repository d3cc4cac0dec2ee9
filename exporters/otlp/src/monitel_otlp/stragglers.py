"""Which ranks are slower than the others, by a robust z-score, and which one is the slowest."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import monitel
from monitel_otlp.digest import quantile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monitel_otlp.cells import Closed

SLOW = 3.5  # the score of Iglewicz and Hoaglin's rule
_RECOVERED = 2.0
_NORMAL = 0.6745  # median absolute deviation of a normal distribution whose standard deviation is 1
_STEADY = 0.02  # of the median: ranks that are as steady as a clock are no stragglers for a thousandth
_FEWEST = 3  # the median of two lies between them
_MOST = 10  # ranks that are named at once: the slowest


class Judged(NamedTuple):
    """A rank's mean and how far it is from the others."""

    rank: int
    mean: float
    score: float


def judge(means: Mapping[int, float]) -> list[Judged]:
    """Score each rank, the slowest first: ``0.6745 * (mean - median) / MAD``; none of fewer than three.

    MAD is the median absolute deviation from the median. It counts as 2 % of the median at least, so that a score of
    3.5 takes a rank that is slower by a tenth. Means that are not finite are left out.

    Example:
        >>> from monitel_otlp.stragglers import judge
        >>> [slowest, *_] = judge({0: 0.30, 1: 0.31, 2: 0.29, 3: 0.75})
        >>> slowest.rank, round(slowest.score, 1)
        (3, 30.0)
    """
    finite = {rank: mean for rank, mean in means.items() if math.isfinite(mean)}
    if len(finite) < _FEWEST:
        return []
    middle = quantile(sorted(finite.values()), 0.5)
    spread = max(median(abs(mean - middle) for mean in finite.values()), _STEADY * abs(middle))
    found = [
        Judged(rank, mean, _NORMAL * (mean - middle) / spread if spread else 0.0) for rank, mean in finite.items()
    ]
    return sorted(found, key=lambda each: (-each.score, each.rank))


class Stragglers:
    """Watches one Stat of all ranks, and says who is slow.

    For each cell there is an event ``training.slowest`` (INFO). A rank whose score is above 3.5 is named by
    ``training.straggler`` (WARN), once until it recovers: at 2 or less ``training.straggler.recovered`` (INFO).

    Args:
        stat: Its name. What it times should be a rank's own work: where ranks wait for each other inside it, all are
            equally slow.
        hosts: The host of each rank, as far as it is known.
    """

    def __init__(self, stat: str, hosts: Mapping[int, str]) -> None:
        self._stat = stat
        self._hosts = hosts
        self._slow: dict[frozenset[tuple[str, object]], set[int]] = {}  # of each set of attributes

    def watch(self, closed: Closed) -> Iterator[monitel.Event]:
        """What is to be said of a cell."""
        definition = closed.digest.definition
        if definition.name != self._stat:
            return
        judged = judge({rank: share.mean for rank, share in closed.shares.items()})
        if not judged:
            return
        slow = self._slow.setdefault(frozenset(definition.attributes.items()), set())
        yield self._event("training.slowest", monitel.Severity.INFO, closed, judged[0])
        new = [each for each in judged if each.score > SLOW and each.rank not in slow]
        for each in new[:_MOST]:
            slow.add(each.rank)
            yield self._event("training.straggler", monitel.Severity.WARN, closed, each)
        for each in judged:
            if each.rank in slow and each.score <= _RECOVERED:
                slow.remove(each.rank)
                yield self._event("training.straggler.recovered", monitel.Severity.INFO, closed, each)

    def _event(self, name: str, severity: monitel.Severity, closed: Closed, judged: Judged) -> monitel.Event:
        digest, share = closed.digest, closed.shares[judged.rank]
        data: dict[str, str | int | float | bool] = {
            **digest.definition.attributes,
            "stat": digest.name,
            "rank": judged.rank,
            "mean": judged.mean,
            "median": digest.p50,
            "score": judged.score,
            "ranks": digest.ranks,
        }
        if host := self._hosts.get(judged.rank):
            data["host"] = host
        if digest.p50 > 0:
            data["ratio"] = judged.mean / digest.p50
        if share.last_step is not None:
            data["training.step"] = share.last_step
        at = datetime.fromtimestamp(digest.end_ns / 1e9, timezone.utc)
        return monitel.Event(name, at, data, severity=severity)
