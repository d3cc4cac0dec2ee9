"""The facts of a verdict about rows: over which period, of which rows, and of which thread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.console.top.made_rows import JOB, SECOND, START, history_of, rank_of, report_of, row_of

from monitel_otlp.autopsy.findings import Wait
from monitel_otlp.black_box.activity import Stage
from monitel_otlp.summary.report import JobName
from monitel_otlp.top import jobs
from monitel_otlp.top.compared_row import Row
from monitel_otlp.top.jobs import jobs_of, replaced
from monitel_otlp.top.period import History
from monitel_otlp.top.rank import RankState

if TYPE_CHECKING:
    from monitel_otlp.verdict.rules import Verdict


def verdict_of(*rows: Row) -> Verdict:
    """Return the verdict about the rows of one job."""
    (job,) = jobs_of(rows)
    return job.verdict


def alone(*reports: Any, step_seconds: float | None = 0.5, **changes: Any) -> Row:
    """Return the row of a process without a rank."""
    usual = {"world_size": None, "step_age_ns": SECOND // 10}
    return Row(rank_of(None, **{**usual, **changes}), START, history_of(*reports), step_seconds)


def report_at(at_s: float, steps: int, data_s: int, rank: int | None = None) -> Any:
    """Return a report without stages: the seconds that are not data are steps."""
    times = {"data": data_s * SECOND, "step": round(at_s - data_s) * SECOND}
    return report_of(rank, at_s, steps, stages=(), activities=times)


@pytest.mark.parametrize(
    ("steps", "ages", "kind"),
    [
        (20, (60, 0), "healthy"),
        (19, (60, 0), "input-bound"),  # the life of the process
        (20, (61, 59, 0), "healthy"),  # the first report within the minute
        (20, (180, 0), "healthy"),
        (19, (180, 0), "input-bound"),
    ],
)
def test_period_has_twenty_steps(steps: int, ages: tuple[int, ...], kind: str) -> None:
    """The last minute, otherwise the last three. Before it half of the time was data, and in it nothing is."""
    reports = [report_at(1000 - age, 900 + (0 if age else steps), 400) for age in ages]
    assert kind == verdict_of(alone(*reports)).kind


def test_period_is_a_minute_where_that_is_enough() -> None:
    """The time before it counts only where the minute has too few steps."""
    reports = report_at(1000 - 150, 500, 300), report_at(1000 - 60, 900, 380), report_at(1000 - 30, 910, 380)
    for steps, kind in ((920, "healthy"), (919, "input-bound")):
        assert kind == verdict_of(alone(*reports, report_at(1000, steps, 380))).kind


def test_all_running_ranks_need_the_steps() -> None:
    """A rank that has ended does not; its period would begin before the others'."""
    before, now = report_at(940, 900, 400, 0), report_at(1000, 920, 400, 0)
    few = report_at(1000, 919, 400, 1)
    first = Row(rank_of(0, step_age_ns=0), START, history_of(before, now), 0.5)
    second = Row(rank_of(1, step_age_ns=0), START, history_of(before, few), 0.5)
    assert "input-bound" == verdict_of(first, second).kind
    over = second._replace(rank=rank_of(1, state=RankState.ENDED), status="completed")
    assert "input-bound" != verdict_of(first, over).kind


