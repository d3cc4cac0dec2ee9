"""Jobs over minutes with known delays and pauses: a few long pauses are not a constant loss, which is found."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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


@dataclass
class _Series:
    closed: Total = field(default_factory=Total)
    open: Total = field(default_factory=Total)
    end_s: float = WINDOW_S

    def add(self, seconds: float, at_s: float) -> None:
        if at_s >= self.end_s:
            self.closed, self.open, self.end_s = self.closed.plus(self.open), Total(), at_s + WINDOW_S
        self.open = Total(self.open.count + 1, self.open.sum + seconds, 1, max(self.open.largest, seconds))

    @property
    def total(self) -> Total:
        return self.closed.plus(self.open)


class Schedule:
    """A job of ranks that wait for each other in each step."""

    def __init__(self, delay: Delay) -> None:
        self._delay, self._random = delay, Random(1)
        self._series = {(rank, stage): _Series() for rank in range(RANKS) for stage in (*WORK, "sync")}
        self.now_s, self._steps = 0.0, 0

    def until(self, end_s: float) -> list[Process]:
        """Make steps until a time, and return each rank with the totals of its life."""
        while self.now_s < end_s:
            self._step()
        return [self._process(rank) for rank in range(RANKS)]

    def _step(self) -> None:
        self._steps += 1
        times = [
            {
                stage: seconds * self._random.lognormvariate(0, 0.1) + self._delay(self._steps, self.now_s, rank, stage)
                for stage, seconds in WORK.items()
            }
            for rank in range(RANKS)
        ]
        last = max(sum(of.values()) for of in times)
        self.now_s += last
        for rank, of in enumerate(times):
            for stage, seconds in {**of, "sync": last - sum(of.values())}.items():
                self._series[rank, stage].add(seconds, self.now_s)

    def _process(self, rank: int) -> Process:
        totals = {stage: self._series[rank, stage].total for stage in (*WORK, "sync")}
        data_ns = round(totals["data"].sum * S)
        return ended(
            rank,
            time_ns=START + round(self.now_s * S),
            world_size=RANKS,
            step=self._steps,
            made=self._steps,
            step_time=Total(self._steps, self.now_s),
            stages={StageKey("", stage): total for stage, total in totals.items()},
            activities={"data": data_ns, "step": round(self.now_s * S) - data_ns},
        )


def looks(schedule: Schedule, seconds: int) -> Iterator[tuple[float, Verdict]]:
    """Yield the time and the verdict of each look of ``monitel top``, one a second."""
    all_looks = {Path(f"/boxes/{rank}"): Looks() for rank in range(RANKS)}
    now_ns = 0
    for at_s in range(1, seconds + 1):
        rows = []
        for each, (box, own) in zip(schedule.until(at_s), all_looks.items(), strict=True):
            rows.append(each.but(box=box, state=State.ALIVE, status="", step_age_ns=0, rate=8.0, step_p50=0.12))
            if each.time_ns > now_ns:
                own.add(rows[-1])
        now_ns = rows[0].time_ns
        (job,) = jobs_of(over_a_period(rows, all_looks))
        yield schedule.now_s, job.verdict


def at_end(schedule: Schedule, seconds: float) -> Verdict:
    [job] = jobs_of(schedule.until(seconds))
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
    found = {
        verdict.text
        for _, verdict in looks(Schedule(paused(*pauses)), 130)
        if verdict.kind not in {"healthy", "unknown"}
    }
    assert set() == found
    for seconds in (50.0, 130.0):
        assert "healthy" == at_end(Schedule(paused(*pauses)), seconds).kind


def test_delay_of_every_fifth_step_is_found_within_seconds() -> None:
    """``monitel top`` names it after twelve seconds, and the summary does."""
    steps, delay_s, at_least_s = 5, 0.2, 0.02
    for at_s, verdict in looks(Schedule(every(steps, delay_s)), 100):
        if at_s > 12:
            assert ("late-rank", 1, "forward") == (verdict.kind, verdict.rank, verdict.stage), at_s
            assert verdict.seconds is not None
            assert at_least_s < verdict.seconds < 2 * delay_s / steps
    found = at_end(Schedule(every(steps, delay_s)), 100)
    assert ("late-rank", 1, "forward") == (found.kind, found.rank, found.stage)


def test_delay_is_found_in_spite_of_pauses() -> None:
    """The late rank pauses, or the other one."""
    for rank in (0, 1):
        delay = also(every(1, 0.03), paused(5.0, 60.0, rank))
        kinds = {(v.kind, v.rank) for at_s, v in looks(Schedule(delay), 150) if at_s > 60}
        assert {("late-rank", 1)} == kinds
