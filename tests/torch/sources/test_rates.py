"""Rates of samples, tokens and FLOPs: amounts over wall time, beside a truth that the tests compute."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.torch.known_work import sgd, total

import monitel
import monitel.torch
from monitel.testing import ManualClock

Step = Callable[..., None]

instrument = partial(monitel.torch.instrument, sources="-stages,-failures")


@pytest.fixture
def step(clock: ManualClock, only_flushes_poll: None) -> Step:
    """Provide a function that lets a step take some time, and counts its samples if instrument() does not."""
    optimizer = sgd()

    def step(seconds: float, samples: float = 0) -> None:
        clock.advance(seconds)
        if samples:
            monitel.counter("training.samples").add(samples)
        optimizer.step()

    return step


def logged(events: list[monitel.Event], name: str = "training.samples.rate") -> list[float]:
    numbers = [event.data for event in events if isinstance(event, monitel.LoggedNumbers)]
    return [float(each[name]) for each in numbers if name in each]


def test_one_value_per_window(step: Step, events: list[monitel.Event]) -> None:
    """A window's rate is that between its last step and the last step of the window before it."""
    with instrument(window_size=10.0):
        for number in range(1, 40):
            step(0.75, samples=number)
            monitel.close_expired_windows()
    ends = [14, 27, 39]  # the steps that end at 10.5, 20.25 and 29.25 s
    assert [
        pytest.approx(sum(range(first + 1, last + 1)) / (last - first) / 0.75)
        for first, last in zip([1, *ends], ends, strict=False)
    ] == logged(events)
    assert ends == [event.step for event in events if isinstance(event, monitel.LoggedNumbers)]


def test_pause_is_zero_and_its_time_counts(step: Step, clock: ManualClock, events: list[monitel.Event]) -> None:
    """The time of an evaluation is in the windows without steps, and the rest of it in the next window's rate."""
    with instrument(window_size=10.0, samples_per_step=8):
        for _ in range(9):
            step(1.0)
        for _ in range(6):
            clock.advance(5.0)
            monitel.close_expired_windows()
        step(4.0)
        clock.advance(2.0)
        monitel.close_expired_windows()
    # from 1 to 9 s; to the end of the second window at 24 s, and of the third one at 34 s; to the step at 43 s
    assert [8.0, 0.0, 0.0, 8 / 9] == logged(events)


def test_rates_of_amounts_per_step(step: Step, events: list[monitel.Event]) -> None:
    """Samples, tokens and utilization have one event."""
    with instrument(samples_per_step=32, tokens_per_step=1000.5, flops_per_step=3e12, peak_flops=4e12):
        for seconds in (9.0, 2.0, 6.0):
            step(seconds)
    (event,) = (event for event in events if isinstance(event, monitel.LoggedNumbers))
    assert {
        "training.samples.rate": 2 * 32 / 8,
        "training.tokens.rate": pytest.approx(2 * 1000.5 / 8),
        "training.mfu": pytest.approx(2 * 3e12 / 8 / 4e12),
    } == event.data
    assert (96, 3001.5) == (total("samples"), total("tokens"))
    assert "training.flops" not in {each.counter.name for each in monitel.counters()}


@pytest.mark.parametrize("bad", [-1, float("nan"), ValueError], ids=str)
def test_bad_amount_counts_nothing(bad: Any, step: Step, caplog: pytest.LogCaptureFixture) -> None:
    """The loop continues, and the other amounts count. An exception is logged once, a wrong number is left out."""
    results = iter([2, bad, 3, bad])

    def samples() -> Any:
        result = next(results)
        if result is ValueError:
            raise ValueError("no batch")
        return result

    caplog.set_level(logging.WARNING, "monitel.torch")
    with instrument(samples_per_step=samples, tokens_per_step=10):
        for _ in range(4):
            step(1.0)
    assert (5, 40) == (total("samples"), total("tokens"))
    logged = [record.message.split()[0] for record in caplog.records if record.name == "monitel.torch"]
    expected = (["samples_per_step"], 0) if bad is ValueError else ([], 2)
    assert expected == (logged, monitel.counter("monitel.log.left_out").total)
    caplog.clear()  # the records have exceptions


def test_rate_follows_the_counter_of_the_user(step: Step, clock: ManualClock, events: list[monitel.Event]) -> None:
    """The counter may be created at any time, have a total before the first step, or another unit."""
    monitel.counter("training.tokens", unit="byte").add(1_000_000)
    with instrument():
        step(5.0)
        samples = monitel.counter("training.samples")
        for batch in (3, 5, 9):
            samples.add(batch)
            monitel.counter("training.tokens").add(100 * batch)
            clock.advance(1.0)
        step(1.0)
        samples.add(1_000)  # of the next step, which does not end
    assert [(3 + 5 + 9) / 4] == logged(events)
    assert [1700 / 4] == logged(events, "training.tokens.rate")
