"""Jobs of a summary: which processes belong together, which ranks are compared, by which times and numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.unit.console.made_reports import JOB, LATE, S, late_ranks, report, totals

from monitel.blackbox.forms import DEVICE_STAGE_TIME, STAGE_TIME, STEP_TIME
from monitel.blackbox.process import Owner
from monitel.console.ledger.shares import RunTime
from monitel.console.summary.jobs import Job, jobs_of
from monitel.console.summary.report import JobName, Report, StageTotal, Total, step_total


def only_job(reports: list[Report]) -> Job:
    """Return the only job of some reports."""
    [job] = jobs_of(reports)
    return job


def suspects(job: Job) -> list[tuple[int, str, str, float]]:
    """Return rank, stage, group and milliseconds of each late rank."""
    return [(each.rank, each.stage, each.group, round(1000 * each.seconds, 3)) for each in job.late()]


def test_processes_of_other_jobs_are_not_compared() -> None:
    """Neither those of another run, nor those of another service, nor those of another launcher without a run id."""
    ranks = late_ranks()
    for other in (JOB._replace(run="run-8"), JOB._replace(service="eval"), JOB._replace(namespace="b")):
        jobs = jobs_of([*ranks[:2], *(replace(each, job=other) for each in ranks[2:])])
        assert [2, 2] == [len(job.processes) for job in jobs]
    launched = [replace(each, job=JobName("", "train", "", f"agent {each.rank % 2}")) for each in ranks if each.rank]
    assert [["1", "3"], ["2"]] == [[f"{each.rank}" for each in job.processes] for job in jobs_of(launched)]


def test_last_attempt_with_steps_counts() -> None:
    """Ranks of an earlier attempt are compared with nobody."""
    earlier = [
        replace(each, attempt=0, stages=totals({**LATE[0], "forward": 500}), owner=each.owner._replace(pid="9"))
        for each in late_ranks()[:1]
    ]
    failed = [report(rank, attempt=2, status="failed", owner=Owner("h", "b", "1", f"{rank}", "9")) for rank in range(4)]
    job = only_job([*earlier, *late_ranks(attempt=1), *failed])
    assert 3 == job.attempts
    assert [(2, "data", "", 30.0)] == suspects(job)


def test_groups_are_compared_apart() -> None:
    """Ranks of another pipeline stage differ by design."""
    ranks = [
        replace(
            each, stages=totals({**LATE[each.rank or 0], "forward": 28 if index < 2 else 90}, group=f"{index // 2}")
        )
        for index, each in enumerate(late_ranks())
    ]
    assert [(2, "data", "1", 30.0)] == suspects(only_job(ranks))


def test_times_of_the_device_count_if_all_ranks_have_them() -> None:
    """Otherwise a rank on the host would be compared with ranks on the device."""
    on_device = {rank: {**LATE[0], "sync": 0 if rank == 1 else 30} for rank in LATE}
    on_device[1] = {**on_device[1], "backward": 90}
    ranks = [
        replace(each, stages=(*each.stages, *totals(on_device[each.rank or 0], device=True))) for each in late_ranks()
    ]
    assert [(1, "backward", "", 30.0)] == suspects(only_job(ranks))
    ranks[3] = replace(ranks[3], stages=totals(LATE[3]))
    assert [(2, "data", "", 30.0)] == suspects(only_job(ranks))


def test_pipelines_of_one_process_are_added_up() -> None:
    """The totals of series begin again with each pipeline; counters, steps and the ledger do not."""
    first = report(
        1, time_ns=S, steps=50, first_step=1, last_step=50, stages=totals({"data": 10}, cycles=50),
        step_time=Total(49, 4.9), activities={"step": 5},
    )  # fmt: skip
    second = report(
        1, time_ns=2 * S, steps=200, first_step=1, last_step=200, stages=totals({"data": 30}, cycles=150),
        step_time=Total(150, 15.1), activities={"step": 20}, status="failed",
    )  # fmt: skip
    [process] = only_job([second, first]).processes
    assert (200, 200, Total(199, 20.0), {"step": 20}) == (
        *(process.made, process.last_step),
        *(process.step_time, process.activities),
    )
    assert "failed" == process.status
    [stage] = process.stages
    assert 200 == stage.total.count
    assert pytest.approx(50 * 0.01 + 150 * 0.03) == stage.total.sum


def test_ledger_is_that_of_the_run() -> None:
    """Rank zero has it over all attempts. Without rank zero it is that of the first rank on this machine."""
    whole = RunTime("run-7", {"step": 3 * S, "down": S}, 4 * S, 2, 0, 4 * S, ended=True)
    ranks = late_ranks(activities={"startup": S, "step": 2 * S})
    own = only_job(ranks).time
    assert own is not None
    assert (3 * S, 1) == (own.elapsed_ns, own.attempts)
    assert whole == only_job([replace(ranks[0], run_time=whole), *ranks[1:]]).time
    longer = whole._replace(elapsed_ns=5 * S, attempts=3)
    later = replace(ranks[0], attempt=1, owner=ranks[0].owner._replace(pid="9"), run_time=longer)
    assert longer == only_job([replace(ranks[0], run_time=whole), *ranks[1:], later]).time


def test_steps_are_counted_or_those_from_first_to_last() -> None:
    """A step that falls counts as one."""
    assert 12 == report(steps=10, skipped=2, first_step=1, last_step=500).made
    assert [500, 1, 0, 0] == [
        *(report(first_step=1, last_step=500).made, report(first_step=5, last_step=1).made),
        *(report(first_step=1).made, report(last_step=500).made),
    ]


def series(name: str, count: int, seconds: float, **attributes: str) -> tuple[str, dict[str, str], Total]:
    """Return a series as a report reads it."""
    return name, {f"training.{key}": value for key, value in attributes.items()}, Total(count, seconds)


def test_series_of_one_name_are_added_up() -> None:
    """By stage, group and device. Empty totals, those that are not finite, and other series do not count."""
    step, stages = step_total(
        [
            series(STEP_TIME, 3, 1.5),
            series(STEP_TIME, 1, 0.5),
            series(STEP_TIME, 0, 9.0),
            series(STEP_TIME, 5, math.nan),
            series(STAGE_TIME, 2, 0.5, stage="data"),
            series(STAGE_TIME, 2, 0.25, stage="data"),
            series(STAGE_TIME, 2, 0.125, stage="data", group="first"),
            series(DEVICE_STAGE_TIME, 2, 4.0, stage="data"),
            series(STAGE_TIME, 2, 8.0, group="first"),
            series("loss", 2, 8.0, stage="data"),
        ]
    )
    assert Total(4, 2.0) == step
    assert {
        StageTotal("data", "", False, Total(4, 0.75)),
        StageTotal("data", "first", False, Total(2, 0.125)),
        StageTotal("data", "", True, Total(2, 4.0)),
    } == {*stages}
