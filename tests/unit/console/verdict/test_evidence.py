"""Waits and activities that show which rank the others wait for, and those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.unit.console.verdict.simulated_jobs import S, hanging, wait

from monitel_otlp.verdict.rules import verdict

if TYPE_CHECKING:
    from monitel_otlp.verdict.facts import RankFacts


def waiting(rank: int, ranks: int, **waits: float) -> RankFacts:
    """Return the facts of a rank without a step for a minute, in these waits for so many seconds."""
    return hanging(rank, ranks, waits=[wait(key, seconds) for key, seconds in waits.items()])


@pytest.mark.parametrize(("seconds", "counts"), [(29.9, False), (30.0, True), (61.0, True), (61.1, False)])
def test_wait_that_explains_the_standstill_began_soon_after_the_last_step(seconds: float, counts: bool) -> None:
    """In its first half, and not more than a second before the step: that is another thread's."""
    assert ("stuck" if counts else "no-steps") == verdict([waiting(0, 1, share=seconds)]).kind


@pytest.mark.parametrize(("seconds", "counts"), [(29.9, False), (30.0, True)])
def test_wait_for_data_is_as_long_as_the_standstill(seconds: float, counts: bool) -> None:
    """A shorter one is between two batches."""
    job = [hanging(activity="data", activity_age_ns=round(seconds * S))]
    assert ("stuck" if counts else "no-steps") == verdict(job).kind


def test_longest_wait_of_a_rank_is_reported() -> None:
    """A rank may have waits with several keys, and several threads may have one key."""
    assert (
        "stuck: rank 0 has waited in queue for 50 s" == verdict([waiting(0, 1, all=40.0, queue=50.0, share=45.0)]).text
    )
    for ages in ((40.0, 50.0), (50.0, 40.0)):
        job = [hanging(waits=[wait("share", age) for age in ages])]
        assert "stuck: rank 0 has waited in share for 50 s" == verdict(job).text


@pytest.mark.parametrize("ranks", [2, 3])
def test_wait_of_all_ranks_is_the_stage(ranks: int) -> None:
    """Such a wait names no rank."""
    found = verdict([waiting(rank, ranks, all_reduce=58.0) for rank in range(ranks)])
    assert ("stuck", None, "all_reduce") == (found.kind, found.rank, found.stage)


def test_wait_that_a_rank_is_not_in_says_more_than_one_of_all() -> None:
    """Even if that of all is longer."""
    job = [waiting(0, 3, all=59.0, some=50.0), waiting(1, 3, all=59.0), waiting(2, 3, all=59.0, some=50.0)]
    found = verdict(job)
    assert (1, "some") == (found.rank, found.stage)
    assert found.text.endswith("; ranks 0 and 2 wait for it in some")


def test_longest_of_several_shared_waits_is_named() -> None:
    """The longest one of any rank."""
    job = [waiting(0, 4, a=59.0, b=55.0), waiting(1, 4, a=50.0, b=55.0), waiting(2, 4, a=50.0, b=55.0), waiting(3, 4)]
    assert (3, "a") == verdict(job)[2:4]
    later = [replace(job[0], waits=[wait("a", 54.0), wait("b", 55.0)]), *job[1:]]
    assert (3, "b") == verdict(later)[2:4]


def test_half_of_the_ranks_in_a_wait_shows_nothing() -> None:
    """The other half may wait for them; fewer than half are waited for."""
    half = verdict([waiting(rank, 4, **({"share": 59.0} if rank < 2 else {})) for rank in range(4)])
    assert ("stuck", None, "") == (half.kind, half.rank, half.stage)
    one = verdict([waiting(rank, 3, **({"share": 59.0} if rank == 1 else {})) for rank in range(3)])
    assert "stuck: rank 1 has waited in share for 59 s; ranks 0 and 2 wait for it" == one.text


def test_rank_without_a_step_is_not_behind() -> None:
    """Nothing is known about it."""
    job = [hanging(0, 3, step=299), hanging(1, 3), hanging(2, 3, step=None, step_age_ns=None)]
    found = verdict(job)
    assert ("no-steps", None) == (found.kind, found.rank)
    assert "behind" not in found.text
    assert 0 == verdict([*job[:2], hanging(2, 3)]).rank
