"""One row of ``monitel top``: a process, its rank, and its numbers at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from monitel.console.summary.report import JobName

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.blackbox.activity import Stage
    from monitel.console.autopsy.findings import PastEvent, Wait
    from monitel.console.top.period import History
    from monitel.console.verdict.rules import Verdict

_NO_NAMES = JobName()


class RankState(str, Enum):
    """The state of a process.

    ``SILENT`` is a process that runs, or is stopped, and whose heartbeat is too old. ``ENDED`` is one that has ended by
    itself, or has ended its telemetry, since it was first seen.
    """

    ALIVE = "alive"
    SILENT = "silent"
    DEAD = "dead"
    ENDED = "ended"


@dataclass(frozen=True)
class Rank:
    """One row: a process, its rank, and its numbers at one moment.

    Shares are between 0 and 1: of the last ten seconds, as soon as three seconds were observed, and before of the life
    of the process. A number that is not known is None.

    Attributes:
        box: The black box.
        pid: Process id, in the namespace of the process.
        host: Host name; empty if unknown.
        job: The names of the job.
        rank: ``training.rank``.
        world_size: ``training.world_size``.
        attempt: ``training.attempt``.
        state: The state of the process.
        death: How it died, in words; empty if it has not, or if that is unknown.
        seen_ns: The last sign of life, Unix ns; 0 if unknown.
        step: The last training step.
        step_age_ns: Time since the step was set; of a dead process, up to its last sign of life.
        rate: Steps per second over the last ten seconds that were observed.
        rates: Steps per second at each of the last 60 looks, the oldest first.
        step_p50: Median time of a step, seconds.
        step_p99: The time that 99 of 100 steps do not exceed, seconds.
        data: Share of time in which the training thread waited for data.
        waiting: Share of time in which the training thread waited for other ranks.
        goodput: Share of productive steps in the time of the run, over all attempts.
        value_name: The Stat or logged number that ``value`` is from; empty if there is none.
        value: Its last value; may be NaN or infinite.
        activity: Activity of the training thread; empty if unknown.
        activity_age_ns: Time since the activity began.
        stage: Stage of a step that the training thread is in.
        waits: Waits in progress, the longest first.
        event: The last event, other than logged numbers.
        problem: Why the box cannot be read, in words; empty if it can.
    """

    box: Path
    pid: int | None = None
    host: str = ""
    job: JobName = _NO_NAMES
    rank: int | None = None
    world_size: int | None = None
    attempt: int | None = None
    state: RankState = RankState.ALIVE
    death: str = ""
    seen_ns: int = 0
    step: int | None = None
    step_age_ns: int | None = None
    rate: float | None = None
    rates: tuple[float, ...] = ()
    step_p50: float | None = None
    step_p99: float | None = None
    data: float | None = None
    waiting: float | None = None
    goodput: float | None = None
    value_name: str = ""
    value: float | None = None
    activity: str = ""
    activity_age_ns: int | None = None
    stage: Stage | None = None
    waits: tuple[Wait, ...] = ()
    event: PastEvent | None = None
    problem: str = ""


@dataclass(frozen=True)
class JobRows:
    """The processes of one attempt of a job.

    Attributes:
        name: The names of the job.
        attempt: ``training.attempt``; None if unknown.
        ranks: The rows, in the order of rank and process id.
        verdict: The state of the job in one line.
    """

    name: JobName
    attempt: int | None
    ranks: tuple[Rank, ...]
    verdict: Verdict


@dataclass(frozen=True)
class Look:
    """All jobs at one moment.

    Attributes:
        time_ns: Unix ns.
        jobs: The jobs, in the order of their names.
        problems: Descriptions of boxes and folders that cannot be read. They are not printable as they are.
    """

    time_ns: int
    jobs: tuple[JobRows, ...]
    problems: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The rows of all jobs."""
        return tuple(rank for job in self.jobs for rank in job.ranks)


class Row(NamedTuple):
    """A row, and the facts behind it that other rows are compared with.

    Attributes:
        rank: The row.
        created_ns: Creation of the box, Unix ns; 0 if unknown.
        history: The totals of the process; None if its box was never read.
        step_seconds: Usual seconds from step to step; None if unknown.
        status: How the process has ended by itself; empty if it has not, or if that is unknown.
        thread: Identity of the training thread; 0 if unknown.
        process: Identity of the process, as the launcher of a job has that of its parent; empty if unknown.
        stepped: The process has set a step itself.
    """

    rank: Rank
    created_ns: int = 0
    history: History | None = None
    step_seconds: float | None = None
    status: str = ""
    thread: int = 0
    process: str = ""
    stepped: bool = True
