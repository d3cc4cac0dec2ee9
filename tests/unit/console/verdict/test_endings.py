"""Processes that died or failed: the first one is named, and not its consequences."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.console.verdict.simulated_jobs import S, ended, hanging, training, wait

from monitel_otlp.verdict.rules import verdict

if TYPE_CHECKING:
    from monitel_otlp.verdict.facts import RankFacts

KILLED = "killed by SIGKILL"


def test_dead_rank_comes_before_everything_else() -> None:
    """The ranks that wait for it are the consequence."""
    job = [hanging(rank, 4, 40.0, waits=[wait("all_reduce", 39.0)]) for rank in range(4)]
    job[2] = training(2, 4, state="dead", death=KILLED, seen_ns=7 * S, step=1300)
    found = verdict(job)
    assert ("dead", 2) == (found.kind, found.rank)
    assert "dead: rank 2 killed by SIGKILL at step 1,300; ranks 0, 1 and 3 wait in all_reduce" == found.text


def test_first_death_is_named() -> None:
    """The launcher kills the others after it."""
    job = [training(rank, 4, state="dead", death=KILLED, seen_ns=9 * S) for rank in range(4)]
    job[1] = replace(job[1], death="killed by SIGSEGV", seen_ns=8 * S)
    found = verdict(job)
    assert ("dead: rank 1 killed by SIGSEGV at step 300; 3 more ended after it", 1) == (found.text, found.rank)


def test_ranks_that_died_alike_are_named_together() -> None:
    """With the first one."""
    job = [training(rank, 8, state="dead", death=KILLED, seen_ns=(9 - rank) * S) for rank in range(4)]
    expected = "dead: ranks 0-3 killed by SIGKILL at step 300, rank 3 first (4 of 8 ranks found here)"
    assert (expected, 3) == (verdict(job).text, verdict(job).rank)
    assert verdict([replace(each, seen_ns=0) for each in job]).rank is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"death": "", "step": 3}, "dead: process 100 died of an unknown cause at step 3"),
        ({"death": "ended without a shutdown", "step": None}, "dead: process 100 ended without a shutdown before"),
    ],
)
def test_death_with_little_knowledge(fields: dict[str, Any], text: str) -> None:
    """Nothing is invented."""
    assert verdict([training(None, state="dead", **fields)]).text.startswith(text)


def test_failure_and_its_consequences() -> None:
    """The launcher ends the other ranks by SIGTERM, and some by SIGKILL later."""
    job = ended([training(rank, 4, seen_ns=9 * S) for rank in range(4)], status="preempted")
    job[1] = replace(job[1], status="failed", seen_ns=8 * S)
    job[3] = replace(job[3], status="", state="dead", death=KILLED)
    found = verdict(job)
    assert ("failed", 1) == (found.kind, found.rank)
    assert "failed: rank 1 failed at step 300; 1 more ended after it" == found.text
    first = [replace(each, seen_ns=7 * S if each.state == "dead" else each.seen_ns) for each in job]
    assert ("dead", 3) == (verdict(first).kind, verdict(first).rank)


def test_second_process_of_a_rank_does_not_count() -> None:
    """A rank may have started a process that makes no steps, and that was killed at its end."""
    helper = training(0, pid="999", state="dead", death="killed by SIGTERM", step=None, steps=0)
    assert "healthy" == verdict([helper, training(0)]).kind
    assert "healthy" == verdict([training(0), helper]).kind
    assert "dead" == verdict([training(0), replace(helper, rank=None)]).kind


def gone(rank: int, ranks: int = 2, **fields: Any) -> RankFacts:
    """Return the facts of a rank that has ended, nobody knows how."""
    return training(rank, ranks, **{"state": "ended", "seen_ns": 9 * S, "silent_ns": 12 * S, **fields})


def test_end_that_is_not_known_is_not_healthy() -> None:
    """Neither that of the job, nor that of a rank while others run."""
    over = "ended: ranks 0 and 1 ended for an unknown reason at step 300, 12 s ago; look at the end of the output"
    found = verdict([gone(0), gone(1)])
    assert ("ended", over, None) == (found.kind, found.text, found.rank)
    found = verdict([training(0, 2), gone(1)])
    text = (
        "ended: rank 1 ended for an unknown reason at step 300, 12 s ago; rank 0 runs on; look at the end of the output"
    )
    assert (text, 1) == (found.text, found.rank)
    waits = hanging(0, 2, 40.0, waits=[wait("all_reduce", 39.0)])
    assert "; rank 0 waits in all_reduce; look at" in verdict([waits, gone(1)]).text
    assert verdict([gone(0, 1, step=None, steps=0)]).text.startswith("ended: rank 0 ended for an unknown reason before")


def test_rank_with_the_steps_of_a_completed_one_has_completed() -> None:
    """The end of rank zero is known from its ledger or spool."""
    completed = gone(0, status="completed")
    assert "healthy" == verdict([completed, gone(1)]).kind
    assert ("ended", 1) == (verdict([completed, gone(1, step=299)]).kind, verdict([completed, gone(1, step=299)]).rank)
    assert "ended" == verdict([completed, gone(1), training(2, 3)]).kind


def test_end_that_is_not_known_may_be_the_consequence_of_one_that_is() -> None:
    """The last heartbeat may be two seconds before the end: then nobody is named."""
    failed = gone(0, status="failed", seen_ns=9 * S)
    for seen_s, text, rank in (
        (12, "failed: rank 0 failed at step 300; 1 more ended after it", 0),
        (8, "failed: rank 0 failed at step 300; 1 more ended", None),
        (6, "ended: rank 1 ended for an unknown reason at step 300, 12 s ago; 1 more ended after it", 1),
    ):
        found = verdict([failed, gone(1, seen_ns=seen_s * S)])
        assert (text, rank) == (found.text.removesuffix("; look at the end of the output"), found.rank)


def test_rank_that_has_left_first_is_named() -> None:
    """The rank has called ``os._exit(0)``, which is not a fault if nothing happens after it."""
    left = gone(1, death="ended with exit code 0 without a shutdown", seen_ns=8 * S)
    found = verdict([gone(0, status="failed"), left])
    text = "ended: rank 1 ended with exit code 0 without a shutdown at step 300, 12 s ago; 1 more ended after it"
    assert (text, 1) == (found.text, found.rank)
    assert ("ended", 1) == verdict([training(0, 2), left])[:3:2]
    later = replace(left, seen_ns=10 * S)
    assert ("failed", 0) == verdict([gone(0, status="failed"), later])[:3:2]
    assert "healthy" == verdict([gone(0, status="completed"), left]).kind
