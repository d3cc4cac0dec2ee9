"""Steps of optimizers: their number, the time between them, skips by gradient scaling, and rates of work."""

import _thread
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf, nan
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.support.checks import ledger
from tests.support.producers import run_together
from tests.torch.known_work import Work, sgd, total
from tests.torch.later_device import idle, later, on_later

import monitel
import monitel.torch
from monitel.testing import ManualClock

Step = Callable[..., None]

_DEADLINE = 60

#: Gradients of consecutive steps; those that are not finite are skipped, among them the first and the last.
GRADIENTS = (inf, 1.0, nan, -inf, 2.0, 0.5, 1.0, inf)


def test_steps_of_every_optimizer_are_counted(windows: Any) -> None:
    """Created later, or of a class of the user. A step that raises is not counted; the next successful one is."""

    class Mine(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    sgd()  # by now torch's hooks run for SGD.step too, within that of the subclass
    end = windows()
    for kind in (torch.optim.Adam, Mine):
        made = sgd(kind)
        for fail in (0, 0, 1, 1, 0):
            with suppress(ZeroDivisionError):
                made.step(lambda fail=fail: 1 // (not fail))
    end()
    assert 6 == total("steps")


def test_time_between_runs_is_not_a_duration(windows: Any, clock: ManualClock) -> None:
    """Optimizers that take turns make one step, and those of all runs count; the time between two is not recorded."""
    end = windows()
    for _ in range(3):
        generator, critic = sgd(), sgd()
        clock.advance(600)
        for _ in range(4):
            clock.advance(1)
            critic.step()
            generator.step()
    duration = end()["training.step.duration"]
    assert (12, 9, 9.0) == (total("steps"), duration.count, duration.sum)


def test_optimizer_at_the_address_of_an_ended_run_is_a_new_one(windows: Any, clock: ManualClock) -> None:
    """A wrapper, freed at once, as in a search that collects the garbage between its runs, two of them of one step."""

    class Wrapper:
        def step(self) -> None:
            inner.step()

    inner, scaler = sgd(), torch.amp.GradScaler("cpu", enabled=False)
    end = windows()
    for steps in (3, 3, 1, 1):
        clock.advance(600)
        wrapper = Wrapper()
        for _ in range(steps):
            clock.advance(1)
            scaler.step(wrapper)
        del wrapper
    duration = end()["training.step.duration"]
    assert (8, 4, 4.0) == (total("steps"), duration.count, duration.sum)


def test_counting_continues_from_the_step_of_the_loop(instrumented: None) -> None:
    one = sgd()
    for begin in (1000, 7):
        monitel.set_step(begin)
        one.step()
        assert begin + 1 == monitel.get_step()


def in_foreign_thread(action: Callable[[], object]) -> None:
    """Run an action in a thread that the module ``threading`` has not started, as autograd does on a GPU."""
    ended = threading.Event()

    def run() -> None:
        action()
        threading._active.pop(threading.get_ident(), None)  # type: ignore[attr-defined]  # Python keeps a dummy
        ended.set()

    _thread.start_new_thread(run, ())
    assert ended.wait(_DEADLINE)


def test_two_optimizers_in_two_threads_count_all_steps(windows: Any) -> None:
    """Each thread has its own steps, even if the threads take turns exactly."""
    end = windows()
    together = threading.Barrier(2, timeout=_DEADLINE)

    def train() -> None:
        own = sgd()
        for _ in range(10):
            together.wait()
            own.step()

    run_together(train, train)
    duration = end()["training.step.duration"]
    assert (20, 20, 18) == (total("steps"), monitel.get_step(), duration.count)


@pytest.mark.parametrize("run", [run_together, lambda action: action()], ids=["thread", "main"])
def test_optimizers_within_backward_of_a_device_make_one_step(run: Any, instrumented: None) -> None:
    """On a GPU, autograd runs hooks in threads that it has started. Their optimizers belong to the trainer's step."""
    layers, rest = [sgd() for _ in range(4)], sgd()

    def train() -> None:
        for _ in range(5):
            for layer in layers:
                in_foreign_thread(layer.step)
            rest.step()

    run(train)
    assert 5 == total("steps")


@pytest.mark.parametrize("foreign", [True, False])
def test_thread_of_autograd_does_not_become_the_training_thread(foreign: bool) -> None:
    """A thread that Python has not started steps within backward on a GPU, while the training thread waits."""
    with monitel.torch.instrument(sources="-failures"):
        (in_foreign_thread if foreign else run_together)(sgd().step)
        with monitel.activity("evaluation"):
            book = ledger()
    assert (("evaluation", 0) if foreign else ("step", 1)) == (book.current, book.ignored)


class Trained:
    """A parameter and its optimizer, with the number of steps that changed the parameter."""

    def __init__(self, *, fused: bool) -> None:
        self.parameter = torch.nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.Adam([self.parameter], lr=0.1, foreach=False, fused=fused)
        self.applied = 0

    def backward(self, scaler: Any, gradient: float) -> None:
        self.parameter.grad = scaler.scale(torch.full((2,), gradient))

    def step(self, scaler: Any) -> None:
        before = self.parameter.detach().clone()
        scaler.step(self.optimizer)
        self.applied += not torch.equal(before, self.parameter.detach())


class Delegating(torch.amp.GradScaler):  # type: ignore[misc]
    """A scaler whose step() calls that of its base."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return super().step(optimizer, *args, **kwargs)


class Clearing(torch.amp.GradScaler):  # type: ignore[misc]
    """A scaler that applies each step, with zero in the place of a gradient that is not finite."""

    def _maybe_opt_step(self, optimizer: Any, _state: Any, *args: Any, **kwargs: Any) -> Any:
        for group in optimizer.param_groups:
            for each in group["params"]:
                each.grad.nan_to_num_(nan=1.0, posinf=1.0, neginf=1.0)
        return optimizer.step(*args, **kwargs)


def counted() -> tuple[float, float]:
    """Return the numbers of applied and of skipped steps."""
    return total("steps"), total("steps.skipped")


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("scaler_type", [torch.amp.GradScaler, Delegating, Clearing])
def test_skipped_steps_are_counted_separately(scaler_type: Any, fused: bool, unscales: bool) -> None:
    """The step of the process advances with each attempt."""
    trained, scaler = Trained(fused=fused), scaler_type("cpu", init_scale=8.0)
    for number, gradient in enumerate(GRADIENTS, 1):
        trained.backward(scaler, gradient)
        if unscales:
            scaler.unscale_(trained.optimizer)
        trained.step(scaler)
        scaler.update()
        assert number == monitel.get_step()
    assert (trained.applied, len(GRADIENTS) - trained.applied) == counted()
    assert trained.applied == (len(GRADIENTS) if scaler_type is Clearing and not fused else 4)


def test_step_of_two_optimizers_counts_as_the_first(instrumented: None) -> None:
    """With one scaler for both, of which one may decide on its device."""
    first, second = Trained(fused=True), Trained(fused=False)
    scaler = torch.amp.GradScaler("cpu")
    for number, each in enumerate([(inf, inf), (1.0, 1.0), (inf, 1.0), (1.0, inf), (nan, nan)], 1):
        for trained, gradient in zip((first, second), each, strict=True):
            trained.backward(scaler, gradient)
        for trained in (first, second):
            trained.step(scaler)
        scaler.update()
        assert number == monitel.get_step()
    assert (first.applied, second.applied, (2, 3)) == (2, 2, counted())


@pytest.mark.parametrize("tensors", [True, False])
def test_result_on_a_device_is_counted_when_it_arrives(tensors: bool, windows: Any) -> None:
    """No step waits for the device, and none is counted before the device has decided. The end waits."""
    with idle():
        end, own = windows(sources=None if tensors else "-tensors"), Work(float).optimizer()
        for found_inf in (1.0, 0.0, 0.0, 2.0):
            own.found_inf = on_later(found_inf)
            own.step()
        assert ((0, 0), 4, 0) == (counted(), monitel.get_step(), later.syncs)
        later.answers = True
        end()
        assert ((2, 2), 0) == (counted(), later.syncs)


def test_result_that_never_arrives_counts_as_applied(windows: Any) -> None:
    """So does a step within the capture of a graph. The end waits for 2 s at most."""
    with idle():
        end, own = windows(), Work(float).optimizer()
        own.found_inf = on_later(1.0)
        own.step()
        later.capturing = True
        own.step()
        assert (1, 0) == counted()
        later.capturing = False
        end()
        assert (2, 0) == counted()


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
    with instrument(samples_per_step=32, tokens_per_step=1000.5, flops_per_step=3e12, peak_flops=4e12, window_size=inf):
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
    samples = Mock(side_effect=[2, bad, 3, bad])
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
