"""Jobs that start, and jobs about which too little is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.console.verdict.simulated_jobs import S, ended, training

from monitel_otlp.verdict.facts import RankFacts, State
from monitel_otlp.verdict.job_facts import JobFacts
from monitel_otlp.verdict.rules import verdict

if TYPE_CHECKING:
    from random import Random


def starting(rank: int, activity: str, seconds: float) -> RankFacts:
    """Return the facts of a rank before its first step."""
    return RankFacts(f"{rank}", rank, 4, activity=activity, activity_age_ns=round(seconds * S))


def test_job_that_starts() -> None:
    """A rank that is missing in the initialization is visible."""
    job = [starting(rank, "startup" if rank == 3 else "init", 12.0 + rank) for rank in range(4)]
    found = verdict(job)
    assert ("starting", "init") == (found.kind, found.stage)
    assert "starting: ranks 0-2 have been in init for 14 s, rank 3 has been starting for 15 s" == found.text
    few = " (3 of 4 ranks found here, the others elsewhere or ended)"
    assert verdict(job[:3]).text == f"starting: ranks 0-2 have been in init for 14 s{few}"


def test_time_of_a_start_does_not_begin_again() -> None:
    """After ``init`` it is ``startup`` again until the first step."""
    times = {"startup": 12 * S, "init": 19 * S}
    found = verdict([RankFacts("1", 0, activity="startup", activity_age_ns=7 * S // 10, activities=times)])
    assert "starting: rank 0 has been starting for 31 s" == found.text


def test_process_that_has_just_begun() -> None:
    """Its activities are not known yet; after that, it has none."""
    for age_ns, kind in ((S, "starting"), (10 * S, "unknown")):
        found = verdict([RankFacts("1", 0, age_ns=age_ns)])
        assert kind == found.kind
    assert "starting: rank 0 has been starting for 1.0 s" == verdict([RankFacts("1", 0, age_ns=S)]).text


def test_loop_in_another_activity() -> None:
    """The ledger has neither ``step`` nor ``data``, so nothing waits for data; the steps are known."""
    found = verdict([RankFacts("1", step=50, step_age_ns=0, steps=50, rate=10.0, activities={"epoch": 5 * S})])
    assert "healthy: 10.00 steps/s, 0 % waiting for data" == found.text


def test_start_that_hangs() -> None:
    """The ledger counts a wait over its threshold as stuck."""
    found = verdict([starting(rank, "stuck", 20.0) for rank in range(4)])
    assert "stuck: ranks 0-3 have been in stuck for" not in found.text
    assert "stuck" == found.kind


@pytest.mark.parametrize(
    ("steps", "text"), [(1, "1 step so far"), (19, "19 steps so far"), (0, "0 steps so far"), (20, None)]
)
def test_few_steps(steps: int, text: str | None) -> None:
    """Shares of a few steps mean little."""
    found = verdict([training(steps=steps)])
    healthy = "healthy: 8.33 steps/s, 5 % waiting for data"
    assert (f"unknown: {text}, a verdict needs 20 steps" if text else healthy) == found.text


def test_missing_facts_are_named_with_their_remedy() -> None:
    """A user can do something about it."""
    calls = "call monitel.set_step(), or monitel.torch.instrument()"
    assert f"unknown: no step was set; {calls}" == verdict([RankFacts("7", activity="other")]).text
    assert f"unknown: no step was set; {calls}" == verdict([]).text
    bare = training(activities={}, stages={})
    assert f"unknown: 8.33 steps/s, without a ledger or stages; {calls}" == verdict([bare]).text
    ranks = [training(rank, 2, stages={}) for rank in range(2)]
    remedy = "late ranks are not known without stages; call monitel.torch.instrument()"
    assert f"unknown: 2 ranks, 8.33 steps/s, no loss found, but {remedy}" == verdict(ranks).text
    assert "unknown: 1 step, a verdict needs 20 steps" == verdict(ended([training(steps=1)])).text


def test_processes_without_ranks() -> None:
    """Processes are counted, and not compared."""
    job = [training(None, pid=f"{number}", stages={}) for number in range(3)]
    assert "healthy: 3 processes, 8.33 steps/s, 5 % waiting for data" == verdict(job).text
    assert 3 == len(JobFacts.of(job).processes)


_NUMBERS = st.one_of(st.none(), st.integers(0, 2**63))
_SECONDS = st.floats(allow_nan=True, allow_infinity=True)
_NAMES = st.sampled_from(["step", "data", "compile", "stuck", "startup", "checkpoint.save", "evil\x1b[2J", ""])
_STATES: list[State] = ["alive", "silent", "dead", "ended"]
_FACTS = st.builds(
    RankFacts,
    pid=st.sampled_from(["1", "2", "x\n"]),
    rank=st.one_of(st.none(), st.integers(0, 5)),
    world_size=st.one_of(st.none(), st.integers(0, 2**40)),
    state=st.sampled_from(_STATES),
    death=st.sampled_from(["", "killed by SIGKILL"]),
    status=st.sampled_from(["", "completed", "failed", "interrupted"]),
    seen_ns=st.integers(0, 2**63),
    silent_ns=_NUMBERS,
    step=_NUMBERS,
    step_age_ns=_NUMBERS,
    steps=st.integers(0, 2**63),
    step_seconds=st.one_of(st.none(), _SECONDS),
    activities=st.dictionaries(_NAMES, st.integers(-1, 2**63)),
    activity=_NAMES,
    activity_age_ns=_NUMBERS,
    recompilations=st.integers(0, 2**63),
    recompiling_ns=st.integers(0, 2**63),
    stages=st.dictionaries(
        st.sampled_from(["", "g"]), st.dictionaries(st.sampled_from(["data", "sync", "forward", "x"]), _SECONDS)
    ),
)


@given(st.lists(_FACTS, max_size=7), st.randoms(use_true_random=False))
def test_any_facts_have_a_verdict(job: list[RankFacts], random: Random) -> None:
    """Boxes may be damaged or hostile. Numbers are finite, and the order of the processes makes no difference."""
    found = verdict(job)
    assert found.text
    assert "\n" not in found.text.replace("x\n", "")
    assert all(number is None or math.isfinite(number) for number in (found.seconds, found.share))
    assert found.share is None or 0 <= found.share <= 1
    ranks = {each.rank for each in job}
    if len(ranks) == len(job):
        shuffled = [*job]
        random.shuffle(shuffled)
        assert found == verdict([replace(each) for each in shuffled])
