"""Times and numbers in the verdict about a job that stands still: of several ranks, and beside its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.console.verdict.simulated_jobs import S, ended, hanging, training, wait

from monitel_otlp.verdict.rules import verdict


def test_longest_silence_is_reported() -> None:
    """Others are mentioned only if none of them makes steps."""
    job = [hanging(rank, 4, 40.0) for rank in range(4)]
    job[1] = replace(job[1], state="silent", silent_ns=20 * S)
    job[2] = replace(job[2], state="silent", silent_ns=39 * S)
    found = verdict(job)
    assert "silent: ranks 1 and 2 have run no Python code for 39 s; ranks 0 and 3 make no steps" == found.text
    assert (None, 39.0) == (found.rank, found.seconds)
    job[3] = training(3, 4)
    assert "silent: ranks 1 and 2 have run no Python code for 39 s" == verdict(job).text


def test_longest_time_of_several_ranks_is_reported() -> None:
    """In one activity, and in one wait; an unknown time does not count."""
    times = (44 * S, None, 59 * S, 50 * S)
    job = [hanging(rank, 4, activity="evaluation", activity_age_ns=time_ns) for rank, time_ns in enumerate(times)]
    assert "paused: ranks 0-3 have been in evaluation for 59 s" == verdict(job).text
    unknown = [replace(each, activity_age_ns=None) for each in job]
    assert "paused: ranks 0-3 have been in evaluation" == verdict(unknown).text
    waits = [hanging(rank, 4, waits=[wait("all_reduce", 40.0 + 5 * rank)]) for rank in range(4)]
    assert "stuck: ranks 0-3 have waited in all_reduce for 55 s" == verdict(waits).text
    both = [replace(each, waits=[*each.waits, wait("share", 58.0 - rank)]) for rank, each in enumerate(waits)]
    assert "stuck: ranks 0-3 have waited in share for 58 s" == verdict(both).text


def test_three_ranks_are_listed_one_by_one() -> None:
    """The others are counted."""
    keys = ("share", "all_reduce", "barrier", "queue", "store")
    text = "stuck: rank 0 has waited in share for 50 s, rank 1 has waited in all_reduce for 51 s, "
    text += "rank 2 has waited in barrier for 52 s"
    for ranks, more in ((3, ""), (4, ", 1 more"), (5, ", 2 more")):
        job = [hanging(rank, ranks, waits=[wait(keys[rank], 50.0 + rank)]) for rank in range(ranks)]
        assert text + more == verdict(job).text


def test_stage_is_the_wait_of_the_others_or_the_activity_of_the_one() -> None:
    """For several ranks without a common wait it is empty."""
    waits = [hanging(rank, 4, waits=[wait("barrier", 59.0)] if rank else []) for rank in range(4)]
    assert (0, "barrier") == verdict([replace(waits[0], activity="data"), *waits[1:]])[2:4]
    one = [hanging(rank, 4, activity="step" if rank else "data") for rank in range(4)]
    assert (0, "data") == verdict(one)[2:4]
    two = [hanging(rank, 4, activity="step" if rank > 1 else "data") for rank in range(4)]
    assert (None, "") == verdict(two)[2:4]


def test_usual_step_of_the_slowest_rank_is_reported() -> None:
    """A standstill is long for all ranks if it is long for that one."""
    steps = (2.0, 4.0)
    job = [hanging(rank, 2, 125.0, step_seconds=seconds) for rank, seconds in enumerate(steps)]
    text = "no steps: ranks 0 and 1 made none for 2 min 5 s (usually one in 4.0 s); see monitel autopsy"
    assert text == verdict(job).text
    over = ended(job, status="interrupted", step_age_ns=125 * S)
    assert ("no-steps", 125.0) == (verdict(over).kind, verdict(over).seconds)


def test_rank_that_makes_steps_now_and_then_does_not_go_on() -> None:
    """Its last step is less than half as long ago as that of the others."""
    still = hanging(0, 2, waits=[wait("share", 59.0)])
    for seconds, goes_on in ((29.0, True), (31.0, False)):
        other = hanging(1, 2, seconds, step_seconds=50.0)
        assert goes_on == verdict([still, other]).text.endswith("; rank 1 goes on"), seconds


def test_stuck_wait_before_the_first_step_is_as_long_as_the_longest() -> None:
    """There is no step since which the job stands still. Other activities do not count."""
    unset: dict[str, Any] = {"step": None, "step_age_ns": None, "steps": 0, "step_seconds": None}
    job = [hanging(rank, 4, activity="stuck", activity_age_ns=(20 + rank) * S, **unset) for rank in range(4)]
    assert ("stuck", 23.0) == (verdict(job).kind, verdict(job).seconds)
    job[3] = replace(job[3], activity="init", activity_age_ns=90 * S)
    assert 22.0 == verdict(job).seconds


def test_rank_behind_the_others_before_the_first_step() -> None:
    """Step 0 is a step."""
    job = [hanging(rank, 2, 125.0, step=rank) for rank in range(2)]
    assert "no steps: none for 2 min 5 s; rank 0 is behind the others, at step 0" == verdict(job).text
