"""Jobs that lose time: the loss is named, with its numbers, and nothing below the thresholds is."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.console.verdict.simulated_jobs import WORK, S, ended, synchronous, training

from monitel_otlp.verdict.losses import ENOUGH_STEPS
from monitel_otlp.verdict.rules import verdict

if TYPE_CHECKING:
    from monitel_otlp.verdict.facts import RankFacts


@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(2, 8),
    stage=st.sampled_from([*WORK]),
    delay=st.floats(0.03, 1.0),
)
def test_late_rank_of_a_simulated_job(seed: int, ranks: int, stage: str, delay: float) -> None:
    """Rank and stage are those of the delay, and its seconds to within the noise of a tenth."""
    random = Random(seed)
    late = random.randrange(ranks)
    found = verdict(synchronous(random, ranks, 60, noise=0.1, late={(late, stage): delay}))
    assert ("late-rank", late, stage) == (found.kind, found.rank, found.stage)
    assert found.seconds == pytest.approx(delay, abs=0.008)
    assert found.share == pytest.approx(delay / (0.115 + delay), rel=0.3)


def test_text_of_a_late_rank() -> None:
    """Rank, stage, milliseconds, and their share."""
    job = synchronous(Random(1), 4, 400, noise=0.0, late={(2, "data"): 0.030})
    assert "late rank: rank 2 takes 30.0 ms longer than the others in data (21 % of each step)" == verdict(job).text
    assert "rank 2 took 30.0 ms longer" in verdict(ended(job)).text
    two = synchronous(Random(1), 6, 400, noise=0.0, late={(2, "data"): 0.030, (4, "forward"): 0.025})
    assert verdict(two).text.endswith("in data (21 % of each step; 1 more)")
    elsewhere = [replace(each, world_size=64) for each in job]
    assert verdict(elsewhere).text.endswith(
        "(21 % of each step) (4 of 64 ranks found here, the others elsewhere or ended)"
    )


@pytest.mark.parametrize(("steps", "least"), [(ENOUGH_STEPS, 0.224), (100, 0.1), (400, 0.05), (10_000, 0.05)])
def test_lateness_needs_more_the_fewer_steps_there_are(steps: int, least: float) -> None:
    """A rank that pauses once is late in a short period only."""

    def job(late: float) -> list[RankFacts]:
        rest = 1.0 - late
        waiting, holding = {"data": 0.1, "backward": rest - 0.1, "sync": late}, {"sync": 0.0, "data": 0.1 + late}
        return [
            training(rank, 4, steps=steps, stages={"": waiting if rank else {**waiting, **holding}})
            for rank in range(4)
        ]

    assert "late-rank" == verdict(job(least + 0.002)).kind
    assert "late-rank" != verdict(job(least - 0.002)).kind


def test_ranks_of_different_groups_are_not_compared() -> None:
    """Stages of a pipeline differ by design."""
    slow = {"data": 0.01, "backward": 0.10, "sync": 0.0}
    fast = {"data": 0.01, "backward": 0.05, "sync": 0.05}
    job = [training(rank, 4, stages={"first": fast} if rank < 2 else {"second": slow}) for rank in range(4)]
    assert "healthy" == verdict(job).kind
    late = {"data": 0.06, "backward": 0.05, "sync": 0.0}
    found = verdict([replace(job[0], stages={"first": late}), *job[1:]])
    assert "rank 0 of group first takes 50.0 ms longer than the others in data" in found.text


@pytest.mark.parametrize(("share", "kind"), [(0.19, "healthy"), (0.2, "input-bound"), (0.6, "input-bound")])
def test_input_bound_job(share: float, kind: str) -> None:
    """A fifth of each step on all ranks."""
    stages = {"data": share, "backward": 1 - share, "sync": 0.0}
    job = [training(rank, 4, stages={"": stages}) for rank in range(4)]
    found = verdict(job)
    assert kind == found.kind
    if kind != "healthy":
        percent = round(100 * share)
        text = f"input-bound: {percent} % of each step goes into waiting for data, on all 4 ranks"
        assert text == found.text
        assert found.share == pytest.approx(share)
        alone = verdict(ended(job[:1])).text.partition(" (")[0]
        assert f"input-bound: {percent} % of each step went into waiting for data" == alone


def test_input_bound_ranks_with_different_shares() -> None:
    """The smallest and the largest one are reported. One rank that does not wait is enough for another verdict."""
    job = synchronous(Random(5), 4, 200, noise=0.3, work={**WORK, "data": 0.08})
    found = verdict(job)
    assert "input-bound" == found.kind
    shares = [each.stages[""]["data"] / sum(each.stages[""].values()) for each in job]
    assert f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % of each step" in found.text
    fast = {"data": 0.01, "backward": 0.1, "sync": 0.07}
    assert "input-bound" != verdict([*job[:3], replace(job[3], stages={"": fast})]).kind


def test_data_of_the_ledger_counts_without_stages() -> None:
    """A plain loop has no stages."""
    job = training(stages={}, activities={"startup": 90 * S, "data": 3 * S, "step": 9 * S, "evaluation": 50 * S})
    assert "input-bound: 25 % of each step goes into waiting for data" == verdict([job]).text
    first_batch = training(activities={"data": 30 * S, "step": 12 * S})  # and then almost none
    assert "healthy" == verdict([first_batch]).kind


def test_compile_storm() -> None:
    """Compilations of the same code again and again. Long first compilations do not count."""
    time = {"startup": 50 * S, "compile": 41 * S, "step": 59 * S}
    job = [training(rank, 2, activities=time, recompilations=12 * rank, recompiling_ns=50 * S) for rank in range(2)]
    found = verdict(job)
    assert ("compile-storm", 1, "compile", 0.41) == (found.kind, found.rank, found.stage, found.share)
    text = "compile storm: 41 % of the time goes into compilation on rank 1, 12 recompilations"
    assert text == found.text
    alone = verdict(ended(job[1:])).text.partition(" (")[0]
    assert "compile storm: 41 % of the time went into compilation, 12 recompilations" == alone
    assert "healthy" == verdict([replace(each, recompilations=2) for each in job]).kind
    assert "healthy" == verdict([replace(each, recompiling_ns=19 * S) for each in job]).kind
    few = {"startup": 50 * S, "compile": 19 * S, "step": 81 * S}
    assert "healthy" == verdict([replace(each, activities=few) for each in job]).kind


def test_checkpoints_of_a_long_period() -> None:
    """One checkpoint in a short period means nothing."""
    time = {"startup": 50 * S, "checkpoint.save": 200 * S, "step": 600 * S}
    job = [training(rank, 2, activities=time if rank == 0 else {"step": 800 * S}) for rank in range(2)]
    found = verdict(job)
    assert ("checkpoint-bound", 0, 0.25) == (found.kind, found.rank, found.share)
    assert "checkpoint-bound: 25 % of the time of rank 0 goes into saving checkpoints" == found.text
    short = {name: time_ns // 2 for name, time_ns in time.items()}
    assert "healthy" == verdict([replace(job[0], activities=short), job[1]]).kind


def test_compilations_come_before_the_rank_that_they_make_late() -> None:
    """Otherwise the consequence would be named."""
    job = synchronous(Random(3), 4, 100, late={(1, "forward"): 0.2})
    assert "late-rank" == verdict(job).kind
    job[1] = replace(job[1], recompilations=9, recompiling_ns=20 * S, activities={"compile": 20 * S, "step": 11 * S})
    assert ("compile-storm", 1) == (verdict(job).kind, verdict(job).rank)


@pytest.mark.parametrize(("longest", "kind"), [(0.014, "late-rank"), (0.016, "healthy")])
def test_late_rank_is_more_than_its_longest_cycles(longest: float, kind: str) -> None:
    """Two of them may make up 30 ms of each cycle."""
    job = synchronous(Random(1), 4, 400, noise=0.0, late={(2, "forward"): 0.030})
    found = verdict([replace(each, longest={"": {"forward": longest if each.rank == 2 else 1.0}}) for each in job])
    assert kind == found.kind


@pytest.mark.parametrize(("longest", "kind"), [(0.14, "input-bound"), (0.16, "healthy")])
def test_input_is_more_than_the_longest_waits(longest: float, kind: str) -> None:
    """On one rank, which is enough."""
    stages = {"": {"data": 0.3, "backward": 0.7, "sync": 0.0}}
    job = [training(rank, 2, stages=stages) for rank in range(2)]
    assert kind == verdict([job[0], replace(job[1], longest={"": {"data": longest}})]).kind


def test_one_wait_for_data_is_not_the_usual_step() -> None:
    """Without stages, the longest step may be one wait; the parts of a period show it."""
    job = training(stages={}, activities={"data": 15 * S, "step": 30 * S})
    assert "input-bound" == verdict([job]).kind
    assert "healthy" == verdict([replace(job, longest_step=14.0)]).kind
    assert "healthy" == verdict([replace(job, data=0.1)]).kind
    assert "input-bound" == verdict([replace(job, data=0.3, longest_step=14.0)]).kind
