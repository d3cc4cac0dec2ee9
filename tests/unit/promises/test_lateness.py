"""The late rank, its stage and its milliseconds, as docs/explanation/late-ranks.md and the rules define them."""

import re
from collections.abc import Mapping
from itertools import accumulate
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.paths import ROOT

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


def by_the_rules(times: Mapping[int, Mapping[str, float]]) -> dict[tuple[int, str], float]:
    """Return what ``training:suspect:seconds`` of compose/stages.yml is, read from its expressions one by one."""
    factor = 2 if len(times) == 2 else 1  # training:stage_late:factor
    middle = {stage: median(of[stage] for of in times.values()) for stage in STAGES}  # training:stage_median:seconds
    stage_lateness = {
        (rank, stage): factor * (of[stage] - middle[stage]) for rank, of in times.items() for stage in STAGES[:-1]
    }
    rank_lateness = {rank: factor * (middle["sync"] - of["sync"]) for rank, of in times.items()}
    ends = [[*accumulate([of[stage] for stage in STAGES])] for of in times.values()]
    whole = max(each[-1] for each in ends)  # training:cycle:seconds, the last frontier
    sums = {rank: sum(of.values()) for rank, of in times.items()}
    apart = {rank: 2 * abs(factor * (own - median(sums.values()))) for rank, own in sums.items()}
    return {
        (rank, stage): late
        for (rank, stage), late in stage_lateness.items()
        if late > 0.02 * whole and rank_lateness[rank] > 0.02 * whole and late > apart[rank]
    }


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_suspects_are_those_of_the_recording_rules(ranks: int) -> None:
    """The command and Prometheus name the same ranks, with the same seconds, for any times of any ranks."""
    named = 0
    for seed in range(200):
        random = Random(seed)
        noise = random.choice((0.01, 0.1, 0.5))
        delays = {(rank, each): random.gauss(0.0, noise * BASE[each]) for rank in range(ranks) for each in BASE}
        times = synchronous(ranks, delays)
        for of in times.values():
            of["sync"] = max(0.0, of["sync"] + random.gauss(0.0, random.choice((0.0, 0.0, 0.002))))
        expected = by_the_rules(times)
        found = {(rank, stage): seconds for seconds, rank, stage in suspects(times)}
        assert expected == pytest.approx(found), times
        named += len(expected)
    assert named > 20, "the comparison is worth nothing without suspects"


def test_rules_have_the_constants_of_this_test() -> None:
    """2 % of the cycle twice, half of the lateness, and the factor 2 for two ranks."""
    rules = (ROOT / "compose/stages.yml").read_text(encoding="utf-8")
    suspect = rules[rules.index("record: training:suspect:seconds") : rules.index("alert: TrainingRankLate")]
    assert ["0.02", "0.02"] == re.findall(r"\(([0-9.]+) \* training:cycle:seconds\)", suspect)
    assert 1 == suspect.count("2 * abs(")
    factor = rules[rules.index("record: training:stage_late:factor") :].partition("- record")[0]
    assert "> 1 == bool 2" in factor
