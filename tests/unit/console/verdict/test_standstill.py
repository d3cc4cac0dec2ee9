"""Jobs that make no steps: the rank that the others wait for, and how it is known."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.console.verdict.simulated_jobs import S, ended, hanging, training, wait

from monitel_otlp.verdict.rules import Verdict, verdict

if TYPE_CHECKING:
    from monitel_otlp.verdict.facts import RankFacts


def hung(random: Random, ranks: int, culprit: int, *, collectives: bool, activity: str, key: str) -> list[RankFacts]:
    """Return a synchronous job in which one rank hangs, and all others have reached the collective after that.

    Args:
        random: The source of chance, for times and for threads that prefetch.
        ranks: Number of ranks.
        culprit: The rank that hangs.
        collectives: Collectives have a wait counter.
        activity: The activity in which the rank hangs.
        key: The wait counter in which it hangs; empty if there is none.
    """
    since = random.uniform(31.0, 5000.0)
    found = []
    for rank in range(ranks):
        waits = [wait("queue.get", since + 900)] if random.random() < 0.5 else []  # of a thread, since the start
        if rank == culprit:
            waits += [wait(key, since - random.uniform(0.0, 0.1))] if key else []
            found.append(hanging(rank, ranks, since, activity=activity, waits=waits))
        else:
            waits += [wait("all_reduce", since - random.uniform(0.0, 0.3))] if collectives else []
            found.append(hanging(rank, ranks, since, waits=waits))
    random.shuffle(found)
    return found


@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(2, 9),
    collectives=st.booleans(),
    activity=st.sampled_from(["step", "data", "evaluation", "checkpoint.save", "my.phase", "shutdown"]),
    key=st.sampled_from(["", "share"]),
)
def test_only_the_hanging_rank_is_named(seed: int, ranks: int, *, collectives: bool, activity: str, key: str) -> None:
    """A wait or an activity shows which one it is. Otherwise no rank is named."""
    random = Random(seed)
    culprit = random.randrange(ranks)
    found = verdict(hung(random, ranks, culprit, collectives=collectives, activity=activity, key=key))
    assert found.rank in {None, culprit}
    visible = activity != "step" or (collectives and ranks > 2) or (key and ranks > 2)
    assert (culprit if visible else None) == found.rank
    unknown = "stuck" if collectives or key else "no-steps"
    expected = {"step": "stuck" if visible else unknown, "data": "stuck", "shutdown": "stuck"}.get(activity, "paused")
    assert expected == found.kind


def of(*ranks: RankFacts) -> Verdict:
    """Return the verdict about ranks."""
    return verdict(ranks)


def test_rank_outside_of_the_collective_is_the_culprit() -> None:
    """Not the one that has waited longest."""
    job = [hanging(rank, 4, 125.0, waits=[wait("all_reduce", 124.0 + rank / 10)]) for rank in range(4)]
    job[1] = hanging(1, 4, 124.5, activity="data", activity_age_ns=124 * S)
    found = verdict(job)
    assert ("stuck", 1, "all_reduce") == found[:1] + found[2:4]
    assert "stuck: rank 1 has been in data for 2 min 4 s; ranks 0, 2 and 3 wait for it in all_reduce" == found.text
    assert 124.5 == found.seconds


def test_all_ranks_in_one_wait() -> None:
    """The late rank may be on another machine."""
    job = [hanging(rank, 8, 61.0, waits=[wait("all_reduce", 60.0)]) for rank in range(4)]
    found = verdict(job)
    assert ("stuck", None) == (found.kind, found.rank)
    assert (
        "stuck: ranks 0-3 have waited in all_reduce for 1 min (4 of 8 ranks found here, the others elsewhere or ended)"
        == found.text
    )


def test_single_process() -> None:
    """Nobody is compared with it."""
    assert "stuck: rank 0 has waited in share for 1 min" == of(hanging(waits=[wait("share", 59.9)])).text
    assert "stuck: process 100 has been in data for 1 min" == of(hanging(None, activity="data")).text
    found = of(hanging(activity="stuck", activity_age_ns=9 * S, seconds=309.0))
    assert "stuck: rank 0 has been in a wait over its threshold for 9.0 s" == found.text


def test_two_ranks_in_different_waits() -> None:
    """Nothing shows which one waits for the other."""
    job = [hanging(0, 2, waits=[wait("all_reduce", 59.0)]), hanging(1, 2)]
    found = verdict(job)
    assert ("stuck", None) == (found.kind, found.rank)
    assert "stuck: rank 0 has waited in all_reduce for 59 s, rank 1 is in no known wait" == found.text


def test_rank_in_a_wait_holds_up_ranks_that_wait_where_nothing_is_seen() -> None:
    """Most collectives of torch have no wait counter."""
    job = [hanging(rank, 4, waits=[wait("share", 59.0)] if rank == 3 else []) for rank in range(4)]
    assert "stuck: rank 3 has waited in share for 59 s; ranks 0-2 wait for it" == verdict(job).text


def test_several_ranks_hold_up_the_others() -> None:
    """All of these are named."""
    job = [hanging(rank, 5, activity="data" if rank in {1, 3} else "step") for rank in range(5)]
    assert "stuck: ranks 1 and 3 have been in data for 1 min; ranks 0, 2 and 4 wait for them" == verdict(job).text
    apart = [hanging(rank, 5, activity={1: "data", 3: "evaluation"}.get(rank, "step")) for rank in range(5)]
    text = "stuck: rank 1 has been in data for 1 min, rank 3 has been in evaluation for 1 min"
    assert f"{text}; ranks 0, 2 and 4 wait for them" == verdict(apart).text
    inside = [hanging(rank, 5, waits=[] if rank in {1, 3} else [wait("all_reduce", 59.0)]) for rank in range(5)]
    text = "stuck: ranks 1 and 3 are not in this wait; ranks 0, 2 and 4 wait for them in all_reduce"
    assert text == verdict(inside).text


def test_checkpoint_of_one_rank_is_a_pause() -> None:
    """The others wait for it, and it goes on when the checkpoint is saved."""
    job = [hanging(rank, 4, 45.0, waits=[wait("barrier", 44.0)] if rank else []) for rank in range(4)]
    job[0] = replace(job[0], activity="checkpoint.save", activity_age_ns=44 * S)
    expected = "paused: rank 0 has been in checkpoint.save for 44 s; ranks 1-3 wait for it in barrier"
    assert ("paused", expected) == verdict(job)[:2]
    together = [hanging(rank, 2, 45.0, activity="evaluation") for rank in range(2)]
    assert "paused: ranks 0 and 1 have been in evaluation for 45 s" == verdict(together).text


def test_rank_that_ends_while_the_others_wait() -> None:
    """Ranks with fewer batches leave the others behind. A process that ends alone only takes its time."""
    job = [hanging(rank, 4, activity="shutdown" if rank == 3 else "step") for rank in range(4)]
    assert "stuck: rank 3 has been in shutdown for 1 min; ranks 0-2 wait for it" == verdict(job).text
    assert "paused: rank 0 has been in shutdown for 1 min" == of(hanging(activity="shutdown")).text


def test_step_without_an_end() -> None:
    """An evaluation that is not marked looks the same: the facts are reported, and nobody is blamed."""
    found = verdict([hanging(rank, 4, 125.0) for rank in range(4)])
    assert ("no-steps", None, 125.0) == (found.kind, found.rank, found.seconds)
    assert "no steps: ranks 0-3 made none for 2 min 5 s (usually one in 0.1 s); see monitel autopsy" == found.text
    loading = hanging(0, 1, 125.0, activity="data", activity_age_ns=S // 100)  # between two batches
    assert "no-steps" == of(loading).kind


def test_rank_behind_the_others() -> None:
    """The last step is only a hint: that of a pipeline's stages differs by design."""
    job = [hanging(rank, 4, 125.0, step=299 if rank == 2 else 300) for rank in range(4)]
    found = verdict(job)
    assert ("no-steps", 2) == (found.kind, found.rank)
    assert "no steps: none for 2 min 5 s; rank 2 is behind the others, at step 299" == found.text


