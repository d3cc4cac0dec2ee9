"""Rates of samples, tokens and FLOPs: amounts over wall time, beside a truth that the tests compute."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from itertools import pairwise
from operator import mul
from statistics import mean
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel.testing import ManualClock

    Start = Callable[..., "Loop"]

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch
from monitel.torch import instrumentation  # noqa: E402
from monitel.torch.options import InstrumentOptions  # noqa: E402
from monitel.torch.rates import Rates  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def events() -> Iterator[list[monitel.Event]]:
    """Collect the events of the test."""
    with monitel.testing.capture_events() as events:
        yield events


class Loop:
    """A training loop whose seconds the test decides. No thread polls it.

    Attributes:
        source: The source of steps.
        ends: Time and number of samples so far, at the end of each step.
    """

    def __init__(self, clock: ManualClock, **options: Any) -> None:
        created = instrumentation._create_sources(InstrumentOptions(**options))
        self.source: Any = created["steps"]
        self.source.install()
        self.ends: list[tuple[float, float]] = []
        self._clock = clock
        self._parameter = torch.nn.Parameter(torch.ones(1))
        self._parameter.grad = torch.ones(1)
        self._optimizer = torch.optim.SGD([self._parameter], lr=0.1)

    def step(self, seconds: float, samples: float = 0) -> None:
        """Let a step take some time, and count its samples if instrument() does not."""
        self._clock.advance(seconds)
        if samples:
            monitel.counter("training.samples").add(samples)
        self._optimizer.step()
        total = sum(each.total for each in monitel.counters() if each.counter.name == "training.samples")
        self.ends.append((self._clock.monotonic_ns() / 1e9, total))

    def true_rate(self, first: int = 0, last: int = -1) -> float:
        """Return samples per second from the end of one step to the end of another."""
        (since, before), (until, after) = self.ends[first], self.ends[last]
        return (after - before) / (until - since)


@pytest.fixture
def start(clock: ManualClock) -> Iterator[Callable[..., Loop]]:
    """Provide a function that starts a loop with options of instrument()."""
    with ExitStack() as stack:

        def start(**options: Any) -> Loop:
            loop = Loop(clock, **options)
            stack.callback(loop.source.remove)
            return loop

        yield start


def logged(events: list[monitel.Event], name: str = "training.samples.rate") -> list[float]:
    """Return the logged values of a gauge."""
    numbers = [event.data for event in events if isinstance(event, monitel.LoggedNumbers)]
    return [float(each[name]) for each in numbers if name in each]


@pytest.mark.parametrize(
    ("durations", "wrong", "right"),
    [
        ([0.09] * 40 + [8.0], 347, 94),  # an evaluation within the last step
        ([0.0011] * 9 + [4.0], 26_000, 72),  # nine micro-batches that are steps, and then a slow one
    ],
)
def test_rate_is_that_of_the_whole_time(
    durations: list[float], wrong: float, right: float, start: Start, events: list[monitel.Event]
) -> None:
    """The mean of the rates of steps is several times the truth if some steps are slow."""
    loop = start(samples_per_step=32)
    for seconds in (100.0, *durations):  # the first step has no known beginning
        loop.step(seconds)
    loop.source.remove()
    truth = 32 * len(durations) / sum(durations)
    assert truth == pytest.approx(right, rel=0.25)
    assert mean(32 / seconds for seconds in durations) == pytest.approx(wrong, rel=0.25)
    assert [pytest.approx(truth)] == logged(events) == [pytest.approx(loop.true_rate())]


def test_one_value_per_window(start: Start, events: list[monitel.Event]) -> None:
    """A window's rate is that between its last step and the last step of the window before it."""
    loop = start(window_size=10.0)
    for number in range(1, 40):
        loop.step(0.75, samples=number)
        loop.source.poll()
    loop.source.remove()
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
        loop.source.poll()
    loop.step(4.0)
    clock.advance(2.0)
    loop.source.poll()
    # from 1 to 9 s; to the end of the second window at 24 s, and of the third one at 34 s; to the step at 43 s
    assert [8.0, 0.0, 0.0, 8 / 9] == logged(events)


def test_nothing_is_logged_before_two_steps(start: Start, clock: ManualClock, events: list[monitel.Event]) -> None:
    """The first step ends an interval of unknown length, so it begins the first rate."""
    loop = start(window_size=10.0, samples_per_step=8)
    clock.advance(100.0)
    loop.source.poll()
    loop.step(1.0)
    loop.source.remove()
    assert [] == logged(events)


def test_end_has_the_rate_up_to_the_last_step(start: Start, clock: ManualClock, events: list[monitel.Event]) -> None:
    """Time after the last step, as for a checkpoint, is not part of it. Without a further step nothing is logged."""
    loop = start(window_size=10.0, samples_per_step=6)
    for _ in range(3):
        loop.step(3.0)
    clock.advance(500.0)
    loop.source.remove()
    loop.source._rates.flush()
    assert [2.0] == logged(events)


def test_flush_logs_the_rates_so_far(start: Start, clock: ManualClock, events: list[monitel.Event]) -> None:
    """Like the window of a Stat, the interval ends early. A window that ends by itself does not log twice."""
    loop = start(window_size=10.0)
    for samples in (1, 2, 4):
        loop.step(2.0, samples)
    monitel.flush()
    monitel.flush()
    assert [3 / 2] == logged(events)
    for samples in (8, 16):
        loop.step(1.0, samples)
    clock.advance(30.0)
    loop.source.poll()
    loop.step(1.0, 32)
    assert [3 / 2, 24 / 2] == logged(events)
    loop.source.remove()
    assert [3 / 2, 24 / 2, 32 / 31] == logged(events)