def test_silence_lasts_until_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence begins with the last sign of life. Ten seconds are a verdict."""
    silent = alone(report_of(None, 50, 100), state=RankState.SILENT)  # seen 100 seconds after the start
    for seconds, kind in ((110, "silent"), (109, "healthy"), (90, "healthy")):
        monkeypatch.setattr(jobs, "time", SimpleNamespace(time_ns=lambda at=seconds: START + at * SECOND))
        found = verdict_of(silent)
        assert kind == found.kind
        if kind == "silent":
            assert 10.0 == found.seconds


def test_forked_child_has_no_step_of_its_parent() -> None:
    """With that step the child would seem to stand still."""
    parent = alone(report_of(None, 50, 0, activities={}), step=9, step_age_ns=900 * SECOND)
    assert "no-steps" == verdict_of(parent).kind
    found = verdict_of(parent._replace(stepped=False))
    assert ("unknown", True) == (found.kind, "no step was set" in found.text)


def test_dead_process_of_a_spool_has_a_verdict() -> None:
    """A box that was never read has no history: nothing is known about a process that runs."""
    dead = Row(rank_of(0, state=RankState.DEAD, death="killed by SIGKILL", world_size=None))
    assert ("dead", 0) == verdict_of(dead)[:3:2]
    new = Row(rank_of(1, world_size=None, step_age_ns=900 * SECOND))
    trains = Row(rank_of(0, world_size=None, step_age_ns=0), START, history_of(report_of(0, 50, 100)), 0.5)
    assert "healthy" == verdict_of(trains, new).kind


def test_recompilations_of_the_period_count() -> None:
    """Compilations in the first minutes are usual."""
    first = {"compile": 300 * SECOND}
    before = report_of(None, 940, 900, recompilations=40, recompiling_ns=300 * SECOND, activities=first)
    later = {"compile": 320 * SECOND, "step": 40 * SECOND}
    for number, kind in ((43, "compile-storm"), (42, "healthy")):
        now = report_of(None, 1000, 920, recompilations=number, recompiling_ns=320 * SECOND, activities=later)
        assert kind == verdict_of(alone(before, now)).kind


@pytest.mark.parametrize(("thread", "known"), [(0, True), (5, True), (7, False)])
def test_waits_and_stage_are_those_of_the_training_thread(thread: int, known: bool) -> None:
    """An unknown training thread may be any thread; a wait without a thread may be that of the training."""
    still: dict[str, Any] = {"step_age_ns": 100 * SECOND}
    waits = alone(report_of(None, 50, 100), waits=(Wait("share", 99 * SECOND, 5),), **still)
    assert ("stuck" if known else "no-steps") == verdict_of(waits._replace(thread=thread)).kind
    anybody = alone(report_of(None, 50, 100), waits=(Wait("share", 99 * SECOND, 0),), **still)
    assert "stuck" == verdict_of(anybody._replace(thread=thread)).kind
    stage = alone(report_of(None, 50, 100), stage=Stage("forward", False, 99 * SECOND, 5), **still)
    assert known == ("forward" in verdict_of(stage._replace(thread=thread)).text)


@pytest.mark.parametrize(
    ("later", "stays"),
    [
        (row_of(1, 102, box="/boxes/new"), True),  # it has begun no later than two seconds after the last sign of life
        (row_of(1, 103, box="/boxes/new"), False),
        (row_of(0, 160), True),  # a minute after it
        (row_of(0, 161), False),
        (row_of(None, 103, pid=4001, box="/boxes/new"), False),  # the same process id
        (row_of(None, 103, pid=4001, host="n05"), True),
    ],
)
def test_dead_process_may_have_lived_longer_than_its_last_sign_of_life(later: Row, stays: bool) -> None:
    """A heartbeat comes every second. All ranks of a job begin within a minute."""
    dead = row_of(1, state=RankState.DEAD)
    assert ([] if stays else [dead]) == replaced([dead, later])


def test_newest_of_several_rows_replaces() -> None:
    """In any order, and next to attempts that are not known."""
    dead, helper = row_of(1, state=RankState.DEAD, attempt=1), row_of(None, 300, pid=9, box="/boxes/helper")
    again, earlier = row_of(1, 200, pid=8, attempt=1, box="/boxes/8"), row_of(1, 20, pid=7, attempt=0, box="/boxes/7")
    for rows in ([dead, again, earlier, helper], [earlier, helper, again, dead]):
        assert [dead] == replaced(rows)
    assert [] == replaced([dead, earlier, helper])
    other = row_of(0, 50, attempt=2)
    for rows in ([dead, other, row_of(0, 20, attempt=1)], [row_of(0, 20, attempt=1), other, dead]):
        assert [dead] == replaced(rows)
    lonely = row_of(None, state=RankState.DEAD, job=JobName("", "eval"))
    assert [] == replaced([lonely, helper])


def test_attempts_and_runs_are_jobs() -> None:
    """Ranks of two attempts are not compared; no attempt is the first one."""
    rows = [row_of(0, attempt=1), row_of(1), row_of(0, attempt=0), row_of(0, job=JOB._replace(run="run-8"))]
    found = [(job.name.run, job.attempt, [each.rank for each in job.ranks]) for job in jobs_of(rows)]
    assert [("run-7", None, [0, 1]), ("run-7", 1, [0]), ("run-8", None, [0])] == [
        (run, attempt or None, ranks) for run, attempt, ranks in found
    ]


def test_rate_is_that_of_the_column() -> None:
    """Not the inverse of the usual step of all time. After the end it is that of the life."""
    running = alone(report_of(None, 50, 100), step_seconds=0.05, rate=3.17)
    assert "healthy: 3.17 steps/s, 17 % waiting for data" == verdict_of(running).text
    over = alone(report_of(None, 50, 100), state=RankState.ENDED)._replace(status="completed", step_seconds=0.05)
    assert "healthy: 2.00 steps/s, 17 % waiting for data" == verdict_of(over).text


def test_process_that_has_no_cut_yet_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second later its activity is known."""
    monkeypatch.setattr(jobs, "time", SimpleNamespace(time_ns=lambda: START + SECOND // 2))
    new = Row(rank_of(None, world_size=None, step=None), START, History(), stepped=False)
    assert "starting: process 4000 has been starting for 0.5 s" == verdict_of(new).text