def test_ranks_that_do_not_wait_go_on() -> None:
    """A rank that trains alone may hang alone."""
    found = of(hanging(0, 3, waits=[wait("share", 59.0)]), training(1, 3), training(2, 3))
    assert ("stuck", 0) == (found.kind, found.rank)
    assert "stuck: rank 0 has waited in share for 59 s; ranks 1 and 2 go on" == found.text


def test_ranks_that_reach_the_limit_later_are_still_compared() -> None:
    """The limit depends on the usual step of each rank."""
    job = [hanging(rank, 3, 31.0, waits=[wait("all_reduce", 30.0)] if rank else []) for rank in range(3)]
    job[0] = replace(job[0], step_seconds=4.0, activity="data", activity_age_ns=31 * S)
    assert ("stuck", 0) == (verdict(job).kind, verdict(job).rank)


@pytest.mark.parametrize("usual", [None, float("nan"), float("inf"), -1.0])
def test_unknown_usual_step(usual: float | None) -> None:
    """Then five minutes without a step are a standstill."""
    fields: dict[str, Any] = {"step_seconds": usual, "activities": {}}
    assert "no-steps" == of(hanging(seconds=301.0, **fields)).kind
    assert "no-steps" != of(hanging(seconds=299.0, **fields)).kind


def test_process_without_steps_beside_the_training() -> None:
    """Such a process takes no part in the comparison."""
    helper = training(None, step=None, step_age_ns=None, steps=0, pid="9", activity="startup", activity_age_ns=90 * S)
    found = of(hanging(waits=[wait("share", 59.0)]), helper)
    assert ("stuck", 0) == (found.kind, found.rank)


