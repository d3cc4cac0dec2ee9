"""Jobs: the processes that belong together, those that are replaced, late ranks, and the facts of a verdict."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.console.made_processes import JOB, LATE, START, S, alive, ended, late_ranks, owner_of, totals

from monitel.blackbox.activity import Wait
from monitel.console.job import Job, jobs_of, replaced, with_pool_workers_completed
from monitel.console.period import Looks, over_a_period
from monitel.console.verdict import Verdict
from monitel.runs.history import RunTime
from monitel.runs.process import JobName, Process, State
from monitel.training.activities import Stage


def only_job(processes: list[Process]) -> Job:
    [job] = jobs_of(processes)
    return job


def test_processes_of_other_jobs_are_not_compared() -> None:
    """Neither those of another run, nor those of another service, namespace or attempt."""
    ranks = late_ranks()
    others: list[dict[str, Any]] = [
        *({"job": JOB._replace(**name)} for name in ({"run": "run-8"}, {"service": "eval"}, {"namespace": "b"})),
        {"attempt": 1},
    ]
    for other in others:
        jobs = jobs_of([*ranks[:2], *(replace(each, **other) for each in ranks[2:])])
        assert [2, 2] == [len(job.processes) for job in jobs]


def test_process_that_ends_before_it_has_a_name_belongs_to_the_only_job_of_its_run() -> None:
    unnamed = ended(1, job=JobName("", "unknown_service:python", "run-7"))
    assert [JOB] == [job.name for job in jobs_of([ended(0), unnamed])]
    others = [ended(0), ended(2, job=JOB._replace(service="eval")), unnamed]
    assert 3 == len(jobs_of(others)) == len(jobs_of([ended(0), unnamed.but(job=unnamed.job._replace(run="run-8"))])) + 1


def launched(rank: int | None, parent: str, pid: int, begun_s: int = 0, **changes: Any) -> Process:
    """Return a live process of a job without a run id; ``parent`` is the name of a shell, or a process id."""
    parent = f"{parent}-7" if parent.isdecimal() else parent
    return alive(rank, begun_s, job=JobName("", "llm"), parent=parent, pid=pid, **changes)


@pytest.mark.parametrize(
    ("processes", "jobs"),
    [
        ([(0, "a", 1), (0, "b", 2), (1, "a", 3), (1, "b", 4)], [[0, 1], [0, 1]]),
        ([(0, "shell 1", 1), (1, "shell 2", 2)], [[0, 1]]),
        ([(0, "a", 1), (1, "", 2)], [[0, 1]]),
        ([(0, "a", 1), (1, "a", 2), (1, "2", 3), (1, "3", 4)], [[0, 1, 1, 1]]),  # children
        ([(0, "loop", 1), (0, "b", 2)], [[0], [0]]),
        ([(0, "a", 1), (1, "1", 2), (0, "b", 3), (1, "3", 4)], [[0, 1], [0, 1]]),  # rank 0 has started the others
        ([(None, "a", 1), (None, "a", 2)], [[None], [None]]),
        ([(None, "a", 1), (None, "1", 2)], [[None, None]]),  # a helper
        ([(0, "a", 1), (None, "1", 2)], [[None, 0]]),
        ([(None, "a", 1), (1, "1", 2)], [[None, 1]]),  # it has become rank 0 after its record began
    ],
)
def test_ranks_share_a_job_without_a_run_id(processes: list[tuple[Any, ...]], jobs: list[list[int | None]]) -> None:
    """Launchers tell jobs apart that have the same ranks. Otherwise they may be shells around the ranks of one job."""
    found = [[each.rank for each in job.processes] for job in jobs_of([launched(*each) for each in processes])]
    assert jobs == found


@pytest.mark.parametrize(
    ("later", "stays"),
    [
        (alive(1, 200, pid=77), False),  # the same rank
        (alive(0, 200, attempt=1), False),  # a later attempt
        (alive(0, 170), False),  # the job has begun again
        (alive(0, 150), True),  # it may belong to the same start
        (alive(1, 50, pid=77), True),  # a helper of the rank, which was made while the rank still ran
    ],
)
def test_dead_process_is_replaced_by_a_later_one(later: Process, stays: bool) -> None:
    """Not by another job, and not by another rank of the same start. A live process is never replaced."""
    dead, live = (alive(1, state=state) for state in (State.DEAD, State.ALIVE))
    assert ([] if stays else [dead]) == replaced([dead, later])
    assert [] == replaced([live, later])


@pytest.mark.parametrize("launcher", ["a", "b"])
def test_death_in_a_job_that_runs_is_not_hidden_by_another_job_of_its_name(launcher: str) -> None:
    """Without a run id the launcher decides; if all of its processes have ended, another one has begun it again."""
    dead, later = launched(1, "a", 1, state=State.DEAD), launched(1, launcher, 3, 200)
    for others, hidden in (([launched(0, "a", 2)], launcher == "a"), ([], True)):
        assert ([dead] if hidden else []) == replaced([dead, *others, later])


@pytest.mark.parametrize("place", ["namespace", "boot"])
def test_helper_belongs_to_the_job_of_its_container(place: str) -> None:
    """In containers that start together, and on machines, processes have the same ids and start times."""
    containers = []
    for name in range(3):
        root, helper = launched(None, "0", 1), launched(None, "1", 2)
        owners = [owner_of(number)._replace(**{place: f"pid:[{name}]"}) for number in (1, 2)]
        containers.append([each.but(owner=of, box=f"/{name}") for each, of in zip((root, helper), owners, strict=True)])
    jobs = jobs_of([each for of in zip(*containers, strict=True) for each in of])
    assert [1, 1, 1] == [len({getattr(each.owner, place) for each in job.processes}) for job in jobs]
    helper = containers[1][1].but(state=State.DEAD, death="killed by SIGTERM")
    assert ["killed by SIGTERM", ""] == [
        next(each.death for each in with_pool_workers_completed([of[0], helper]) if each.pid == 2)
        for of in containers[:2]
    ]


def test_helper_that_has_inherited_the_rank_is_not_the_rank() -> None:
    """A helper that fails beside a rank that completes is named by its process id, and the verdict does not change."""
    rank = replace(launched(1, "a", 1), made=30, step=30, state=State.ENDED, status="completed")
    helper = replace(launched(1, "1", 2), state=State.ENDED, status="failed")
    (job,) = jobs_of([rank, helper])
    assert [None] == [each.rank for each in job.unfinished]
    assert "failed" != job.verdict.kind


def test_times_of_the_device_count_if_all_ranks_have_them() -> None:
    """Otherwise a rank on the host would be compared with ranks on the device."""
    on_device = {rank: {**LATE[0], "sync": 0 if rank == 1 else 30} for rank in LATE}
    on_device[1] = {**on_device[1], "backward": 90}
    ranks = [
        replace(each, stages={**each.stages, **totals(on_device[each.rank or 0], device=True)}) for each in late_ranks()
    ]
    verdict = only_job(ranks).verdict
    assert (1, "backward") == (verdict.rank, verdict.stage)
    ranks[3] = replace(ranks[3], stages=totals(LATE[3]))
    verdict = only_job(ranks).verdict
    assert (2, "data") == (verdict.rank, verdict.stage)


def test_ledger_is_that_of_the_run() -> None:
    """Rank zero has it over all attempts. Without rank zero it is that of the first rank on this machine."""
    whole = RunTime("run-7", {"step": 3 * S, "down": S}, 2, 4 * S)
    ranks = late_ranks(activities={"startup": S, "step": 2 * S})
    own = only_job(ranks).time
    assert own is not None
    assert (3 * S, 1) == (own.elapsed_ns, own.attempts)
    assert whole == only_job([replace(ranks[0], run_time=whole), *ranks[1:]]).time


def verdict_of(process: Process, *lives: Process) -> Verdict:
    """Return the verdict about a process whose snapshots were seen one after the other."""
    looks = Looks()
    for life in lives:
        looks.add(life)
    (job,) = jobs_of(over_a_period([process], {process.box: looks}))
    return job.verdict


def life_at(at_s: float, steps: int, data_s: int) -> Process:
    """Return a process without stages: the seconds that are not data are steps."""
    times = {"data": data_s * S, "step": round(at_s - data_s) * S}
    return alive(None, time_ns=START + round(at_s * S), made=steps, step_p50=0.5, activities=times)


@pytest.mark.parametrize(
    ("steps", "seconds", "kind"), [(20, 60, "healthy"), (19, 60, "input-bound"), (20, 180, "healthy")]
)
def test_period_has_twenty_steps(steps: int, seconds: int, kind: str) -> None:
    """The last minute, or the last three, otherwise the life. Before it half of the time was data, in it nothing is."""
    begin = 1000 - seconds
    lives = [life_at(begin + age, 900 + steps * age // seconds, 400) for age in range(0, seconds + 1, 2)]
    assert kind == verdict_of(lives[-1], *lives).kind


def still(**changes: Any) -> Process:
    return alive(None, made=100, step_p50=0.5, step_age_ns=100 * S, activities={"step": 90 * S}, **changes)


@pytest.mark.parametrize(("thread", "known"), [(0, True), (5, True), (7, False)])
def test_waits_and_stage_are_those_of_the_training_thread(thread: int, known: bool) -> None:
    """An unknown training thread may be any thread; a wait without a thread may be that of the training."""
    waits = still(waits=(Wait("share", 99 * S, 5),), thread=thread)
    assert ("stuck" if known else "no-steps") == verdict_of(waits).kind
    assert "stuck" == verdict_of(still(waits=(Wait("share", 99 * S, 0),), thread=thread)).kind
    stage = still(stage=Stage("forward", False, 99 * S, 5), thread=thread)
    assert known == ("forward" in verdict_of(stage).text)
