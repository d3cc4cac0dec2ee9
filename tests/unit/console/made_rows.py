"""Rows of two ranks, and reports about them, with known numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monitel.blackbox.process import this_process
from monitel.console.summary.report import JobName, Report, StageTotal, Total
from monitel.console.top.period import History
from monitel.console.top.rank import Rank, Row

SECOND = 10**9
START = 1_767_323_045 * SECOND
JOB = JobName("", "llm", "run-7")
STAGES = ("optimizer", "other", "data", "forward", "backward", "sync")


def rank_of(rank: int | None, *, box: str = "", **changes: Any) -> Rank:
    """Return a live rank of two."""
    names: dict[str, Any] = {"pid": 4000 + (rank or 0), "host": "n04", "job": JOB, "rank": rank, "world_size": 2}
    return Rank(Path(box or f"/boxes/{rank}"), **{**names, "step": 9, "seen_ns": START + 100 * SECOND, **changes})


def row_of(rank: int | None, begun_s: int = 0, **changes: Any) -> Row:
    """Return a row whose box was made at a time after the start."""
    return Row(rank_of(rank, **changes), START + begun_s * SECOND)


def report_of(rank: int | None, at_s: float, steps: int, **changes: Any) -> Report:
    """Return a report about the life of a process, with steps of half a second, of which a fifth is data."""
    times = {"startup": 5 * SECOND, "data": round(steps * 0.1 * SECOND), "step": round(steps * 0.4 * SECOND)}
    stages = tuple(StageTotal(stage, "", False, Total(steps, steps * 0.5 / len(STAGES))) for stage in STAGES)
    fields: dict[str, Any] = {
        "rank": rank,
        "world_size": 2,
        "time_ns": START + round(at_s * SECOND),
        "steps": steps,
        "step_time": Total(steps, steps * 0.5),
        "stages": stages,
        "activities": times,
    }
    return Report(this_process(), JOB, **{**fields, **changes})


def history_of(*reports: Report) -> History:
    """Return a history with these reports."""
    history = History()
    for report in reports:
        history.add(report)
    return history
