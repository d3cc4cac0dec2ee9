"""Simulated jobs over minutes: two ranks at each second, with a known schedule of delays and pauses."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from tests.unit.console.made_processes import START, S, alive, ended
from tests.unit.promises.test_verdict import WORK

from monitel.console.job import jobs_of
from monitel.console.period import Looks, over_a_period, with_totals
from monitel.console.verdict import Verdict
from monitel.runs.process import Process, StageKey, Total

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
    """A job of ranks that wait for each other in each step.

    Args:
        delay: Delays and pauses.
        seed: The source of chance.
        scale: Factor of all times of a step.
        noise: Standard deviation of the logarithm of each time.
    """

    def __init__(self, delay: Delay, *, seed: int = 1, scale: float = 1.0, noise: float = 0.1) -> None:
        self._delay, self._random, self._scale, self._noise = delay, Random(seed), scale, noise
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
                stage: self._scale * seconds * self._random.lognormvariate(0, self._noise)
                + self._delay(self._steps, self.now_s, rank, stage)
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


def looks(schedule: Schedule, seconds: int, *, first_s: int = 1) -> Iterator[tuple[float, Verdict]]:
    """Yield the time and the verdict of each look of ``monitel top``, one a second.

    Args:
        schedule: The job.
        seconds: Time of the job at the last look.
        first_s: Its time at the first one.
    """
    all_looks = [Looks() for _ in range(RANKS)]
    rows = [alive(rank, step_age_ns=0, rate=8.0, step_p50=0.12, box=f"/boxes/{rank}") for rank in range(RANKS)]
    by_box = {row.box: looks for row, looks in zip(rows, all_looks, strict=True)}
    for at_s in range(first_s, seconds + 1):
        for looks, each in zip(all_looks, schedule.until(at_s), strict=True):
            if each.time_ns > looks.life.time_ns:
                looks.add(each)
        lives = [with_totals(row, looks.life) for row, looks in zip(rows, all_looks, strict=True)]
        (job,) = jobs_of(over_a_period(lives, by_box))
        yield schedule.now_s, job.verdict


def at_end(schedule: Schedule, seconds: float) -> Verdict:
    [job] = jobs_of(schedule.until(seconds))
    return job.verdict
