"""Limits of the rules: a job at a limit, and one just beside it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.unit.console.verdict.simulated_jobs import S, ended, training

from monitel_otlp.verdict.rules import verdict


@pytest.mark.parametrize(
    ("recompilations", "compiling", "kind"),
    [(3, 20, "compile-storm"), (2, 20, "healthy"), (3, 19, "healthy")],
)
def test_least_compile_storm(recompilations: int, compiling: int, kind: str) -> None:
    """Three recompilations that take a fifth of the loop's time. The start does not count."""
    time = {"startup": 900 * S, "compile": compiling * S, "step": (100 - compiling) * S}
    job = training(activities=time, recompilations=recompilations, recompiling_ns=compiling * S)
    assert kind == verdict([job]).kind


@pytest.mark.parametrize(
    ("loop", "saving", "kind"), [(600, 120, "checkpoint-bound"), (599, 120, "healthy"), (600, 119, "healthy")]
)
def test_least_time_in_checkpoints(loop: int, saving: int, kind: str) -> None:
    """A fifth of ten minutes in the loop. The start does not count."""
    time = {"startup": 900 * S, "checkpoint.save": saving * S, "step": (loop - saving) * S}
    found = verdict([training(activities=time)])
    assert kind == found.kind
    if kind != "healthy":
        assert "checkpoint-bound: 20 % of the time goes into saving checkpoints" == found.text
        over = verdict(ended([training(activities=time)]))
        assert "checkpoint-bound: 20 % of the time went into saving checkpoints" == over.text


@pytest.mark.parametrize(("stuck", "kind"), [(10, "stuck"), (9, "healthy")])
def test_least_time_in_stuck_waits(stuck: int, kind: str) -> None:
    """A tenth of the loop's time, and only after the end: before it the wait itself is visible."""
    over = ended([training(activities={"startup": 900 * S, "step": (100 - stuck) * S, "stuck": stuck * S})])
    found = verdict(over)
    assert kind == found.kind
    assert ("stuck" if kind == "stuck" else "") == found.stage
    assert "healthy" == verdict([replace(over[0], state="alive", status="", step_age_ns=S)]).kind


def test_chance_depends_on_the_rank_with_the_fewest_steps() -> None:
    """A rank that was started again has few steps, in which one pause is much."""
    waits, holds = {"data": 0.1, "backward": 0.8, "sync": 0.1}, {"data": 0.2, "backward": 0.8, "sync": 0.0}
    job = [training(rank, 4, steps=10_000, stages={"": waits if rank else holds}) for rank in range(4)]
    assert ("late-rank", 0) == (verdict(job).kind, verdict(job).rank)
    assert "late-rank" != verdict([replace(job[0], steps=25), *job[1:]]).kind


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e6])
def test_stages_with_an_impossible_time_do_not_count(seconds: float) -> None:
    """One such time is enough: the shares of the other stages would be wrong. The ledger has the share of data."""
    stages = {"": {"data": 0.05, "backward": seconds, "sync": 0.05}}
    job = [training(rank, 2, stages=stages, activities={"data": 3 * S, "step": 9 * S}) for rank in range(2)]
    found = verdict(job)
    assert ("input-bound", "data", 0.25) == (found.kind, found.stage, found.share)
    busy = verdict([replace(each, activities={"step": 12 * S}) for each in job])
    assert busy.text.endswith("late ranks are not known without stages; call monitel.torch.instrument()")


def test_process_without_a_rank_is_not_compared() -> None:
    """Its stages are in the same group as those of the ranks."""
    waits, holds = {"data": 0.01, "backward": 0.5, "sync": 0.4}, {"data": 0.01, "backward": 0.9, "sync": 0.0}
    job = [training(0, 2, stages={"": waits}), training(1, 2, stages={"": waits}), training(None, stages={"": holds})]
    assert "healthy" == verdict(job).kind
    assert ("late-rank", 2) == verdict([*job[:2], replace(job[2], rank=2)])[:3:2]


def test_late_ranks_of_one_stage_are_counted() -> None:
    """The text names the rank that is furthest behind, and how many more there are."""
    late = {1: 0.3, 4: 0.2, 5: 0.1}
    times = [
        {"data": 0.01, "forward": 0.1 + late.get(rank, 0.0), "sync": 0.3 - late.get(rank, 0.0)} for rank in range(8)
    ]
    job = [training(rank, 8, stages={"": stages}) for rank, stages in enumerate(times)]
    assert verdict(job).text.startswith("late rank: rank 1 takes 300.0 ms longer than the others in forward (")
    assert verdict(job).text.endswith(" of each step; 2 more)")


def test_two_ranks_that_are_bound_by_input() -> None:
    """The share is that of the rank that waits least."""
    job = [training(rank, 2, stages={"": {"data": 0.3 + rank / 10, "backward": 0.7 - rank / 10}}) for rank in (0, 1)]
    found = verdict(job)
    assert "input-bound: 30 to 40 % of each step goes into waiting for data, on all 2 ranks" == found.text
    assert found.share == pytest.approx(0.3)
