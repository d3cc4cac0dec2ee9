"""The lateness of ranks that wait for each other at the end of each cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel_otlp.verdict.lateness import STAGES, cycle, exposed, rank_late, stage_late, suspects

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE = {"optimizer": 0.005, "other": 0.002, "data": 0.010, "forward": 0.030, "backward": 0.060}


def job(ranks: int, delays: Mapping[tuple[int, str], float]) -> dict[int, dict[str, float]]:
    """Return the stages of ranks of which some are delayed: each waits for the last one."""
    times = {
        rank: {stage: seconds + delays.get((rank, stage), 0.0) for stage, seconds in BASE.items()}
        for rank in range(ranks)
    }
    last = max(sum(of.values()) for of in times.values())
    return {rank: {**of, "sync": last - sum(of.values())} for rank, of in times.items()}


@given(st.integers(2, 9), st.data(), st.sampled_from(STAGES[:-1]), st.floats(0.005, 0.5))
def test_delayed_rank_is_the_only_suspect(ranks: int, data: st.DataObject, stage: str, delay: float) -> None:
    """Its lateness is the delay, whatever the number of ranks is."""
    rank = data.draw(st.integers(0, ranks - 1))
    times = job(ranks, {(rank, stage): delay})
    [(seconds, named, in_stage)] = suspects(times)
    assert (rank, stage) == (named, in_stage)
    for late in (seconds, rank_late(times)[rank], stage_late(times)[rank, stage]):
        assert pytest.approx(delay, rel=1e-6) == late
    for whole in (cycle(times), sum(exposed(times).values())):
        assert pytest.approx(sum(BASE.values()) + delay) == whole


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_nobody_is_late_without_a_delay(ranks: int) -> None:
    """A single rank has nothing to be compared with."""
    assert [] == suspects(job(ranks, {}))


def test_compensation_is_no_lateness() -> None:
    """A rank that is late in one stage and early in another arrives with the others."""
    assert [] == suspects(job(4, {(1, "data"): 0.02, (1, "forward"): -0.02}))


def test_ranks_that_do_not_wait_are_no_suspects() -> None:
    """Separate trainings have different stages, but nobody waits."""
    times = {rank: {**BASE, "data": 0.01 + 0.05 * (rank == 2)} for rank in range(4)}
    assert [] == suspects(times)


def test_two_late_ranks_are_named_largest_first() -> None:
    """Each with its own stage."""
    times = job(6, {(1, "forward"): 0.02, (3, "data"): 0.03})
    assert [(3, "data"), (1, "forward")] == [(rank, stage) for _, rank, stage in suspects(times)]
