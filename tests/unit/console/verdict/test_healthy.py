"""Healthy jobs: none of them gets another verdict, whatever their noise is."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.unit.console.verdict.simulated_jobs import S, ended, synchronous, training

from monitel_otlp.verdict.losses import ENOUGH_STEPS
from monitel_otlp.verdict.rules import verdict

JOBS = 1000


@pytest.mark.parametrize("part", range(4))
def test_noisy_jobs_are_healthy(part: int) -> None:
    """A thousand jobs of 1 to 32 ranks, with noise up to 30 % and rare pauses of ten times a stage."""
    wrong = []
    for case in range(part, JOBS, 4):
        random = Random(case)
        ranks, steps = random.choice((1, 2, 2, 3, 4, 8, 32)), random.choice((ENOUGH_STEPS, 30, 50, 100))
        noise, pauses = random.choice((0.02, 0.05, 0.1, 0.2, 0.3)), random.choice((0.0, 0.0, 0.0003))
        found = verdict(synchronous(random, ranks, steps, noise=noise, pauses=pauses))
        if found.kind != "healthy":
            wrong.append((case, ranks, steps, noise, pauses, found))
    assert [] == wrong


def test_text_has_ranks_rate_and_data() -> None:
    """The numbers that a user looks at first."""
    ranks = [training(rank, 4) for rank in range(4)]
    assert "healthy: 4 ranks, 8.33 steps/s, 5 % waiting for data" == verdict(ranks).text
    assert "healthy: 8.33 steps/s, 5 % waiting for data" == verdict(ranks[:1]).text.partition(" (")[0]


@pytest.mark.parametrize(
    ("seconds", "pace"), [(2.5, "2.5 s per step"), (75.0, "75 s per step"), (0.0005, "2,000 steps/s")]
)
def test_slow_and_fast_steps(seconds: float, pace: str) -> None:
    """Numbers of three digits."""
    assert f"healthy: {pace}, 5 % waiting for data" == verdict([training(step_seconds=seconds)]).text


def test_rate_is_that_of_now() -> None:
    """The usual step may be that of a faster time. After a few steps too late there is no rate at all."""
    ranks = [training(rank, 2, rate=3.17) for rank in range(2)]
    assert "healthy: 2 ranks, 3.17 steps/s, 5 % waiting for data" == verdict(ranks).text
    assert "healthy: 2 ranks, 8.33 steps/s" in verdict([replace(each, rate=None) for each in ranks]).text
    late = [replace(each, step_age_ns=26 * S) for each in ranks]
    assert "healthy: 2 ranks, no step for 26 s, 5 % waiting for data" == verdict(late).text
    assert "healthy: 2 ranks, no step of rank 1 for 26 s" in verdict([ranks[0], late[1]]).text


@pytest.mark.parametrize(
    ("usual", "age_s", "overdue"), [(0.12, 5.0, False), (0.12, 5.1, True), (2.0, 20.0, False), (2.0, 20.1, True)]
)
def test_missing_step(usual: float, age_s: float, overdue: bool) -> None:
    """Five seconds, and ten usual steps. After the end the time since the last step does not count."""
    job = training(step_seconds=usual, step_age_ns=round(age_s * S))
    assert overdue == ("no step for" in verdict([job]).text)
    assert "no step for" not in verdict(ended([job], step_age_ns=round(age_s * S))).text


def test_ranks_of_other_machines_are_mentioned() -> None:
    """A verdict is about the ranks of this machine."""
    assert verdict([training(rank, 16) for rank in range(4)]).text.endswith(
        " (4 of 16 ranks found here, the others elsewhere or ended)"
    )


@pytest.mark.parametrize("status", ["completed", "interrupted", "preempted"])
def test_job_that_has_ended(status: str) -> None:
    """An end that was asked for is not a fault."""
    job = ended([training(rank, 2) for rank in range(2)], status=status, step_age_ns=S)
    found = verdict(job)
    suffix = "" if status == "completed" else f"; {status}"
    assert ("healthy", f"healthy: 2 ranks, 8.33 steps/s, 5 % waiting for data{suffix}") == (found.kind, found.text)
    text = f"unknown: 2 ranks, 8.33 steps/s, no loss found; {status}, the time since the last step is not known"
    unknown = verdict([replace(each, step_age_ns=None) for each in job])
    assert ("healthy" if status == "completed" else "unknown") == unknown.kind
    assert status == "completed" or text == unknown.text


@pytest.mark.parametrize("activity", ["evaluation", "checkpoint.save", "compile", "data", "step"])
def test_pauses_shorter_than_half_a_minute_are_usual(activity: str) -> None:
    """An epoch begins, or a checkpoint is saved."""
    ranks = [
        training(rank, 4, step_age_ns=30 * S, activity="step" if rank else activity, activity_age_ns=30 * S)
        for rank in range(4)
    ]
    assert "healthy" == verdict(ranks).kind


def test_slow_steps_are_usual() -> None:
    """Ten times the usual step is the limit, where that is longer than half a minute."""
    job = training(step_seconds=60.0, steps=30, step_age_ns=599 * S, activity_age_ns=599 * S)
    assert "healthy" == verdict([job]).kind
    assert "no-steps" == verdict([replace(job, step_age_ns=601 * S, activity_age_ns=601 * S)]).kind
