"""Who is slow: scores, and what is said of whom, and when."""

from __future__ import annotations

import math
import random
from types import MappingProxyType

import pytest

import monitel
from monitel import Severity
from monitel_otlp.cells import Closed
from monitel_otlp.digest import Share, digest
from monitel_otlp.stragglers import SLOW, Stragglers, judge

BEGIN_NS = 1_767_225_600_000_000_000


def closed(means: dict[int, float], name: str = "step.time", **attributes: str) -> Closed:
    """A cell with these means."""
    definition = monitel.StatDefinition(name, (monitel.MEAN,), "s", "", MappingProxyType(attributes), False)
    shares = {
        rank: Share(rank, BEGIN_NS, BEGIN_NS + 60, 1, mean, mean, mean, mean, 0, 40 + rank)
        for rank, mean in means.items()
    }
    return Closed(digest(definition, shares), shares)


def said(stragglers: Stragglers, means: dict[int, float], **more: str) -> list[tuple[str, object]]:
    """Names of events, and the rank of each."""
    events = stragglers.watch(closed(means, **more))
    return [(event.name.removeprefix("training."), event.data["rank"]) for event in events]


def healthy(seed: int, ranks: int = 64) -> dict[int, float]:
    """Ranks that differ by some percent."""
    rng = random.Random(seed)
    return {rank: rng.gauss(0.3, 0.005) for rank in range(ranks)}


@pytest.mark.parametrize("seed", range(20))
def test_the_slow_one_is_found_among_healthy_ones(seed: int) -> None:
    """And nobody else: the others' steps are equal but for a percent or two."""
    means = healthy(seed)
    assert [] == [each.rank for each in judge(means) if each.score > SLOW]
    means[17] *= 1.5
    assert [17] == [each.rank for each in judge(means) if each.score > SLOW]


@pytest.mark.parametrize("factor", [1e-300, 1.0, 1e300])
def test_the_unit_does_not_matter(factor: float) -> None:
    """A score is a ratio."""
    means = {rank: factor * mean for rank, mean in {**healthy(0), 5: 0.9}.items()}
    (slowest, *_) = judge(means)
    (expected, *_) = judge({**healthy(0), 5: 0.9})
    assert 5 == slowest.rank
    assert pytest.approx(expected.score) == slowest.score


def test_many_slow_ones_do_not_hide_each_other() -> None:
    """Median and MAD are of the majority, where mean and standard deviation would be of all: a third may be slow."""
    means = healthy(1) | dict.fromkeys(range(20), 0.9)
    assert list(range(20)) == [each.rank for each in judge(means) if each.score > SLOW]


def test_ranks_like_clockwork_are_no_stragglers() -> None:
    """A thousandth is no trouble, even where all others are equal; a tenth is."""
    means = dict.fromkeys(range(8), 0.3)
    assert [] == [each for each in judge(means | {3: 0.3003}) if each.score > SLOW]
    assert [3] == [each.rank for each in judge(means | {3: 0.34}) if each.score > SLOW]


@pytest.mark.parametrize(
    "means", [{}, {0: 1.0}, {0: 1.0, 1: 9.0}, {0: 1.0, 1: 9.0, 2: math.nan}, {0: 1.0, 1: 9.0, 2: math.inf}]
)
def test_of_two_nobody_can_say(means: dict[int, float]) -> None:
    """It takes three ranks with a number."""
    assert [] == judge(means)


def test_zeros_are_no_trouble() -> None:
    """Nothing is divided by."""
    assert {0.0} == {each.score for each in judge(dict.fromkeys(range(4), 0.0))}


def test_a_straggler_is_named_once_until_it_recovers() -> None:
    """The slowest is named in each cell."""
    stragglers = Stragglers("step.time", {})
    usual = dict.fromkeys(range(8), 0.3)
    assert [("slowest", 0)] == said(stragglers, usual)
    assert [("slowest", 6), ("straggler", 6)] == said(stragglers, usual | {6: 0.6})
    assert [("slowest", 6)] == said(stragglers, usual | {6: 0.6})
    assert [("slowest", 2), ("straggler", 2)] == said(stragglers, usual | {6: 0.6, 2: 0.7})
    assert [("slowest", 6)] == said(stragglers, {rank: mean for rank, mean in usual.items() if rank != 2} | {6: 0.6})
    assert [("slowest", 2)] == said(stragglers, usual | {6: 0.325, 2: 0.7})  # better, but not well
    assert [("slowest", 2), ("straggler.recovered", 6)] == said(stragglers, usual | {2: 0.7})
    assert [("slowest", 6), ("straggler", 6), ("straggler.recovered", 2)] == said(stragglers, usual | {6: 0.6})


def test_what_is_said_of_it() -> None:
    """Rank, host, step, and how much."""
    stragglers = Stragglers("step.time", {6: "node-3"})
    slowest, straggler = stragglers.watch(closed(dict.fromkeys(range(8), 0.3) | {6: 0.6}, phase="forward"))
    assert (Severity.INFO, Severity.WARN) == (slowest.severity, straggler.severity)
    assert {
        "stat": "step.time",
        "phase": "forward",
        "rank": 6,
        "host": "node-3",
        "training.step": 46,
        "mean": 0.6,
        "median": 0.3,
        "ratio": 2.0,
        "score": pytest.approx(0.6745 / 0.02),
        "ranks": 8,
    } == straggler.data
    assert slowest.data == straggler.data


def test_ten_are_named_at_once() -> None:
    """The slowest; the others in the next cell, if they still are."""
    stragglers = Stragglers("step.time", {})
    means = dict.fromkeys(range(64), 0.3) | {rank: 0.6 + rank / 100 for rank in range(15)}
    first, second = said(stragglers, means), said(stragglers, means)
    assert [("straggler", rank) for rank in range(14, 4, -1)] == first[1:]
    assert [("straggler", rank) for rank in range(4, -1, -1)] == second[1:]


def test_other_stats_are_not_compared() -> None:
    """Only the one that was named; each set of its attributes by itself."""
    stragglers = Stragglers("forward", {})
    usual = dict.fromkeys(range(8), 0.3)
    assert [] == said(stragglers, usual | {6: 0.6})
    for split in ("train", "val"):
        assert [("slowest", 6), ("straggler", 6)] == said(stragglers, usual | {6: 0.6}, name="forward", split=split)
