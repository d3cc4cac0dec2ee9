"""The processes of a job, with the words that all rules have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monitel_otlp.verdict.facts import RankFacts

#: Activities outside of the training loop.
OUTSIDE = frozenset({"startup", "init", "shutdown", "down", "lost"})


@dataclass(frozen=True)
class JobFacts:
    """The processes of one attempt of a job.

    Attributes:
        processes: One process for each rank, and all processes without a rank.
    """

    processes: Sequence[RankFacts]

    @classmethod
    def of(cls, processes: Iterable[RankFacts]) -> JobFacts:
        """Return the facts, without further processes of a rank: those that make no steps, or that have ended."""
        ranks: dict[int, RankFacts] = {}
        others = []
        for each in processes:
            if each.rank is None:
                others.append(each)
            elif each.rank not in ranks or _relevance(each) > _relevance(ranks[each.rank]):
                ranks[each.rank] = each
        return cls([*(ranks[rank] for rank in sorted(ranks)), *others])

    @property
    def running(self) -> list[RankFacts]:
        """The processes that have not ended."""
        return [each for each in self.processes if each.state in {"alive", "silent"}]

    @property
    def over(self) -> bool:
        """True if all processes have ended."""
        return not self.running

    @property
    def several(self) -> bool:
        """True if the job has several ranks, whether or not they were found here."""
        return len(self.processes) > 1 or max((each.world_size or 0 for each in self.processes), default=0) > 1

    @property
    def elsewhere(self) -> str:
        """A remark in parentheses if not all ranks of the job were found; otherwise empty."""
        found = len({each.rank for each in self.processes if each.rank is not None})
        world = max((each.world_size or 0 for each in self.processes), default=0)
        others = "" if self.over else ", the others elsewhere or ended"
        return f" ({found:,} of {world:,} ranks found here{others})" if 0 < found < world else ""

    @property
    def training(self) -> list[RankFacts]:
        """The processes that have made steps in the period."""
        return [each for each in self.processes if each.steps > 0]


def _relevance(process: RankFacts) -> tuple[bool, bool, int]:
    return process.step is not None, process.state in {"alive", "silent"}, process.seen_ns


def loop_ns(process: RankFacts) -> int:
    """Return the nanoseconds of the period that the process has spent in its training loop."""
    return sum(time_ns for name, time_ns in process.activities.items() if name not in OUTSIDE and time_ns > 0)


def usual_step(process: RankFacts) -> float | None:
    """Return the usual seconds from step to step; None if they are not known."""
    seconds = process.step_seconds
    if seconds is None and process.steps:
        seconds = (loop_ns(process) - (process.step_age_ns or 0)) / 1e9 / process.steps
    return seconds if seconds is not None and math.isfinite(seconds) and seconds > 0 else None
