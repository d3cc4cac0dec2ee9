"""Reports with known numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monitel.blackbox.process import Owner
from monitel.console.summary.report import JobName, Report, StageTotal, Total

if TYPE_CHECKING:
    from collections.abc import Mapping

JOB = JobName("", "train", "run-7", "")
S, MS = 10**9, 10**6
CYCLES = 200

#: Milliseconds of the stages of four ranks: rank 2 needs 30 ms more for its data, for which the others wait.
LATE: dict[int, dict[str, float]] = {
    rank: {
        "optimizer": 5,
        "other": 2,
        "data": 40 if rank == 2 else 10,
        "forward": 28,
        "backward": 60,
        "sync": 0 if rank == 2 else 30,
    }
    for rank in range(4)
}


def report(rank: int | None = None, **fields: Any) -> Report:
    """Return the report of a process; one of a rank has the process id 100 + rank."""
    usual: dict[str, Any] = {
        "owner": Owner("host", "boot", "1", f"{100 + (rank or 0)}", "7"),
        "job": JOB,
        "rank": rank,
        "time_ns": 1000 * S,
        "status": "completed",
    }
    return Report(**{**usual, **fields})


def totals(
    milliseconds: Mapping[str, float], *, group: str = "", device: bool = False, cycles: int = CYCLES
) -> tuple[StageTotal, ...]:
    """Return the totals of stages that take these times in each cycle."""
    return tuple(
        StageTotal(stage, group, device, Total(cycles, cycles * each / 1000)) for stage, each in milliseconds.items()
    )


def late_ranks(**fields: Any) -> list[Report]:
    """Return the reports of the four ranks of ``LATE``: 200 steps, 8 of them per second."""
    usual: dict[str, Any] = {"steps": CYCLES, "world_size": 4, "step_time": Total(CYCLES - 1, (CYCLES - 1) / 8)}
    return [report(rank, stages=totals(stages), **{**usual, **fields}) for rank, stages in LATE.items()]
