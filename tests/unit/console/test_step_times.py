"""Rates and quantiles of the times from step to step."""

from __future__ import annotations

import struct

import pytest

from monitel.console.period import StepDistribution, StepRate
from monitel.training.step_times import COUNTERS, counter_of

SECOND = 10**9


def noted(durations: list[float], *, every: float = 0.0) -> tuple[StepRate, int]:
    """Return the rate of steps that were noted, each or in intervals, and the time of the last step."""
    steps, now, noted_at = StepRate(), 0.0, -1.0
    for step, seconds in enumerate([0.0, *durations]):
        now += seconds
        if now - noted_at >= every or step == len(durations):
            steps.note(step, round(now * SECOND))
            noted_at = now
    return steps, round(now * SECOND)


def test_nothing_is_known_before_a_step_was_seen_to_end() -> None:
    """One step has no duration."""
    steps = StepRate()
    assert steps.rate(SECOND) is None
    steps.note(7, SECOND)
    assert steps.rate(SECOND) is None
    steps.note(7, SECOND)
    assert steps.rate(SECOND) is None


@pytest.mark.parametrize("every", [0.0, 1.0])
def test_rate_is_that_of_the_last_ten_seconds(every: float) -> None:
    """Earlier steps were slower."""
    steps, now_ns = noted([1.0] * 20 + [0.1] * 150, every=every)
    assert steps.rate(now_ns) == pytest.approx(10.0, rel=0.03)


def test_rate_falls_when_a_step_is_overdue() -> None:
    """After ten seconds without a step the rate is zero."""
    steps, now_ns = noted([0.1] * 200, every=1.0)
    assert steps.rate(now_ns + SECOND // 10) == pytest.approx(10.0, rel=0.02)
    assert steps.rate(now_ns + 5 * SECOND) == pytest.approx(5.0, rel=0.02)
    assert 0.0 == steps.rate(now_ns + 11 * SECOND)


def test_step_that_falls_is_a_new_beginning() -> None:
    """A notebook runs a loop again."""
    steps, now_ns = noted([0.1] * 10)
    steps.note(0, now_ns + SECOND)
    assert steps.rate(now_ns + SECOND) is None
    steps.note(1, now_ns + 3 * SECOND)
    assert 0.5 == steps.rate(now_ns + 3 * SECOND)


class Process:
    """The counters of a process."""

    def __init__(self) -> None:
        self.counts = [0] * COUNTERS

    def make(self, steps: int, seconds: float) -> None:
        """Make steps."""
        self.counts[counter_of(round(seconds * SECOND))] += steps

    @property
    def counters(self) -> bytes:
        """The counters as the page has them."""
        return struct.pack(f"={COUNTERS}Q", *self.counts)


def test_nothing_is_shown_that_is_not_known() -> None:
    """No steps, a process that does not count them, and fewer than 100 steps."""
    process, times = Process(), StepDistribution()
    assert (None, None) == (times.median, times.p99)
    times.see(b"", 0)
    assert (None, None) == (times.median, times.p99)
    times.see(process.counters, SECOND)
    assert (None, None) == (times.median, times.p99)
    process.make(99, 0.1)
    times.see(process.counters, 2 * SECOND)
    assert times.median == pytest.approx(0.1, rel=0.04)
    assert times.p99 is None
    process.make(1, 0.1)
    times.see(process.counters, 3 * SECOND)
    assert times.p99 == pytest.approx(0.1, rel=0.04)


def test_last_three_minutes_replace_the_life() -> None:
    """A job that has become slower shows it as soon as 100 slow steps were observed, and forgets the fast ones."""
    process, times = Process(), StepDistribution()
    process.make(10_000, 0.1)
    times.see(process.counters, 0)
    process.make(99, 0.5)
    times.see(process.counters, 50 * SECOND)
    assert times.median == pytest.approx(0.1, rel=0.04)
    process.make(1, 0.5)
    times.see(process.counters, 51 * SECOND)
    assert times.median == pytest.approx(0.5, rel=0.04)
    for second in range(52, 500):
        process.make(1, 3.0)
        times.see(process.counters, second * SECOND)
    assert times.median == times.p99 == pytest.approx(3.0, rel=0.04)
