"""Simulated jobs: the facts of ranks that wait for each other, from a schedule with a known truth."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from monitel_otlp.autopsy.findings import Wait
from monitel_otlp.verdict.facts import RankFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

S = 10**9
#: Seconds of the stages of a step without noise.
WORK = {"optimizer": 0.010, "other": 0.005, "data": 0.010, "forward": 0.030, "backward": 0.060}
STEP = 0.120  # seconds of a usual step


def synchronous(
    random: Random,
    ranks: int,
    steps: int = 100,
    *,
    noise: float = 0.05,
    pauses: float = 0.0,
    work: Mapping[str, float] = WORK,
    late: Mapping[tuple[int, str], float] | None = None,
) -> list[RankFacts]:
    """Return the facts of ranks that wait for the last one in each step.

    Args:
        random: The source of chance.
        ranks: Number of ranks.
        steps: Number of steps.
        noise: Standard deviation of the logarithm of each time.
        pauses: Share of the times that are ten times as long.
        work: Seconds of each stage.
        late: Seconds that a stage of a rank takes in addition.
    """
    late = late or {}
    times: list[list[dict[str, float]]] = []  # by step and rank
    for _ in range(steps):
        step = [
            {
                stage: seconds * random.lognormvariate(0, noise) * (10 if random.random() < pauses else 1)
                + late.get((rank, stage), 0.0)
                for stage, seconds in work.items()
            }
            for rank in range(ranks)
        ]
        last = max(sum(of.values()) for of in step)
        times.append([{**of, "sync": last - sum(of.values())} for of in step] if ranks > 1 else step)
    whole = fmean(sum(step[0].values()) for step in times)
    return [
        training(
            rank,
            ranks,
            steps=steps,
            step_seconds=whole,
            activities=_ledger(whole * steps, fmean(step[rank]["data"] for step in times) * steps),
            stages={"": {stage: fmean(step[rank][stage] for step in times) for stage in times[0][rank]}},
        )
        for rank in range(ranks)
    ]


def _ledger(whole: float, data: float) -> dict[str, int]:
    return {"startup": 8 * S, "data": round(data * S), "step": round((whole - data) * S)}


def training(rank: int | None = 0, ranks: int = 1, **fields: Any) -> RankFacts:
    """Return the facts of a rank that trains: 100 steps of 0.12 s, of which 5 % wait for data."""
    usual: dict[str, Any] = {
        "pid": f"{100 + (rank or 0)}",
        "rank": rank,
        "world_size": ranks,
        "step": 300,
        "step_age_ns": S // 20,
        "steps": 100,
        "step_seconds": STEP,
        "activities": {"startup": 8 * S, "data": 6 * S // 10, "step": 114 * S // 10},
        "activity": "step",
        "activity_age_ns": S // 100,
        "stages": {"": {"data": 0.006, "backward": 0.114} | ({"sync": 0.0} if ranks > 1 else {})},
    }
    return RankFacts(**{**usual, **fields})


def hanging(rank: int | None = 0, ranks: int = 1, seconds: float = 60.0, **fields: Any) -> RankFacts:
    """Return the facts of a rank whose last step was so long ago."""
    since_ns = round(seconds * S)
    usual = {"step_age_ns": since_ns, "activity_age_ns": since_ns - S // 20}
    return training(rank, ranks, **{**usual, **fields})


def wait(key: str, seconds: float) -> Wait:
    """Return a wait in progress."""
    return Wait(key, round(seconds * S))


def ended(facts: Sequence[RankFacts], **fields: Any) -> list[RankFacts]:
    """Return the facts after the end of all processes, as a summary has them."""
    over: dict[str, Any] = {
        "state": "ended",
        "status": "completed",
        "step_age_ns": None,
        "activity": "",
        "activity_age_ns": None,
        "waits": (),
    }
    return [replace(each, **{**over, **fields}) for each in facts]