def test_stopped_process_is_silent() -> None:
    """The others wait for it."""
    job = [hanging(rank, 4, 40.0) for rank in range(4)]
    job[2] = replace(job[2], state="silent", silent_ns=39 * S)
    found = verdict(job)
    assert ("silent", 2, 39.0) == (found.kind, found.rank, found.seconds)
    assert "silent: rank 2 has run no Python code for 39 s; ranks 0, 1 and 3 make no steps" == found.text
    early = [replace(each, step_age_ns=12 * S) for each in job]
    early[2] = replace(early[2], silent_ns=12 * S)
    assert "silent: rank 2 has run no Python code for 12 s" == verdict(early).text


def test_short_silence_is_usual() -> None:
    """C code may keep the GIL for some seconds."""
    ranks = [training(rank, 2) for rank in range(2)]
    assert "healthy" == of(ranks[0], replace(ranks[1], state="silent", silent_ns=9 * S)).kind
    assert "silent" == of(ranks[0], replace(ranks[1], state="silent", silent_ns=10 * S)).kind
    assert "silent: rank 1 has run no Python code" == of(ranks[0], replace(ranks[1], state="silent")).text


def test_job_that_was_interrupted_while_it_hung() -> None:
    """After the end there is no wait any more, but a time without steps."""
    job = ended([training(rank, 2) for rank in range(2)], status="interrupted", step_age_ns=125 * S)
    found = verdict(job)
    assert "no steps: ranks 0 and 1 made none for 2 min 5 s before the end (usually one in 0.1 s)" == found.text
    assert "healthy" == verdict([replace(each, status="completed") for each in job]).kind
    assert "healthy" == verdict([replace(each, step_age_ns=29 * S) for each in job]).kind


def test_job_that_was_stuck_for_much_of_its_time() -> None:
    """The ledger has it even if the job went on."""
    job = ended([training(rank, 2) for rank in range(2)])
    job[1] = replace(job[1], activities={"startup": 8 * S, "step": 60 * S, "stuck": 15 * S})
    found = verdict(job)
    assert ("stuck", 1, 15.0, 0.2) == (found.kind, found.rank, found.seconds, found.share)
    assert "stuck: rank 1 was in waits over their threshold for 15 s (20 %)" == found.text
    job[1] = replace(job[1], activities={"startup": 8 * S, "step": 91 * S, "stuck": 9 * S})
    assert "healthy" == verdict(job).kind
