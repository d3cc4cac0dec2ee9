"""Rates of samples, tokens and FLOPs: amounts over wall time, beside a truth that the tests compute."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.torch.known_work import sgd, total

import monitel
import monitel.torch
from monitel.testing import ManualClock

Start = Callable[..., "Loop"]


class Loop:
    """A training loop whose seconds the test decides.

    Attributes:
        ends: Time and number of samples so far, at the end of each step.
    """

    def __init__(self, clock: ManualClock, **options: Any) -> None:
        self.running = monitel.torch.instrument(sources="-stages,-failures", **options)
        self.ends: list[tuple[float, float]] = []
        self._clock = clock
        self._optimizer = sgd()

    def step(self, seconds: float, samples: float = 0) -> None:
        """Let a step take some time, and count its samples if instrument() does not."""
        self._clock.advance(seconds)
        if samples:
            monitel.counter("training.samples").add(samples)
        self._optimizer.step()
        self.ends.append((self._clock.monotonic_ns() / 1e9, total("samples")))

    def end(self) -> None:
        self.running.uninstrument()

    def true_rate(self, first: int = 0, last: int = -1) -> float:
        """Return samples per second from the end of one step to the end of another."""
        (since, before), (until, after) = self.ends[first], self.ends[last]
        return (after - before) / (until - since)


@pytest.fixture
def start(clock: ManualClock, only_flushes_poll: None) -> Iterator[Callable[..., Loop]]:
    """Provide a function that starts a loop with options of instrument()."""
    with ExitStack() as stack:

        def start(**options: Any) -> Loop:
            loop = Loop(clock, **options)
            stack.callback(loop.end)
            return loop

        yield start


def logged(events: list[monitel.Event], name: str = "training.samples.rate") -> list[float]:
    numbers = [event.data for event in events if isinstance(event, monitel.LoggedNumbers)]
    return [float(each[name]) for each in numbers if name in each]


def test_one_value_per_window(start: Start, events: list[monitel.Event]) -> None:
    """A window's rate is that between its last step and the last step of the window before it."""
    loop = start(window_size=10.0)
    for number in range(1, 40):
        loop.step(0.75, samples=number)
        monitel.close_expired_windows()
    loop.end()
    ends = [13, 26, 38]  # the steps that end at 10.5, 20.25 and 29.25 s
    pairs = zip([0, *ends], ends, strict=False)
    assert [pytest.approx(loop.true_rate(*pair)) for pair in pairs] == logged(events)
    assert [14, 27, 39] == [event.step for event in events if isinstance(event, monitel.LoggedNumbers)]


def test_pause_is_zero_and_its_time_counts(start: Start, clock: ManualClock, events: list[monitel.Event]) -> None:
    """The time of an evaluation is in the windows without steps, and the rest of it in the next window's rate."""
    loop = start(window_size=10.0, samples_per_step=8)
    for _ in range(9):
        loop.step(1.0)
    for _ in range(6):
        clock.advance(5.0)
        monitel.close_expired_windows()
    loop.step(4.0)
    clock.advance(2.0)
    monitel.close_expired_windows()
    # from 1 to 9 s; to the end of the second window at 24 s, and of the third one at 34 s; to the step at 43 s
    assert [8.0, 0.0, 0.0, 8 / 9] == logged(events)


def test_rates_of_amounts_per_step(start: Start, events: list[monitel.Event]) -> None:
    """Samples, tokens and utilization have one event."""
    loop = start(samples_per_step=32, tokens_per_step=1000.5, flops_per_step=3e12, peak_flops=4e12)
    for seconds in (9.0, 2.0, 6.0):
        loop.step(seconds)
    loop.end()
    (event,) = (event for event in events if isinstance(event, monitel.LoggedNumbers))
    assert {
        "training.samples.rate": 2 * 32 / 8,
        "training.tokens.rate": pytest.approx(2 * 1000.5 / 8),
        "training.mfu": pytest.approx(2 * 3e12 / 8 / 4e12),
    } == event.data
    assert (96, 3001.5) == (total("samples"), total("tokens"))
    assert "training.flops" not in {each.counter.name for each in monitel.counters()}


@pytest.mark.parametrize("bad", [-1, float("nan"), ValueError], ids=str)
def test_bad_amount_counts_nothing(bad: Any, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The loop continues, and the other amounts count. An exception is logged once, a wrong number is left out."""
    results = iter([2, bad, 3, bad])

    def samples() -> Any:
        result = next(results)
        if result is ValueError:
            raise ValueError("no batch")
        return result

    loop = start(samples_per_step=samples, tokens_per_step=10)
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        for _ in range(4):
            loop.step(1.0)
    loop.end()
    assert (5, 40) == (total("samples"), total("tokens"))
    logged = [record.message.split()[0] for record in caplog.records if record.name == "monitel.torch"]
    expected = (["samples_per_step"], 0) if bad is ValueError else ([], 2)
    assert expected == (logged, monitel.counter("monitel.log.left_out").total)
    caplog.clear()  # the records have exceptions


def test_rate_follows_the_counter_of_the_user(start: Start, clock: ManualClock, events: list[monitel.Event]) -> None:
    """The counter may be created at any time, have a total before the first step, or another unit."""
    monitel.counter("training.tokens", unit="byte").add(1_000_000)
    loop = start()
    loop.step(5.0)
    samples = monitel.counter("training.samples")
    for batch in (3, 5, 9):
        samples.add(batch)
        monitel.counter("training.tokens").add(100 * batch)
        clock.advance(1.0)
    loop.step(1.0)
    samples.add(1_000)  # of the next step, which does not end
    loop.end()
    assert [(3 + 5 + 9) / 4] == logged(events)
    assert [1700 / 4] == logged(events, "training.tokens.rate")
