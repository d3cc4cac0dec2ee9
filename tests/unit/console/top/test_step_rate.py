"""Rates from steps that are noted now and then."""

from __future__ import annotations

import pytest

from monitel_otlp.top.step_rate import StepRate

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


@pytest.mark.parametrize("every", [0.0, 0.2, 1.0])
def test_rate_is_that_of_the_last_ten_seconds(every: float) -> None:
    """Earlier steps were slower."""
    steps, now_ns = noted([1.0] * 20 + [0.1] * 150, every=every)
    assert steps.rate(now_ns) == pytest.approx(10.0, rel=0.03)


def test_rate_of_slow_steps_is_that_of_the_last_ones() -> None:
    """Each takes longer than the ten seconds."""
    steps, now_ns = noted([15.0, 15.0, 30.0])
    assert steps.rate(now_ns) == pytest.approx(1 / 30)
    assert steps.rate(now_ns + 29 * SECOND) == pytest.approx(1 / 30)


@pytest.mark.parametrize("every", [0.0, 1.0])
def test_rate_falls_when_a_step_is_overdue(every: float) -> None:
    """After ten seconds without a step the rate is zero."""
    steps, now_ns = noted([0.1] * 200, every=every)
    assert steps.rate(now_ns + SECOND // 10) == pytest.approx(10.0, rel=0.02)
    assert steps.rate(now_ns + 5 * SECOND) == pytest.approx(5.0, rel=0.02)
    assert 0.0 == steps.rate(now_ns + 11 * SECOND)


def test_large_steps_have_a_rate() -> None:
    """A step may be a number of tokens; floats have too few digits for the largest ones."""
    steps = StepRate()
    for number in range(101):
        steps.note(2**62 + number, number * SECOND // 10)
    assert steps.rate(10 * SECOND) == pytest.approx(10.0)


def test_step_that_falls_is_a_new_beginning() -> None:
    """A notebook runs a loop again."""
    steps, now_ns = noted([0.1] * 10)
    steps.note(0, now_ns + SECOND)
    assert steps.rate(now_ns + SECOND) is None
    steps.note(1, now_ns + 3 * SECOND)
    assert 0.5 == steps.rate(now_ns + 3 * SECOND)


def test_rates_of_looks_are_those_in_between() -> None:
    """A look within a long step repeats the rate, and one after an overdue step has zero."""
    steps = StepRate()
    steps.note(0, 0)
    steps.look(0)
    steps.note(4, 2 * SECOND)
    steps.look(2 * SECOND)
    steps.look(2 * SECOND + SECOND // 4)
    steps.look(9 * SECOND)
    assert [2.0, 2.0, 0.0] == [*steps.rates]
    for look in range(100):
        steps.look((10 + look) * SECOND)
    assert 60 == len(steps.rates)


def test_pause_counts_as_far_as_it_is_in_the_ten_seconds() -> None:
    """The step that ends a long pause began before the ten seconds."""
    steps, now_ns = noted([0.1] * 100 + [10.0] + [0.1] * 15)
    assert steps.rate(now_ns) == pytest.approx(1.6, abs=0.1)
