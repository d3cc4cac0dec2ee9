"""Rates and quantiles of the times from step to step, and jobs over minutes with known delays and pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.unit.console.made_processes import START, S, ended
from tests.unit.promises.test_verdict import WORK

from monitel.blackbox.context_page import COUNTERS, Context, counter_of
from monitel.console.job import jobs_of
from monitel.console.period import Looks, over_a_period
from monitel.console.verdict import Verdict
from monitel.runs.process import Process, StageKey, State, Total

#: Returns the seconds that a stage of a rank takes in addition, from the step, the time of its begin, rank and stage.
Delay = Callable[[int, float, int, str], float]
Totals = dict[tuple[int, str], Total]
WINDOW_S = 60.0
RANKS = range(2)


def lives(delay: Delay, seconds: float) -> Iterator[tuple[float, list[Process]]]:
    """Yield the time, and ranks that wait for each other in each step with the totals of their lives, once a second."""
    random, now_s, look_s, steps, window_s = Random(1), 0.0, 1.0, 0, 0.0
    closed: Totals = {(rank, stage): Total() for rank in RANKS for stage in (*WORK, "sync")}
    opened = dict(closed)
    while look_s <= seconds:
        steps += 1
        took = {
            (rank, stage): usual * random.lognormvariate(0, 0.1) + delay(steps, now_s, rank, stage)
            for rank in RANKS
            for stage, usual in WORK.items()
        }
        work = {rank: sum(took[rank, stage] for stage in WORK) for rank in RANKS}
        took |= {(rank, "sync"): max(work.values()) - work[rank] for rank in RANKS}
        now_s += max(work.values())
        if now_s >= window_s:
            closed = {key: total.plus(opened[key]) for key, total in closed.items()}
            opened, window_s = dict.fromkeys(closed, Total()), now_s + WINDOW_S
        for key, total in opened.items():
            opened[key] = Total(total.count + 1, total.sum + took[key], 1, max(total.largest, took[key]))
        while look_s <= min(now_s, seconds):
            totals = {key: total.plus(opened[key]) for key, total in closed.items()}
            yield now_s, [process(rank, now_s, steps, totals) for rank in RANKS]
            look_s += 1


def process(rank: int, now_s: float, steps: int, totals: Totals) -> Process:
    data_ns = round(totals[rank, "data"].sum * S)
    return ended(
        rank,
        time_ns=START + round(now_s * S),
        world_size=len(RANKS),
        step=steps,
        made=steps,
        step_time=Total(steps, now_s),
        stages={StageKey("", stage): total for (of, stage), total in totals.items() if of == rank},
        activities={"data": data_ns, "step": round(now_s * S) - data_ns},
    )


def looks(delay: Delay, seconds: int) -> Iterator[tuple[float, Verdict, Verdict]]:
    """Yield the time, the verdict of each look of ``monitel top``, one a second, and that of a summary at this time."""
    all_looks = [Looks() for _ in RANKS]
    before_s = 0.0
    for now_s, ranks in lives(delay, seconds):
        live = {"state": State.ALIVE, "status": "", "step_age_ns": 0, "rate": 8.0, "step_p50": 0.12}
        rows = [each.but(box=Path(f"/boxes/{each.rank}"), **live) for each in ranks]
        for row, own in zip(rows, all_looks if now_s > before_s else (), strict=False):
            own.add(row)
        before_s = now_s
        (job,) = jobs_of(over_a_period(rows, {row.box: own for row, own in zip(rows, all_looks, strict=True)}))
        (over,) = jobs_of(ranks)
        yield now_s, job.verdict, over.verdict


def paused(pause_s: float, every_s: float, rank: int | None = 1, stage: str = "forward") -> Delay:
    due = dict.fromkeys(RANKS, 12.0)

    def delay(_step: int, at_s: float, of_rank: int, of_stage: str) -> float:
        if of_stage != stage or rank not in {None, of_rank} or at_s < due[of_rank]:
            return 0.0
        due[of_rank] = at_s + every_s
        return pause_s

    return delay


def every(steps: int, delay_s: float) -> Delay:
    return lambda step, _, rank, stage: delay_s * ((rank, stage, step % steps) == (1, "forward", 0))


PAUSES = {
    "a second, twice a minute": (1.0, 30.0, 1, "forward"),
    "checkpoints of rank zero": (4.0, 60.0, 0, "other"),
    "ten seconds for data, twice a minute": (10.0, 30.0, None, "data"),
}


@pytest.mark.parametrize("pauses", PAUSES.values(), ids=PAUSES)
def test_pauses_are_no_constant_loss(pauses: tuple[float, float, int | None, str]) -> None:
    """At no look, whenever ``monitel top`` was started, and not in the summary."""
    found = [*looks(paused(*pauses), 130)]
    assert {"healthy", "unknown"} >= {verdict.kind for _, verdict, _ in found}
    assert ["healthy", "healthy"] == [found[index][2].kind for index in (49, -1)]


def test_delay_of_every_fifth_step_is_found_within_seconds() -> None:
    """``monitel top`` names it after twelve seconds, and the summary does."""
    for at_s, *verdicts in looks(every(5, 0.2), 100):
        for verdict in verdicts if at_s > 12 else ():
            assert ("late-rank", 1, "forward") == (verdict.kind, verdict.rank, verdict.stage), at_s
            assert 0.02 < (verdict.seconds or 0.0) < 2 * 0.2 / 5


def test_delay_is_found_in_spite_of_pauses() -> None:
    """The late rank pauses, or the other one."""
    for rank in RANKS:
        late, pause = every(1, 0.03), paused(5.0, 60.0, rank)
        found = looks(lambda *given: late(*given) + pause(*given), 150)  # noqa: B023
        assert {("late-rank", 1)} == {(verdict.kind, verdict.rank) for at_s, verdict, _ in found if at_s > 60}


class Seen:
    def __init__(self) -> None:
        self.looks, self.counts, self.now_ns, self.step, self.step_ns = Looks(), [0] * COUNTERS, 0, 0, 0
        self._looked_ns = 0

    def make(self, steps: int, seconds: float, *, every: float = 0.0) -> Seen:
        for number in range(steps):
            self.now_ns += round(seconds * S)
            self.step, self.step_ns = self.step + 1, self.now_ns
            self.counts[counter_of(round(seconds * S))] += 1
            if self.now_ns - self._looked_ns >= every * S or number == steps - 1:
                self.look()
        return self

    def look(self, *, counts: bool = True) -> None:
        page = Context(self.step, self.step_ns, step_times=tuple(self.counts) if counts else ())
        self._looked_ns = self.now_ns
        self.looks.add(Process(time_ns=self.now_ns), page)

    def rate(self, later_s: float = 0.0) -> float | None:
        return self.looks.rate(Process(), self.now_ns + round(later_s * S))

    @property
    def times(self) -> tuple[float | None, float | None]:
        row = self.looks.numbers()
        return row["step_p50"], row["step_p99"]


def near(seconds: float) -> object:
    return pytest.approx(seconds, rel=0.04)


def test_nothing_is_known_before_a_step_was_seen_to_end() -> None:
    """One step has no duration, and its rate is the mean of the life, which falls when the step is overdue."""
    seen = Seen()
    for _ in range(2):
        seen.look(counts=False)
        assert (None, None, None) == (seen.rate(), *seen.times)
    for age_s, rate in ((0, 10.0), (0.9, 10.0), (5, 5.0), (11, 0.0)):
        lives = Process(made=100, activities={"step": 10 * S}, step_age_ns=round(age_s * S))
        assert rate == pytest.approx(seen.looks.rate(lives, 0))


@pytest.mark.parametrize("every", [0.0, 1.0])
def test_rate_is_that_of_the_last_ten_seconds(every: float) -> None:
    """Earlier steps were slower; it falls when a step is overdue."""
    seen = Seen().make(20, 1.0, every=every).make(150, 0.1, every=every)
    for later_s, rate, rel in ((0, 10.0, 0.03), (0.1, 10.0, 0.03), (5, 5.0, 0.15), (11, 0.0, 0)):
        assert seen.rate(later_s) == pytest.approx(rate, rel=rel)


def test_step_that_falls_is_a_new_beginning() -> None:
    """A notebook runs a loop again."""
    seen = Seen().make(10, 0.1)
    seen.step = -1
    assert seen.make(1, 1.0).rate() is None
    assert 0.5 == seen.make(1, 2.0).rate()


def test_quantiles_need_steps() -> None:
    """The median one, and the other one a hundred; of those of the last three minutes, otherwise of the life."""
    seen = Seen()
    seen.look()
    assert (None, None) == seen.times
    assert (near(0.1), None) == seen.make(99, 0.1).times
    assert (near(0.1), near(0.1)) == seen.make(1, 0.1).times
    seen = Seen()
    seen.counts[counter_of(S // 10)] = 10_000
    seen.look()
    assert near(0.1) == seen.make(99, 0.5).times[0]
    assert near(0.5) == seen.make(1, 0.5).times[0]
    assert (near(1.5), near(1.5)) == seen.make(150, 1.5).times
