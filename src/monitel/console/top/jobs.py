"""The jobs among the rows, each with its verdict."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from monitel.console.summary.jobs import Job, longest_of, stages_of
from monitel.console.top.period import Usual
from monitel.console.top.rank import JobRows, RankState
from monitel.console.verdict.facts import RankFacts
from monitel.console.verdict.rules import verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence
    from pathlib import Path

    from monitel.console.summary.report import JobName
    from monitel.console.top.period import History
    from monitel.console.top.rank import Rank, Row
    from monitel.console.verdict.lateness import Times

_STARTS_NS = 60 * 10**9  # within which the ranks of a job begin
_PERIODS_NS = 60 * 10**9, 180 * 10**9
_ENOUGH_STEPS = 20  # in a period
_OVER = {RankState.DEAD, RankState.ENDED}
_BEATS_NS = 2 * 10**9  # within which a process sends a heartbeat: it may have lived longer than the last one shows


def replaced(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of ended processes whose place another process has taken.

    The other process was made after the end of this one. It is the same rank, a later attempt, or the same process with
    another box; or the job has begun again more than a minute after the process had ended. It may have another launcher
    if no process of this one's launcher runs any more.
    """
    newest: dict[tuple[object, ...], int] = {}
    attempts: dict[JobName, int] = {}
    for row in rows:
        rank = row.rank
        for job in (rank.job, rank.job._replace(launcher="")):
            for place in _places(rank, job):
                newest[place] = max(newest.get(place, 0), row.created_ns)
            if rank.rank is not None:
                attempts[job] = max(attempts.get(job, 0), rank.attempt or 0)
    running = {row.rank.job for row in rows if row.rank.state not in _OVER}
    return [row for row in rows if row.rank.state in _OVER and _is_replaced(row, newest, attempts, running)]


def _is_replaced(
    row: Row, newest: Mapping[tuple[object, ...], int], attempts: Mapping[JobName, int], running: Container[JobName]
) -> bool:
    rank = row.rank
    job = rank.job if rank.job in running else rank.job._replace(launcher="")
    after_ns = max(row.created_ns, rank.seen_ns + _BEATS_NS)
    if any(newest[place] > after_ns for place in _places(rank, job) if place[0] != "job"):
        return True
    if rank.rank is None:
        return False
    return attempts[job] > (rank.attempt or 0) or rank.seen_ns + _STARTS_NS < newest["job", job]


def _places(rank: Rank, job: JobName) -> list[tuple[object, ...]]:
    places: list[tuple[object, ...]] = [("process", rank.host, rank.pid)]
    if rank.rank is not None:
        places += [("rank", job, rank.rank), ("job", job)]
    return places


def jobs_of(rows: Iterable[Row]) -> tuple[JobRows, ...]:
    """Return the jobs in the order of their names. A process without a rank is a job."""
    jobs: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        rank = row.rank
        alone = () if rank.rank is not None else (rank.host, rank.pid or 0, str(rank.box))
        jobs.setdefault((*rank.job[:3], rank.attempt or 0, *alone), []).append(row)
    return tuple(_job(each) for key in sorted(jobs) for each in by_launcher(jobs[key]))


def _job(rows: list[Row]) -> JobRows:
    rows.sort(key=lambda row: (row.rank.rank or 0, row.rank.pid or 0, row.created_ns))
    first = rows[0].rank
    periods = _periods([row for row in rows if row.history is not None])
    stages = Job(first.job, [each.report for each in periods.values() if each.report is not None]).compared()
    known = [row for row in rows if row.history is not None or row.rank.state in _OVER]
    facts = [_facts(row, periods.get(row.rank.box, Usual()), stages) for row in known]
    return JobRows(first.job, first.attempt, tuple(row.rank for row in rows), verdict(facts))


def _periods(rows: Sequence[Row]) -> dict[Path, Usual]:
    """Return one period of all processes by box.

    It is the last minute, or the last three, if all processes that run have made twenty steps in it; otherwise the life
    of the processes.
    """
    for period_ns in _PERIODS_NS:
        found = _of(rows, lambda history: history.usual(period_ns))  # noqa: B023  called before the next period
        running = [row.rank.box for row in rows if row.rank.state not in _OVER]
        if running and all(box in found and found[box].steps >= _ENOUGH_STEPS for box in running):
            return found
    return _of(rows, lambda history: None if history.life is None else Usual(history.life))


def _of(rows: Iterable[Row], period_of: Callable[[History], Usual | None]) -> dict[Path, Usual]:
    found = {row.rank.box: period_of(row.history) for row in rows if row.history is not None}
    return {box: period for box, period in found.items() if period is not None}


def _facts(row: Row, period: Usual, stages: Mapping[str, Times]) -> RankFacts:
    rank, report, now_ns = row.rank, period.report, time.time_ns()
    runs = rank.state not in _OVER
    life_rate = None if runs or report is None else report.rate
    return RankFacts(
        pid=str(rank.pid),
        rank=rank.rank,
        world_size=rank.world_size,
        state=rank.state.value,
        death=rank.death,
        status=row.status,
        seen_ns=rank.seen_ns,
        silent_ns=max(now_ns - rank.seen_ns, 0) if rank.seen_ns and rank.state is not RankState.ALIVE else None,
        age_ns=max(now_ns - row.created_ns, 0) if runs and row.created_ns else None,
        step=rank.step if row.stepped else None,
        step_age_ns=rank.step_age_ns if row.stepped else None,
        steps=0 if report is None else report.made,
        step_seconds=row.step_seconds,
        rate=rank.rate if runs else life_rate,
        longest_step=0.0 if report is None else report.step_time.largest,
        activities={} if report is None else report.activities,
        activity=rank.activity,
        activity_age_ns=rank.activity_age_ns,
        stage=None if rank.stage is None or row.thread not in {0, rank.stage.thread} else rank.stage,
        recompilations=0 if report is None else report.recompilations,
        recompiling_ns=0 if report is None else report.recompiling_ns,
        stages={} if report is None else stages_of(report, stages),
        longest={} if report is None else longest_of(report),
        data=period.data,
        waits=[wait for wait in rank.waits if not row.thread or wait.thread in {0, row.thread}],
    )


def with_launchers(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, each with the launcher of its job: a forked child has the launcher of its parent."""
    processes = {row.process: row for row in rows if row.process}
    return [_renamed(row, _launcher(row, processes)) for row in rows]


def by_launcher(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the jobs among the rows of one attempt of jobs with the same names.

    The launchers distinguish jobs only if two of them have started the same rank. Otherwise each rank may have a shell
    for a parent, or the parent may be unknown.
    """
    started = {(row.rank.rank, row.rank.job.launcher) for row in rows if row.rank.job.launcher}
    if len(started) == len({rank for rank, _ in started}):
        return [[*rows]]
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.rank.job.launcher, []).append(row)
    return [*found.values()]


def _launcher(row: Row, processes: Mapping[str, Row]) -> str:
    seen = {""}
    launcher = row.rank.job.launcher
    while launcher not in seen and (parent := processes.get(launcher)) is not None:
        if (parent.rank.rank, _names(parent)) != (row.rank.rank, _names(row)):
            break
        seen.add(launcher)
        launcher = parent.rank.job.launcher
    return launcher


def _names(row: Row) -> tuple[str, ...]:
    return row.rank.job[:3]


def _renamed(row: Row, launcher: str) -> Row:
    if launcher == row.rank.job.launcher:
        return row
    return row._replace(rank=replace(row.rank, job=row.rank.job._replace(launcher=launcher)))
