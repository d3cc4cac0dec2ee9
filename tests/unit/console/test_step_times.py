"""Rates and quantiles of the times from step to step."""

from __future__ import annotations

import pytest
from tests.unit.console.made_processes import S

from monitel.blackbox.context_page import COUNTERS, Context, counter_of
from monitel.console.period import Looks
from monitel.runs.process import Process


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
