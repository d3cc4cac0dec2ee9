"""Jobs that make no steps, of which the stage of each rank is known: the rank that does not wait for the others."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.console.verdict.simulated_jobs import S, hanging, wait

from monitel_otlp.black_box.activity import Stage
from monitel_otlp.verdict.rules import verdict

if TYPE_CHECKING:
    from monitel_otlp.verdict.facts import RankFacts

SINCE = 125.0  # seconds without a step


def at(rank: int, ranks: int, stage: str, *, waits: bool = False, seconds: float = SINCE, step: int = 300) -> RankFacts:
    """Return the facts of a rank that has been in a stage for almost as long as the job stands still."""
    return replace(
        hanging(rank, ranks, SINCE, step=step), stage=Stage(stage, waits, round((seconds - 1) * S)), activity="step"
    )


def waiting(*ranks: int, of: int, stage: str = "backward") -> list[RankFacts]:
    """Return the facts of ranks that wait for others."""
    return [at(rank, of, stage, waits=True) for rank in ranks]


def test_rank_that_hangs_in_forward() -> None:
    """Two ranks are enough: one waits, the other does not."""
    found = verdict([*waiting(0, of=2), at(1, 2, "forward")])
    assert ("stuck", 1, "forward", SINCE) == (found.kind, found.rank, found.stage, found.seconds)
    assert "stuck: rank 1 has been in forward for 2 min 4 s; rank 0 waits for it in backward" == found.text


def test_rank_that_hangs_in_the_stage_of_the_others() -> None:
    """The others have their own gradients, and it has not."""
    found = verdict([*waiting(0, 1, 3, of=4), at(2, 4, "backward")])
    assert "stuck: rank 2 has been in backward for 2 min 4 s; ranks 0, 1 and 3 wait for it in backward" == found.text
    assert ("stuck", 2, "backward") == found[:1] + found[2:4]


def test_several_ranks_hang() -> None:
    """Each is named with its stage; the others wait in different ones."""
    job = [*waiting(0, of=4), *waiting(2, of=4, stage="optimizer"), at(1, 4, "data"), at(3, 4, "forward")]
    text = (
        "rank 1 has been in data for 2 min 4 s, rank 3 has been in forward for 2 min 4 s; ranks 0 and 2 wait for them"
    )
    assert ("stuck", f"stuck: {text}", None, "") == verdict(job)[:4]
    job[3] = at(3, 4, "data")
    assert "stuck: ranks 1 and 3 have been in data for 2 min 4 s; ranks 0 and 2 wait for them" == verdict(job).text


def test_stage_other_may_be_an_evaluation() -> None:
    """Nothing shows whether that ends by itself. The rank is named, and not called stuck."""
    found = verdict([at(0, 4, "other"), *waiting(1, 2, 3, of=4)])
    assert ("no-steps", 0, "other") == (found.kind, found.rank, found.stage)
    assert "no steps: rank 0 has been in other for 2 min 4 s; ranks 1-3 wait for it in backward" == found.text


def test_activity_tells_more_than_the_stage() -> None:
    """A checkpoint is a pause. A rank that waits for others in its checkpoint holds up nobody."""
    saving = replace(at(0, 4, "other"), activity="checkpoint.save", activity_age_ns=90 * S)
    found = verdict([saving, *waiting(1, 2, 3, of=4)])
    text = "paused: rank 0 has been in checkpoint.save for 1 min 30 s; ranks 1-3 wait for it in backward"
    assert ("paused", text, 0, "checkpoint.save") == found[:4]
    saving = replace(saving, stage=Stage("other", True, 124 * S))
    found = verdict([saving, at(1, 4, "forward"), *waiting(2, 3, of=4)])
    assert "stuck: rank 1 has been in forward for 2 min 4 s; ranks 0, 2 and 3 wait for it" == found.text


def test_wait_tells_more_than_the_stage() -> None:
    """A lock, or whatever the program counts as a wait. The wait that most ranks are in comes first."""
    locked = replace(at(1, 2, "other"), waits=[wait("share", 120.0)])
    found = verdict([*waiting(0, of=2), locked])
    assert ("stuck", "stuck: rank 1 has waited in share for 2 min; rank 0 waits for it in backward") == found[:2]
    job = [replace(each, waits=[wait("all_reduce", 124.0)]) for each in waiting(0, 1, 2, of=4)]
    found = verdict([*job, at(3, 4, "forward")])
    assert "stuck: rank 3 has been in forward for 2 min 4 s; ranks 0-2 wait for it in all_reduce" == found.text
    assert "all_reduce" == found.stage


def test_all_ranks_wait() -> None:
    """The one that they wait for is elsewhere, or there is none."""
    found = verdict(waiting(0, 1, of=4))
    text = "stuck: ranks 0 and 1 have waited for other ranks in backward for 2 min 4 s (2 of 4 ranks found here"
    assert ("stuck", None, "backward") == found[:1] + found[2:4]
    assert found.text.startswith(text)
    apart = verdict([*waiting(0, of=2), *waiting(1, of=2, stage="other")])
    text = "rank 0 has waited for other ranks in backward for 2 min 4 s"
    assert f"stuck: {text}, rank 1 has waited for other ranks in other for 2 min 4 s" == apart.text


def test_nobody_waits_where_it_is_seen() -> None:
    """The stages are facts, and no rank is named: one in an earlier stage may be ahead by a part of a batch."""
    found = verdict([at(0, 4, "backward"), at(1, 4, "forward"), at(2, 4, "backward"), at(3, 4, "backward")])
    assert ("no-steps", None) == (found.kind, found.rank)
    text = "no steps: ranks 0-3 made none for 2 min 5 s (usually one in 0.1 s)"
    assert f"{text}; rank 1 is in forward, ranks 0, 2 and 3 are in backward; see monitel autopsy" == found.text
    alone = verdict([at(0, 1, "forward")])
    text = "no steps: rank 0 made none for 2 min 5 s (usually one in 0.1 s), in forward; see monitel autopsy"
    assert text == alone.text
    behind = verdict([at(0, 2, "other"), at(1, 2, "forward", step=299)])
    text = "no steps: none for 2 min 5 s; rank 1 is behind the others, at step 299, in forward"
    assert ("no-steps", text, 1) == behind[:3]


def test_few_ranks_wait() -> None:
    """The others may wait where nothing is seen."""
    job = [*waiting(0, of=4), *(at(rank, 4, "forward") for rank in (1, 2, 3))]
    assert ("no-steps", None) == (verdict(job).kind, verdict(job).rank)
    counted = [replace(job[0], waits=[wait("barrier", 120.0)]), *job[1:]]
    assert verdict(counted).rank is None, "it waits for the others, and they do not wait for it"


def test_rank_that_nothing_is_known_about() -> None:
    """Without stages, between two batches, or with a stage of a loop that has ended, a rank may be anywhere."""
    for odd in (
        hanging(1, 2, SINCE),
        at(1, 2, "data", seconds=2.0),
        at(1, 2, "forward", seconds=900.0),
    ):
        assert verdict([*waiting(0, of=2), odd]).rank is None
    young = replace(at(0, 2, "backward"), stage=Stage("backward", True, S))
    assert verdict([young, at(1, 2, "forward")]).rank is None, "it goes from wait to wait"


def test_nobody_waits_for_a_rank_that_has_made_more_steps() -> None:
    """Such a rank has been where the others wait."""
    assert verdict([*waiting(0, of=2), at(1, 2, "forward", step=301)]).rank in {None, 0}
    assert "stuck" != verdict([*waiting(0, of=2), at(1, 2, "forward", step=301)]).kind
    assert 1 == verdict([*waiting(0, of=2), at(1, 2, "forward", step=299)]).rank


@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(2, 9),
    stage=st.sampled_from(["data", "forward", "backward", "optimizer", "other"]),
    seen=st.booleans(),
)
def test_only_the_hanging_rank_is_named(seed: int, ranks: int, *, stage: str, seen: bool) -> None:
    """The waits of the others show which one it is. If these are not seen, nobody is named, whatever the stages are."""
    random = Random(seed)
    culprit = random.randrange(ranks)
    later = ["backward", "optimizer"] if seen else ["data", "forward", "backward", "optimizer", "other"]
    job = [at(rank, ranks, random.choice(later), waits=seen) for rank in range(ranks)]
    job[culprit] = at(culprit, ranks, stage)
    random.shuffle(job)
    found = verdict(job)
    assert (culprit if seen else None) == found.rank
    assert ("stuck" if seen and stage != "other" else "no-steps") == found.kind
