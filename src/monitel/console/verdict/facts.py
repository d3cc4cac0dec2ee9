"""Facts about the ranks of a job over a period, from which a verdict is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monitel.blackbox.activity import Stage
    from monitel.console.autopsy.findings import Wait

#: The state of a process: ``silent`` has no heartbeat, ``ended`` has ended by itself, ``dead`` has not.
State: TypeAlias = Literal["alive", "silent", "dead", "ended"]


@dataclass(frozen=True)
class RankFacts:
    """The facts about one rank over a period, which is the same for all ranks of the job.

    Ages are ns before the moment of the verdict; of a dead process before its death, or its last sign of life; of one
    that has ended before its end.

    Attributes:
        pid: Process id, in words.
        rank: ``training.rank``; None if it is not known.
        world_size: Number of ranks in the job; None if it is not known.
        state: The state of the process.
        death: Signal or status that ended a process without a shutdown, in words, such as ``killed by SIGKILL``;
            empty if unknown.
        status: End of a process that has ended: ``completed``, ``failed``, ``interrupted`` or ``preempted``; empty if
            unknown.
        seen_ns: Time of the end, or of the last sign of life, Unix ns; 0 if unknown.
        silent_ns: Time since the last sign of life of a process that is silent or has ended; None if unknown.
        age_ns: Time since the process began its telemetry; None if unknown.
        step: The last training step; None if none was set.
        step_age_ns: Time since that step was set; None if unknown.
        steps: Number of steps in the period.
        step_seconds: Usual seconds from step to step, in the period or before it; None if unknown.
        rate: Steps per second now; after the end, of the period. None if unknown.
        longest_step: Seconds of the longest step of each window of the period, added up.
        activities: Nanoseconds of each activity of the ledger in the period; empty without a ledger.
        activity: The current activity; empty if unknown.
        activity_age_ns: Time since it began; None if unknown.
        recompilations: Increase of the counter ``training.recompilations`` in the period.
        recompiling_ns: Increase of the counter ``training.recompilation.time`` in the period, in nanoseconds.
        stages: Usual seconds of the stages of a cycle in the period, by group (empty for all ranks) and stage.
        longest: Part of the mean of a stage that the longest cycle of each window is, by group and stage; nothing where
            the usual time is that of parts of the period.
        data: Usual share of ``data`` in ``data`` and ``step``; None if only the sums in ``activities`` are known.
        waits: Waits in progress.
        stage: Stage of a step that the training thread is in; None if unknown.
    """

    pid: str
    rank: int | None = None
    world_size: int | None = None
    state: State = "alive"
    death: str = ""
    status: str = ""
    seen_ns: int = 0
    silent_ns: int | None = None
    age_ns: int | None = None
    step: int | None = None
    step_age_ns: int | None = None
    steps: int = 0
    step_seconds: float | None = None
    rate: float | None = None
    longest_step: float = 0.0
    activities: Mapping[str, int] = field(default_factory=dict)
    activity: str = ""
    activity_age_ns: int | None = None
    recompilations: int = 0
    recompiling_ns: int = 0
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    longest: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    data: float | None = None
    waits: Sequence[Wait] = ()
    stage: Stage | None = None


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
