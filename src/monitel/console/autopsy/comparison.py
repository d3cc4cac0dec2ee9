"""Comparison of the ranks of one job: the wait that most of them are in, and the rank that is not in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitel.console.autopsy.findings import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monitel.console.autopsy.findings import Findings

_LONG_NS = 10**9  # shorter waits are usual in a job that makes progress
_STARTS_NS = 60 * 10**9  # within which the ranks of a job begin


@dataclass(frozen=True)
class SharedWait:
    """A wait that at least half of the ranks are in.

    Attributes:
        key: The key of the wait counter.
        waiting: Time since the begin of the wait, ns, by rank.
        missing: The other ranks that were found.
    """

    key: str
    waiting: Mapping[int, int]
    missing: tuple[int, ...]

    @property
    def longest_ns(self) -> int:
        """Time since the first rank began to wait."""
        return max(self.waiting.values())

    @property
    def long(self) -> bool:
        """True if the wait is longer than usual waits."""
        return self.longest_ns >= _LONG_NS

    @property
    def late(self) -> tuple[int, ...]:
        """The ranks that hold up the others; empty if the wait is not long."""
        return self.missing if self.long else ()


@dataclass(frozen=True)
class Comparison:
    """The ranks of one attempt of a job.

    Attributes:
        ranks: The findings about each rank.
        world_size: Number of ranks of the job; None if unknown.
        waits: Waits that at least half of the ranks are in: first those that a rank is not in, the longest first.
        steps: Ranks by their last step, the latest step first.
    """

    ranks: Mapping[int, Findings]
    world_size: int | None
    waits: Sequence[SharedWait]
    steps: Mapping[int, Sequence[int]]

    @property
    def dead(self) -> tuple[int, ...]:
        """The ranks that have died."""
        return tuple(rank for rank, found in self.ranks.items() if found.state is State.DEAD)

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """The ranks of the job that were not found: they are on other machines, or have ended."""
        return tuple(rank for rank in range(min(self.world_size or 0, 1 << 20)) if rank not in self.ranks)


def compare(processes: Iterable[Findings]) -> list[Comparison]:
    """Return a comparison for each attempt of a job with two ranks or more, in the order of the processes."""
    jobs: dict[tuple[object, ...], dict[int, Findings]] = {}
    for found in processes:
        names = found.identity
        if names.rank is not None:
            ranks = jobs.setdefault((names.service, names.run, names.attempt, names.world_size), {})
            other = ranks.get(names.rank)
            if other is None or _relevance(found) > _relevance(other):  # a rank may have processes without steps
                ranks[names.rank] = found
    together = [_of_one_start(ranks) for ranks in jobs.values()]
    return [_comparison(dict(sorted(ranks.items()))) for ranks in together if len(ranks) > 1]


def _of_one_start(ranks: dict[int, Findings]) -> dict[int, Findings]:
    """Return the ranks without those that had ended when the others began: they are of an earlier job."""
    latest_ns = max(found.started_ns for found in ranks.values())
    return {rank: found for rank, found in ranks.items() if found.seen_ns + _STARTS_NS >= latest_ns}


def _relevance(found: Findings) -> tuple[bool, bool, int]:
    return found.state is not State.DEAD, found.step is not None, found.started_ns


def _comparison(ranks: dict[int, Findings]) -> Comparison:
    waiting: dict[str, dict[int, int]] = {}
    for rank, found in ranks.items():
        for wait in found.waits:
            of_key = waiting.setdefault(wait.key, {})
            of_key[rank] = max(wait.age_ns, of_key.get(rank, 0))
    shared = [
        SharedWait(key, of_key, tuple(rank for rank in ranks if rank not in of_key))
        for key, of_key in waiting.items()
        if len(of_key) * 2 >= len(ranks)
    ]
    shared.sort(key=lambda wait: (not wait.missing, -wait.longest_ns, wait.key))
    steps: dict[int, list[int]] = {}
    for rank, found in ranks.items():
        if found.step is not None:
            steps.setdefault(found.step, []).append(rank)
    world_size = next(iter(ranks.values())).identity.world_size
    return Comparison(ranks, world_size, shared, dict(sorted(steps.items(), reverse=True)))