def test_rates_of_amounts_per_step(start: Start, events: list[monitel.Event]) -> None:
    """Samples, tokens and utilization have one event."""
    loop = start(samples_per_step=32, tokens_per_step=1000.5, flops_per_step=3e12, peak_flops=4e12)
    for seconds in (9.0, 2.0, 6.0):
        loop.step(seconds)
    loop.source.remove()
    (event,) = (event for event in events if isinstance(event, monitel.LoggedNumbers))
    assert {
        "training.samples.rate": 2 * 32 / 8,
        "training.tokens.rate": pytest.approx(2 * 1000.5 / 8),
        "training.mfu": pytest.approx(2 * 3e12 / 8 / 4e12),
    } == event.data
    found = {each.counter.name: each.total for each in monitel.counters()}
    assert (96, 3001.5) == (found["training.samples"], found["training.tokens"])
    assert "training.flops" not in found


def test_amounts_may_be_functions(start: Start, events: list[monitel.Event]) -> None:
    """The functions are called once per step, after it."""
    seen: list[int | None] = []
    sizes = iter([4, 1.5, 0, 7])

    def samples() -> float:
        seen.append(monitel.get_step())
        return next(sizes)

    loop = start(samples_per_step=samples, flops_per_step=lambda: 1e9, peak_flops=1e10)
    for seconds in (1.0, 2.0, 3.0, 5.0):
        loop.step(seconds)
    loop.source.remove()
    assert [1, 2, 3, 4] == seen
    assert [pytest.approx((1.5 + 7) / 10)] == logged(events)
    assert [pytest.approx(3e9 / 10 / 1e10)] == logged(events, "training.mfu")


@pytest.mark.parametrize(
    "bad", [None, "8", -1, float("nan"), float("inf"), torch.tensor(8), ValueError], ids=lambda bad: str(bad)[:8]
)
def test_bad_amount_is_logged_once_and_counts_nothing(bad: Any, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The loop continues, and the other amounts count."""
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
    loop.source.remove()
    found = {each.counter.name: each.total for each in monitel.counters()}
    assert (5, 40) == (found["training.samples"], found["training.tokens"])
    assert ["samples_per_step"] == [record.message.split()[0] for record in caplog.records]


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
    loop.source.remove()
    assert [(3 + 5 + 9) / 4] == logged(events)
    assert [1700 / 4] == logged(events, "training.tokens.rate")


def test_no_gauge_without_a_counter(start: Start, events: list[monitel.Event]) -> None:
    """A job that counts neither samples nor tokens logs nothing."""
    loop = start()
    for _ in range(3):
        loop.step(1.0)
    loop.source.remove()
    assert [] == [event for event in events if isinstance(event, monitel.LoggedNumbers)]


def test_windows_are_logged_by_the_polling_thread() -> None:
    """Without any further step, the window after the last one has a rate of zero."""
    zero = threading.Event()

    def handle(event: monitel.Event) -> None:
        if event.data.get("training.samples.rate") == 0.0:
            zero.set()

    parameter = torch.nn.Parameter(torch.ones(1))
    with monitel.register_event_handler(handle), monitel.torch.instrument(window_size=0.05, samples_per_step=1):
        torch.optim.SGD([parameter], lr=0.1).step()
        assert zero.wait(30)


@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["step", "batch", "poll", "flush"]), st.sampled_from([0.0, 0.25, 1.0, 3.0, 12.0]))
    )
)
def test_rates_times_their_times_are_the_amounts(actions: list[tuple[str, float]]) -> None:
    """This holds for any order of steps, batches, windows and flushes, from the first step on."""
    samples = monitel.counter("training.samples")
    with monitel.testing.ManualClock() as clock, monitel.testing.capture_events() as events:
        rates = Rates(5.0, samples=None, tokens=None, flops=None, peak_flops=None)
        ends: list[tuple[float, float]] = []  # of the intervals: time, samples so far
        step = 0.0, 0.0  # the last one
        due = 5.0
        for number, (action, seconds) in enumerate(actions):
            clock.advance(seconds)
            samples.add({"step": 7, "batch": 3}.get(action, 0))
            now = clock.monotonic_ns() / 1e9, samples.total
            if action == "step":
                rates.record_step(clock.monotonic_ns(), number)
                step, ends = now, ends or [now]
            elif action == "flush":
                rates.flush()
                ends += [step] if ends and step[0] > ends[-1][0] else []
            elif action == "poll":
                rates.poll()
                if now[0] >= due:
                    due = now[0] // 5 * 5 + 5
                    until = step if ends and step[0] > ends[-1][0] else now
                    least = 5.0 if until is now else 0.0  # seconds without a step before they are an interval
                    ends += [until] if ends and until[0] > ends[-1][0] and until[0] - ends[-1][0] >= least else []
    found = logged(list(events))
    times = [until[0] - since[0] for since, until in pairwise(ends)]
    assert len(times) == len(found)
    if found:
        assert sum(map(mul, found, times)) == pytest.approx(ends[-1][1] - ends[0][1])
    assert [pytest.approx((until[1] - since[1]) / (until[0] - since[0])) for since, until in pairwise(ends)] == found
