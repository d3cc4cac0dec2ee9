"""The process that has ended first, where times are equal or unknown."""

from __future__ import annotations

from tests.unit.console.verdict.simulated_jobs import S, training

from monitel_otlp.verdict.rules import verdict

KILLED = "killed by SIGKILL"


def test_death_comes_before_a_failure_of_the_same_time() -> None:
    """The exception is its consequence. A time that is not known comes last."""
    dead = training(1, 2, state="dead", death=KILLED, seen_ns=5 * S)
    failed = training(0, 2, state="ended", status="failed", seen_ns=5 * S)
    assert ("dead", 1) == verdict([failed, dead])[:3:2]
    earlier = training(0, 2, state="ended", status="failed", seen_ns=4 * S)
    assert ("failed", 0) == verdict([earlier, dead])[:3:2]
    unknown = training(0, 2, state="ended", status="failed", seen_ns=0)
    assert ("dead", 1) == verdict([unknown, dead])[:3:2]


def test_first_of_several_deaths_is_named_only_if_their_times_are_known() -> None:
    """Otherwise the verdict is about no rank."""
    for seen_ns, rank, first in ((5 * S, 1, ", rank 1 first"), (0, None, "")):
        job = [training(each, 2, state="dead", death=KILLED, seen_ns=seen_ns and seen_ns - each) for each in range(2)]
        found = verdict(job)
        assert (f"dead: ranks 0 and 1 {KILLED} at step 300{first}", rank) == (found.text, found.rank)
