"""Jobs over minutes with known delays and pauses: a few long pauses are not a constant loss, which is found."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.unit.console.made_processes import START, S, ended
from tests.unit.promises.test_verdict import WORK

from monitel.console.job import jobs_of
from monitel.console.period import Looks, over_a_period
from monitel.console.verdict import Verdict
from monitel.runs.process import Process, StageKey, State, Total

#: Returns the seconds that a stage of a rank takes in addition, from the step and the time of its begin.
Delay = Callable[[int, float, int, str], float]
WINDOW_S = 60.0
RANKS = 2


def lives(delay: Delay, seconds: float) -> Iterator[tuple[float, list[Process]]]:
    """Yield the time, and ranks that wait for each other in each step with the totals of their lives, once a second."""
    random, now_s, look_s, steps = Random(1), 0.0, 1.0, 0
    keys = [(rank, stage) for rank in range(RANKS) for stage in (*WORK, "sync")]
    closed, window_s = dict.fromkeys(keys, Total()), 0.0
    opened = dict(closed)
    while look_s <= seconds:
        steps += 1
        times = [
            {
                stage: usual * random.lognormvariate(0, 0.1) + delay(steps, now_s, rank, stage)
                for stage, usual in WORK.items()
            }
            for rank in range(RANKS)
        ]
        last = max(sum(of.values()) for of in times)
        now_s += last
        if now_s >= window_s:
            closed = {key: total.plus(opened[key]) for key, total in closed.items()}
            opened, window_s = dict.fromkeys(keys, Total()), now_s + WINDOW_S
        for key in keys:
            of = times[key[0]]
            took, total = of.get(key[1], last - sum(of.values())), opened[key]
            opened[key] = Total(total.count + 1, total.sum + took, 1, max(total.largest, took))
        while look_s <= min(now_s, seconds):
            yield now_s, [process(rank, now_s, steps, closed, opened) for rank in range(RANKS)]
            look_s += 1


def process(rank: int, now_s: float, steps: int, *totals: dict[tuple[int, str], Total]) -> Process:
    stages = {stage: totals[0][rank, stage].plus(totals[1][rank, stage]) for stage in (*WORK, "sync")}
    data_ns = round(stages["data"].sum * S)
    return ended(
        rank,
        time_ns=START + round(now_s * S),
        world_size=RANKS,
        step=steps,
        made=steps,
        step_time=Total(steps, now_s),
        stages={StageKey("", stage): total for stage, total in stages.items()},
        activities={"data": data_ns, "step": round(now_s * S) - data_ns},
    )


def looks(delay: Delay, seconds: int) -> Iterator[tuple[float, Verdict]]:
    """Yield the time and the verdict of each look of ``monitel top``, one a second."""
    all_looks = {Path(f"/boxes/{rank}"): Looks() for rank in range(RANKS)}
    before_s = 0.0
    for now_s, ranks in lives(delay, seconds):
        rows = []
        for each, (box, own) in zip(ranks, all_looks.items(), strict=True):
            rows.append(each.but(box=box, state=State.ALIVE, status="", step_age_ns=0, rate=8.0, step_p50=0.12))
            if now_s > before_s:
                own.add(rows[-1])
        before_s = now_s
        (job,) = jobs_of(over_a_period(rows, all_looks))
        yield now_s, job.verdict


def at_end(delay: Delay, seconds: float) -> Verdict:
    *_, (_, ranks) = lives(delay, seconds)
    [job] = jobs_of(ranks)
    return job.verdict


def paused(
    pause_s: float, every_s: float, rank: int | None = 1, stage: str = "forward", first_s: float = 12.0
) -> Delay:
    due = {0: first_s, 1: first_s}

    def delay(step: int, at_s: float, of_rank: int, of_stage: str) -> float:
        if of_stage != stage or rank not in {None, of_rank} or at_s < due[of_rank]:
            return 0.0
        due[of_rank] = at_s + every_s
        return pause_s

    return delay


def also(*delays: Delay) -> Delay:
    return lambda *given: sum(delay(*given) for delay in delays)


def every(steps: int, delay_s: float, rank: int = 1, stage: str = "forward") -> Delay:
    return lambda step, _, of_rank, of_stage: delay_s * ((of_rank, of_stage, step % steps) == (rank, stage, 0))


PAUSES = {
    "a second, twice a minute": (1.0, 30.0, 1, "forward"),
    "checkpoints of rank zero": (4.0, 60.0, 0, "other"),
    "ten seconds for data, twice a minute": (10.0, 30.0, None, "data"),
}


@pytest.mark.parametrize("pauses", PAUSES.values(), ids=PAUSES)
def test_pauses_are_no_constant_loss(pauses: tuple[float, float, int | None, str]) -> None:
    """At no look, whenever ``monitel top`` was started, and not in the summary."""
    found = {verdict.text for _, verdict in looks(paused(*pauses), 130) if verdict.kind not in {"healthy", "unknown"}}
    assert set() == found
    for seconds in (50.0, 130.0):
        assert "healthy" == at_end(paused(*pauses), seconds).kind


def test_delay_of_every_fifth_step_is_found_within_seconds() -> None:
    """``monitel top`` names it after twelve seconds, and the summary does."""
    steps, delay_s, at_least_s = 5, 0.2, 0.02
    for at_s, verdict in looks(every(steps, delay_s), 100):
        if at_s > 12:
            assert ("late-rank", 1, "forward") == (verdict.kind, verdict.rank, verdict.stage), at_s
            assert verdict.seconds is not None
            assert at_least_s < verdict.seconds < 2 * delay_s / steps
    found = at_end(every(steps, delay_s), 100)
    assert ("late-rank", 1, "forward") == (found.kind, found.rank, found.stage)


def test_delay_is_found_in_spite_of_pauses() -> None:
    """The late rank pauses, or the other one."""
    for rank in (0, 1):
        delay = also(every(1, 0.03), paused(5.0, 60.0, rank))
        kinds = {(v.kind, v.rank) for at_s, v in looks(delay, 150) if at_s > 60}
        assert {("late-rank", 1)} == kinds
