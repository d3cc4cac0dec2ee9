"""Jobs made of rows: their order, the rows that are replaced, and the facts of their verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.console.made_rows import SECOND, START, history_of, rank_of, report_of, row_of

from monitel.blackbox.activity import Stage
from monitel.console.autopsy.findings import Wait
from monitel.console.summary.report import JobName
from monitel.console.top.jobs import jobs_of, replaced, with_launchers
from monitel.console.top.rank import RankState, Row

if TYPE_CHECKING:
    from monitel.console.verdict.rules import Verdict


@pytest.mark.parametrize(
    ("later", "stays"),
    [
        (row_of(1, 200, pid=77, box="/boxes/new"), False),  # the same rank
        (row_of(0, 200, attempt=1), False),  # a later attempt
        (row_of(0, 170), False),  # the job has begun again
        (row_of(0, 150), True),  # it may belong to the same start
        (row_of(1, 50, pid=77), True),  # a helper of the rank, which was made while the rank still ran
    ],
)
def test_row_of_a_dead_process_is_replaced_by_a_later_one(later: Row, stays: bool) -> None:
    """Not by another job, and not by another rank of the same start. A live process is never replaced."""
    dead, live = (row_of(1, state=state) for state in (RankState.DEAD, RankState.ALIVE))
    assert ([] if stays else [dead]) == replaced([dead, later])
    assert [] == replaced([live, later])


def launched(rank: int, launcher: str, begun_s: int = 0, process: str = "", **changes: Any) -> Row:
    """Return a row of a job without a run id, with the launcher and the process as identities."""
    job = JobName("", "llm", "", launcher)
    names = {"job": job, "box": f"/boxes/{launcher}-{rank}-{process}", "pid": 5000 + rank + begun_s}
    return row_of(rank, begun_s, **names, **changes)._replace(process=process)


def test_launchers_tell_jobs_apart_that_have_the_same_ranks() -> None:
    """Otherwise they may be the shells around the ranks of one job."""

    def ranks(*rows: Row) -> list[list[int | None]]:
        return [[each.rank for each in job.ranks] for job in jobs_of(with_launchers(rows))]

    assert [[0, 1], [0, 1]] == ranks(launched(0, "a"), launched(0, "b"), launched(1, "a"), launched(1, "b"))
    assert [[0, 1]] == ranks(launched(0, "shell 1"), launched(1, "shell 2"))
    assert [[0, 1]] == ranks(launched(0, "a"), launched(1, ""))
    child = launched(1, "p", process="c")
    assert [[0, 1, 1, 1]] == ranks(launched(0, "a"), launched(1, "a", process="p"), child, launched(1, "c"))
    assert [[0], [0]] == ranks(launched(0, "loop", process="loop"), launched(0, "b"))


def test_verdict_is_about_the_last_minute() -> None:
    """In its life the process has waited for data for a third of the time, and not any more."""
    reports = [
        report_of(None, at_s, steps, stages=(), activities={"data": 100 * SECOND, "step": step_ns})
        for at_s, steps, step_ns in ((200, 400, 100 * SECOND), (250, 500, 150 * SECOND))
    ]
    rank = rank_of(None, world_size=None, step_age_ns=SECOND // 2)
    for history, kind in ((history_of(*reports), "healthy"), (history_of(reports[-1]), "input-bound")):
        (job,) = jobs_of([Row(rank, START, history, 0.5)])
        assert kind == job.verdict.kind


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
        (19, (180, 0), "input-bound"),
    ],
)
def test_period_has_twenty_steps(steps: int, ages: tuple[int, ...], kind: str) -> None:
    """The last minute, otherwise the last three. Before it half of the time was data, and in it nothing is."""
    reports = [report_at(1000 - age, 900 + (0 if age else steps), 400) for age in ages]
    assert kind == verdict_of(alone(*reports)).kind


def test_forked_child_has_no_step_of_its_parent() -> None:
    """With that step the child would seem to stand still."""
    parent = alone(report_of(None, 50, 0, activities={}), step=9, step_age_ns=900 * SECOND)
    assert "no-steps" == verdict_of(parent).kind
    found = verdict_of(parent._replace(stepped=False))
    assert ("unknown", True) == (found.kind, "no step was set" in found.text)


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
