"""Jobs: which processes belong together, which ranks are compared, and by which times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.console.summary.made_reports import JOB, LATE, MS, S, late_ranks, report, totals

from monitel_otlp.ledger.run_time import RunTime
from monitel_otlp.spool.lock import Owner
from monitel_otlp.summary.jobs import Job, jobs_of
from monitel_otlp.summary.report import JobName, Report, Total


def only_job(reports: list[Report]) -> Job:
    """Return the only job of some reports."""
    [job] = jobs_of(reports)
    return job


def suspects(job: Job) -> list[tuple[int, str, str, float]]:
    """Return rank, stage, group and milliseconds of each late rank."""
    return [(each.rank, each.stage, each.group, round(1000 * each.seconds, 3)) for each in job.late()]


def test_late_rank_of_a_job() -> None:
    """Rank 2 needs 30 ms more for its data than the median rank, of a cycle of 135 ms."""
    [late] = only_job(late_ranks()).late()
    assert (2, "data", "") == (late.rank, late.stage, late.group)
    assert pytest.approx(0.030) == late.seconds
    assert pytest.approx(30 / 135) == late.share


def test_processes_of_other_jobs_are_not_compared() -> None:
    """Neither those of another run, nor those of another service, nor those of another launcher without a run id."""
    ranks = late_ranks()
    for other in (JOB._replace(run="run-8"), JOB._replace(service="eval"), JOB._replace(namespace="b")):
        jobs = jobs_of([*ranks[:2], *(replace(each, job=other) for each in ranks[2:])])
        assert [2, 2] == [len(job.processes) for job in jobs]
    launched = [replace(each, job=JobName("", "train", "", f"agent {each.rank % 2}")) for each in ranks if each.rank]
    assert [["1", "3"], ["2"]] == [[f"{each.rank}" for each in job.processes] for job in jobs_of(launched)]


def test_process_with_an_unknown_launcher_belongs_to_the_job_of_its_names() -> None:
    """A black box does not hold the launcher."""
    ranks = [replace(each, job=JobName("", "train", "", "agent 1")) for each in late_ranks()]
    ranks[2] = replace(ranks[2], job=JobName("", "train"), death="killed by SIGKILL", status="")
    assert [(2, "data", "", 30.0)] == suspects(only_job(ranks))


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


@pytest.mark.parametrize(
    ("fields", "made", "rate"),
    [
        ({"steps": 90, "skipped": 10, "step_time": Total(99, 9.9)}, 100, 10.0),
        ({"first_step": 501, "last_step": 600, "activities": {"startup": 9 * S, "step": 3 * S, "data": S}}, 100, 25.0),
        (
            {
                "first_step": 1,
                "last_step": 100,
                "activities": {"step": 5 * S},
                "death": "killed",
                "time_ns": 9 * S,
                "step_ns": 8 * S,
                "observed": True,
            },
            100,
            25.0,
        ),
        ({"first_step": 3, "last_step": 1}, 1, None),
        ({"last_step": 7}, 0, None),
        ({}, 0, None),
    ],
)
def test_steps_and_their_rate(fields: dict[str, Any], made: int, rate: float | None) -> None:
    """Optimizer steps are counted; otherwise the steps that the program has set count."""
    found = report(**fields)
    assert (made, None if rate is None else pytest.approx(rate)) == (found.made, found.rate)


def test_dead_and_unfinished_processes() -> None:
    """The first death comes first."""
    ranks = late_ranks()
    ranks[1] = replace(ranks[1], death="killed by SIGKILL", status="", time_ns=3 * MS)
    ranks[3] = replace(ranks[3], death="killed by SIGABRT", status="", time_ns=2 * MS)
    ranks[0] = replace(ranks[0], status="preempted")
    job = only_job(ranks)
    assert ([3, 1], [0]) == ([each.rank for each in job.deaths], [each.rank for each in job.unfinished])
