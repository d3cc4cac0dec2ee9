"""Quantiles of step times from the counters of a process."""

from __future__ import annotations

import struct

import pytest

from monitel.step_times import COUNTERS, counter_of
from monitel_otlp.top.step_distribution import StepDistribution

SECOND = 10**9


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


def test_steps_before_the_first_look_count() -> None:
    """``--once`` shows the quantiles of the life of the process."""
    process, times = Process(), StepDistribution()
    process.make(980, 0.02)
    process.make(20, 0.2)
    times.see(process.counters, 0)
    assert times.median == pytest.approx(0.02, rel=0.04)
    assert times.p99 == pytest.approx(0.2, rel=0.04)


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


def test_steps_that_stop_leave_the_quantiles_of_the_life() -> None:
    """A job that hangs for longer than three minutes has no steps in them."""
    process, times = Process(), StepDistribution()
    times.see(process.counters, 0)
    process.make(1000, 0.25)
    for second in range(1, 400):
        times.see(process.counters, second * SECOND)
    assert times.median == times.p99 == pytest.approx(0.25, rel=0.04)


def test_memory_is_bounded() -> None:
    """One reading in ten seconds is kept for three minutes."""
    process, times = Process(), StepDistribution()
    for second in range(1000):
        process.make(1, 0.1)
        times.see(process.counters, second * SECOND)
    assert len(times._kept) <= 19
