"""The late rank, its stage and its milliseconds, as documented; by the rules: tests/integration/rules."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel.console.lateness import cycle, exposed, rank_late, stage_late, suspects

STAGES = ("optimizer", "other", "data", "forward", "backward", "sync")
BASE = {"optimizer": 0.005, "other": 0.002, "data": 0.010, "forward": 0.030, "backward": 0.060}
#: The ranks of the picture in docs/explanation/late-ranks.md, in milliseconds.
PICTURE = {
    rank: dict(zip(STAGES, times, strict=True))
    for rank, times in enumerate(
        [(5, 2, 8, 30, 60, 30), (5, 2, 9, 31, 59, 29), (5, 2, 38, 30, 60, 0), (5, 2, 8, 29, 61, 30)]
    )
}


def synchronous(ranks: int, delays: Mapping[tuple[int, str], float]) -> dict[int, dict[str, float]]:
    """Return the stages of ranks of which some are delayed: each waits for the last one."""
    times = {
        rank: {stage: seconds + delays.get((rank, stage), 0.0) for stage, seconds in BASE.items()}
        for rank in range(ranks)
    }
    last = max(sum(of.values()) for of in times.values())
    return {rank: {**of, "sync": last - sum(of.values())} for rank, of in times.items()}


def test_picture_of_the_documentation() -> None:
    """Rank 2 is 29.5 ms late in data, the others wait 29.5 ms for it, and data takes 38 of 135 ms."""
    assert [(29.5, 2, "data")] == suspects(PICTURE)
    assert 29.5 == stage_late(PICTURE)[2, "data"] == rank_late(PICTURE)[2]
    assert {"optimizer": 5, "other": 2, "data": 38, "forward": 30, "backward": 60, "sync": 0} == exposed(PICTURE)
    assert 135 == cycle(PICTURE)


@given(st.integers(2, 9), st.data(), st.sampled_from(STAGES[:-1]), st.floats(0.005, 0.5))
def test_delay_is_the_lateness(ranks: int, data: st.DataObject, stage: str, delay: float) -> None:
    """One delayed rank is the only suspect, in its stage and by its delay, for any number of ranks."""
    rank = data.draw(st.integers(0, ranks - 1))
    times = synchronous(ranks, {(rank, stage): delay})
    [(seconds, named, in_stage)] = suspects(times)
    assert (rank, stage) == (named, in_stage)
    for each in (seconds, rank_late(times)[rank], stage_late(times)[rank, stage]):
        assert pytest.approx(delay, rel=1e-6) == each
    assert pytest.approx(sum(BASE.values()) + delay) == cycle(times) == sum(exposed(times).values())


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(synchronous(1, {}), id="a single rank"),
        pytest.param(synchronous(8, {}), id="no delay"),
        pytest.param(synchronous(4, {(1, "data"): 0.02, (1, "forward"): -0.02}), id="late and early"),
        pytest.param({rank: {**BASE, "data": 0.01 + 0.05 * (rank == 2)} for rank in range(4)}, id="nobody waits"),
        pytest.param(
            {**synchronous(4, {(2, "data"): 0.03}), 2: {**BASE, "data": 0.07, "other": 0.05, "sync": 0.0}},
            id="a cycle that is longer than the others by more than half of the lateness",
        ),
    ],
)
def test_nobody_is_suspected(times: dict[int, dict[str, float]]) -> None:
    """The three cases that the definition excludes, and jobs without a late rank."""
    assert [] == suspects(times)


def test_several_late_ranks_are_sorted_by_lateness() -> None:
    times = synchronous(6, {(1, "forward"): 0.02, (3, "data"): 0.03})
    assert [(3, "data"), (1, "forward")] == [(rank, stage) for _, rank, stage in suspects(times)]
