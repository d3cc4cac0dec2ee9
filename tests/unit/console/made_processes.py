"""Processes and a run with known numbers, and its curves."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from monitel.blackbox.process import Owner
from monitel.console.runs import Run
from monitel.runs.curves import Curve, Point
from monitel.runs.folder import identify, open_run, store, store_of
from monitel.runs.history import Attempt, History, RunTime
from monitel.runs.process import JobName, Process, StageKey, State, Total
from monitel.runs.values import RunValues

JOB = JobName("", "train", "run-7")
S, MS = 10**9, 10**6
CYCLES = 200
#: 2026-01-02 03:04:05 UTC.
START = 1_767_323_045 * S

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


def owner_of(pid: int, start: str = "7") -> Owner:
    return Owner("host", "boot", "1", f"{pid}", start)


def ended(rank: int | None = None, **fields: Any) -> Process:
    """Return a process at its end; one of a rank has the process id 100 + rank."""
    pid = 100 + (rank or 0)
    usual: dict[str, Any] = {
        "owner": owner_of(pid),
        "pid": pid,
        "job": JOB,
        "rank": rank,
        "state": State.DEAD if fields.get("death") else State.ENDED,
        "time_ns": fields.get("seen_ns", 1000 * S),
        "seen_ns": 1000 * S,
        "status": "completed",
    }
    return Process(**{**usual, **fields})


def totals(
    milliseconds: Mapping[str, float], *, group: str = "", device: bool = False, cycles: int = CYCLES
) -> dict[StageKey, Total]:
    return {StageKey(group, stage, device): Total(cycles, cycles * each / 1000) for stage, each in milliseconds.items()}


def late_ranks(**fields: Any) -> list[Process]:
    """Return the four ranks of ``LATE`` at their ends: 200 steps, 8 of them per second."""
    usual: dict[str, Any] = {"made": CYCLES, "world_size": 4, "step_time": Total(CYCLES - 1, (CYCLES - 1) / 8)}
    return [ended(rank, stages=totals(stages), **{**usual, **fields}) for rank, stages in LATE.items()]


def alive(rank: int | None, begun_s: int = 0, **changes: Any) -> Process:
    """Return a live process, whose box was made at a time after the start."""
    pid = changes.pop("pid", 4000 + (rank or 0))
    usual: dict[str, Any] = {
        "owner": owner_of(pid),
        "pid": pid,
        "host": "n04",
        "job": JOB,
        "rank": rank,
        "world_size": None if rank is None else 2,
        "box": f"/boxes/{pid}",
        "step": 9,
        "step_age_ns": S // 10,
        "started_ns": START + begun_s * S,
        "seen_ns": START + 100 * S,
        "time_ns": START + 100 * S,
    }
    return Process(**{**usual, **changes})


#: A text that leaves its place in a page, if that does not escape it.
HOSTILE = (
    "</title></style></svg>\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;\x00\x1b[2J\ud800\u202e\r\n"
)
TIMES = {"startup": 10 * S, "step": 78 * S, "data": 10 * S, "my <own>": 2 * S}


def made_run(activities: dict[str, int] | None = None, **fields: Any) -> Run:
    time = RunTime(
        "run-7", TIMES if activities is None else activities, 2, START + 100 * S, "completed", last_step=1200
    )
    return Run(time, **{"outcome": "completed", **fields})


def store_run(root: Path, run: str, attempt: Attempt, values: RunValues = RunValues()) -> Path:  # noqa: B008  frozen
    """Store a run with one attempt as a process does that ends, and return its folder; one may have no id."""
    with closing(open_run(store_of(root, identify({"training.run.id": run} if run else {})))) as folder:
        store(folder, History(RunTime(run), attempt, values))
    return folder.path


def curve(name: str, *values: float, last: float | None = None, unit: str = "", **attributes: Any) -> Curve:
    points = tuple(Point(step, each, each, each) for step, each in enumerate(values, 1))
    return Curve(name, tuple(attributes.items()), unit, points, values[-1] if last is None else last)
