"""Ranges of training steps, their phases and their batches: times, parents, and the stack after errors."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel.profiler import ranges, record_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel.profiler.ranges import Range
    from monitel.testing import ManualClock

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.sources.slow_training import Batches, Net, Optimizer, train  # noqa: E402  after the check for torch

import monitel.torch  # noqa: E402

pytestmark = pytest.mark.torch

SECOND = 1_000_000_000
#: A range in seconds since the start of the clock: name, start, end, name of the parent.
Row = tuple[str, float, float, "str | None"]


@pytest.fixture
def recorded(clock: ManualClock) -> Callable[..., list[Row]]:
    """Provide a function that runs an action instrumented, and returns its ranges in the order of their ends."""

    def recorded(action: Callable[[], object], **options: Any) -> list[Row]:
        found: list[Range] = []
        origin_ns = clock.monotonic_ns()
        options = {"phases": True, "window_size": float("inf"), **options}
        with monitel.torch.instrument(**options), ranges.listen(ended=found.append):
            action()
            assert ranges.current_range() is None  # nothing was left open
        return [
            (
                each.name,
                (each.monotonic_start_ns - origin_ns) / SECOND,
                (each.monotonic_end_ns - origin_ns) / SECOND,
                None if each.parent is None else each.parent.name,
            )
            for each in found
        ]

    return recorded


def by_time(rows: list[Row]) -> list[tuple[object, ...]]:
    """Sort ranges by start, then by name."""
    return sorted((start, name, end, str(parent)) for name, start, end, parent in rows)


def test_phases_batches_and_steps_are_ranges(recorded: Any, clock: ManualClock) -> None:
    """A step lasts from the end of an optimizer step to the end of the next one."""
    model = Net(clock)
    found = recorded(lambda: train(clock, model, Optimizer(clock, model.parameters())), model=model)
    expected: list[Row] = []
    for begin in (0.0, 30.0, 60.0):
        if begin:
            expected.append(("training.step", begin, begin + 30, None))
        expected += [
            ("training.data", begin, begin + 16, None),
            ("read", begin, begin + 16, "training.data"),
            ("training.forward", begin + 16, begin + 18, None),
            ("training.backward", begin + 18, begin + 22, None),
            ("training.optimizer", begin + 22, begin + 30, None),
        ]
    expected.append(("training.data", 90.0, 90.0, None))  # this call of next() ends the epoch
    assert by_time(expected) == by_time(found)


def test_ranges_and_stats_have_the_same_durations(recorded: Any, clock: ManualClock) -> None:
    """The sums of a run are equal, apart from the end of the epoch, which takes no time here."""
    model = Net(clock)
    with monitel.testing.capture_events() as events:
        found = recorded(lambda: train(clock, model, Optimizer(clock, model.parameters())), model=model)
    sums = {event.window.name: event.window.sum for event in events if event.window}
    for name in ("training.step", "training.data", "training.forward", "training.backward", "training.optimizer"):
        assert sums[f"{name}.duration"] == sum(end - start for each, start, end, _ in found if each == name) > 0


def test_ranges_are_inside_the_range_of_the_user(recorded: Any, clock: ManualClock) -> None:
    """A range around several steps is the parent of each step and phase that begins within it."""
    model = Net(clock)
    optimizer = Optimizer(clock, model.parameters())

    def run() -> None:
        optimizer.step()
        clock.advance(100)
        with record_function("epoch"):
            for _ in range(2):
                model(torch.ones(1)).backward()
                optimizer.step()

    expected: list[Row] = [
        ("training.optimizer", 0.0, 8.0, None),
        ("training.step", 8.0, 122.0, None),
        ("epoch", 108.0, 136.0, None),
        ("training.forward", 108.0, 110.0, "epoch"),
        ("training.backward", 110.0, 114.0, "epoch"),
        ("training.optimizer", 114.0, 122.0, "epoch"),
        ("training.step", 122.0, 136.0, "epoch"),
        ("training.forward", 122.0, 124.0, "epoch"),
        ("training.backward", 124.0, 128.0, "epoch"),
        ("training.optimizer", 128.0, 136.0, "epoch"),
    ]
    assert by_time(expected) == by_time(recorded(run, model=model))


def test_step_overlaps_iterations_of_the_user(recorded: Any, clock: ManualClock) -> None:
    """A range that begins in one step and ends in the next is neither parent nor child of a step."""
    optimizer = Optimizer(clock, Net(clock).parameters())

    def run() -> None:
        for _ in range(3):
            with record_function("iteration"):
                clock.advance(1)
                optimizer.step()
                clock.advance(1)

    expected: list[Row] = [
        ("iteration", 0.0, 10.0, None),
        ("training.optimizer", 1.0, 9.0, "iteration"),
        ("training.step", 9.0, 19.0, None),
        ("iteration", 10.0, 20.0, None),
        ("training.optimizer", 11.0, 19.0, "iteration"),
        ("training.step", 19.0, 29.0, None),
        ("iteration", 20.0, 30.0, None),
        ("training.optimizer", 21.0, 29.0, "iteration"),
    ]
    assert by_time(expected) == by_time(recorded(run))


@pytest.mark.parametrize("calls", [1, 2])
def test_closure_is_between_the_parts_of_the_optimizer(recorded: Any, clock: ManualClock, calls: int) -> None:
    """Forward and backward of the closure are not inside a range of the optimizer."""
    model = Net(clock)
    optimizer = Optimizer(clock, model.parameters(), calls)

    def closure() -> None:
        model(torch.ones(1)).backward()

    expected: list[Row] = []
    for number in range(calls):
        begin = 10.0 * number
        first = begin - 3 if number else begin
        expected += [
            ("training.optimizer", first, begin + 1, None),
            ("training.forward", begin + 1, begin + 3, None),
            ("training.backward", begin + 3, begin + 7, None),
        ]
    expected.append(("training.optimizer", 10.0 * calls - 3, 10.0 * calls, None))
    assert by_time(expected) == by_time(recorded(lambda: optimizer.step(closure), model=model))


def test_lbfgs_has_disjoint_ranges(recorded: Any, clock: ManualClock) -> None:
    """An optimizer of torch calls its closure several times."""
    model = Net(clock)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(1)) ** 2
        loss.backward()
        return loss

    found = recorded(lambda: optimizer.step(closure), model=model)
    names = [name for name, _, _, _ in found]
    assert names.count("training.forward") == names.count("training.backward") == names.count("training.optimizer") - 1
    assert names.count("training.forward") > 1
    assert all(end <= start for (_, _, end, _), (_, start, _, _) in pairwise(found))


def test_optimizer_within_backward_is_its_child(recorded: Any, clock: ManualClock) -> None:
    """A hook of a parameter may step as soon as its gradient is complete."""
    model = Net(clock)
    optimizer = Optimizer(clock, model.parameters())
    model.weight.register_post_accumulate_grad_hook(lambda _weight: optimizer.step())
    expected: list[Row] = [
        ("training.forward", 0.0, 2.0, None),
        ("training.backward", 2.0, 14.0, None),
        ("training.optimizer", 6.0, 14.0, "training.backward"),
    ]
    assert by_time(expected) == by_time(recorded(lambda: model(torch.ones(1)).backward(), model=model))


class PhaseError(Exception):
    """Raised in the middle of a phase."""


def test_exceptions_leave_no_range_open(recorded: Any, clock: ManualClock) -> None:
    """A phase that raises ends with the exception; an optimizer that raises has no range."""
    model = Net(clock)
    optimizer = Optimizer(clock, model.parameters())

    def fail(*_arguments: object) -> None:
        clock.advance(1)
        raise PhaseError

    def run() -> None:
        with record_function("user"):
            hook = model.register_forward_hook(fail)
            with suppress(PhaseError):
                model(torch.ones(1))
            hook.remove()
            loss = model(torch.ones(1))
            weight_hook = model.weight.register_hook(fail)
            with suppress(PhaseError):
                loss.backward()
            weight_hook.remove()
            with suppress(PhaseError):
                optimizer.step(fail)
            optimizer.step()

    expected: list[Row] = [
        ("user", 0.0, 20.0, None),
        ("training.forward", 0.0, 3.0, "user"),
        ("training.forward", 3.0, 5.0, "user"),
        ("training.backward", 5.0, 10.0, "user"),
        ("training.optimizer", 10.0, 11.0, "user"),
        ("training.optimizer", 12.0, 20.0, "user"),
    ]
    assert by_time(expected) == by_time(recorded(run, model=model))


def test_generator_of_batches_is_not_around_the_step(recorded: Any, clock: ManualClock) -> None:
    """A generator that yields batches ends their range before its consumer runs."""
    optimizer = Optimizer(clock, Net(clock).parameters())

    def batches() -> Iterator[Any]:
        yield from torch.utils.data.DataLoader(Batches(clock))

    def run() -> None:
        for number, _batch in enumerate(batches()):
            optimizer.step()
            if number:
                break

    expected: list[Row] = [
        ("training.data", 0.0, 16.0, None),
        ("read", 0.0, 16.0, "training.data"),
        ("training.optimizer", 16.0, 24.0, None),
        ("training.step", 24.0, 48.0, None),
        ("training.data", 24.0, 40.0, None),
        ("read", 24.0, 40.0, "training.data"),
        ("training.optimizer", 40.0, 48.0, None),
    ]
    assert by_time(expected) == by_time(recorded(run))


def test_threads_have_separate_ranges(recorded: Any, clock: ManualClock) -> None:
    """A range of another thread is not a parent."""
    optimizer = Optimizer(clock, Net(clock).parameters())

    def run() -> None:
        with record_function("main"):
            thread = threading.Thread(target=optimizer.step)
            thread.start()
            thread.join(30)

    expected: list[Row] = [("main", 0.0, 8.0, None), ("training.optimizer", 0.0, 8.0, None)]
    assert by_time(expected) == by_time(recorded(run))


def test_listener_of_the_second_half_receives_only_its_ranges(clock: ManualClock) -> None:
    """Nothing is recorded while nobody listens, and a range is not ended that has not begun."""
    optimizer = Optimizer(clock, Net(clock).parameters())
    found: list[Range] = []
    with monitel.torch.instrument(phases=True):
        listening = []

        def closure() -> None:
            listening.append(ranges.listen(ended=found.append))

        optimizer.step(closure)
        listening[0].close()
        optimizer.step()
    assert [("training.optimizer", 3.0)] == [
        (each.name, (each.monotonic_end_ns - each.monotonic_start_ns) / SECOND) for each in found
    ]
