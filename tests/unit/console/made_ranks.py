"""Rows of jobs that never ran, with known numbers, and a source of looks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitel.blackbox.activity import Wait
from monitel.console.job import Job
from monitel.console.live import Look
from monitel.console.process import JobName, PastEvent, Process, State
from monitel.console.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

SECOND = 10**9
#: 2026-01-02 03:04:05 UTC.
NOW = 1_767_323_045 * SECOND
JOB = JobName("", "llm", "run-7")
HEALTHY = Verdict("healthy", "healthy: all 4 ranks make progress, 8.25 steps/s")


def rank_of(number: int | None, **changes: Any) -> Process:
    """Return the row of a live rank of four, with a value in each column."""
    row: dict[str, Any] = {
        "box": Path(f"/boxes/{number}"),
        "pid": 4000 + (number or 0),
        "host": "n04",
        "job": JOB,
        "rank": number,
        "world_size": 4,
        "seen_ns": NOW,
        "step": 1200,
        "step_age_ns": SECOND // 10,
        "rate": 8.25,
        "step_p50": 0.1203,
        "step_p99": 0.155,
        "data": 0.05,
        "waiting": 0.004,
        "goodput": 0.91,
        "value_name": "train.loss",
        "value": 2.25,
        "activity": "step",
        "activity_age_ns": SECOND // 20,
        "event": PastEvent(NOW - 120 * SECOND, 9, "checkpoint.saved", {}),
    }
    return Process(**{**row, **changes})


def dead_rank(number: int, **changes: Any) -> Process:
    """Return the row of a rank that SIGKILL has ended 4 seconds ago."""
    return rank_of(number, state=State.DEAD, death="killed by SIGKILL", seen_ns=NOW - 4 * SECOND, **changes)


def waiting_rank(number: int, seconds: float, key: str = "all_reduce", **changes: Any) -> Process:
    """Return the row of a rank in a wait."""
    return rank_of(number, waits=(Wait(key, round(seconds * SECOND)),), **changes)


def look_at(*ranks: Process, verdict: Verdict = HEALTHY, problems: Sequence[str] = ()) -> Look:
    """Return a look at jobs: one for each name, in the order of the rows."""
    names = dict.fromkeys(rank.job for rank in ranks)
    jobs = [Job(name, None, tuple(rank for rank in ranks if rank.job == name)) for name in names]
    for job in jobs:
        job.verdict = verdict
    return Look(NOW, tuple(jobs), tuple(problems))
