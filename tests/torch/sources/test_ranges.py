"""Training steps, their stages and their batches as ranges: times, parents, profiles, and spans."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.torch.slow_training import Net, Optimizer, train
from tests.unit.profiler.traces import exported, lines

import monitel
import monitel.torch
from monitel.profiler import profile, ranges, record_function

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.receiver import Receiver

    from monitel.profiler.ranges import Range
    from monitel.testing import ManualClock


SECOND = 1_000_000_000


#: A range in seconds since the start of the clock: name, start, end, name of the parent.
Row = tuple[str, float, float, "str | None"]


@pytest.fixture
def recorded(clock: ManualClock) -> Callable[..., list[Row]]:
    """Provide a function that runs an action instrumented, and returns its ranges in the order of their ends."""

    def recorded(action: Callable[[], object]) -> list[Row]:
        found: list[Range] = []
        origin_ns = clock.monotonic_ns()
        with monitel.torch.instrument(window_size=float("inf")), ranges.listen(ended=found.append):
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


def test_stages_batches_and_steps_are_ranges(recorded: Any, clock: ManualClock) -> None:
    """A step lasts from the end of an optimizer step to the end of the next one. The first forward is not known."""
    model = Net(clock)
    found = recorded(lambda: train(clock, model, Optimizer(clock, model.parameters())))
    expected: list[Row] = []
    for begin in (0.0, 30.0, 60.0):
        if begin:
            expected.append(("training.step", begin, begin + 30, None))
            expected.append(("training.forward", begin + 16, begin + 18, None))
        expected += [
            ("training.data", begin, begin + 16, None),
            ("read", begin, begin + 16, "training.data"),
            ("training.backward", begin + 18, begin + 22, None),
            ("training.optimizer", begin + 22, begin + 30, None),
        ]
    expected.append(("training.data", 90.0, 90.0, None))  # this call of next() ends the epoch
    assert by_time(expected) == by_time(found)


class StageError(Exception):
    """Raised in the middle of a stage."""


def test_exceptions_leave_no_range_open(recorded: Any, clock: ManualClock) -> None:
    """A backward that raises ends with the exception. An optimizer that raises has no range."""
    model = Net(clock)
    optimizer = Optimizer(clock, model.parameters())

    def fail(*_arguments: object) -> None:
        clock.advance(1)
        raise StageError

    def run() -> None:
        with record_function("user"):
            hook = model.register_forward_hook(fail)
            with suppress(StageError):
                model(torch.ones(1))
            hook.remove()
            loss = model(torch.ones(1))
            weight_hook = model.weight.register_hook(fail)
            with suppress(StageError):
                loss.backward()
            weight_hook.remove()
            with suppress(StageError):
                optimizer.step(fail)
            model(torch.ones(1)).backward()
            optimizer.step()

    expected: list[Row] = [
        ("user", 0.0, 26.0, None),
        ("training.backward", 5.0, 10.0, "user"),
        ("training.forward", 10.0, 14.0, "user"),
        ("training.backward", 14.0, 18.0, "user"),
        ("training.optimizer", 18.0, 26.0, "user"),
    ]
    assert by_time(expected) == by_time(recorded(run))


def test_profile_shows_steps_on_a_separate_line(clock: ManualClock, tmp_path: Path) -> None:
    """Parents, self times and the lines of the trace file are consistent, though steps overlap iterations."""
    model = Net(clock)
    optimizer = Optimizer(clock, model.parameters())
    with monitel.torch.instrument(), profile() as prof:
        for x in monitel.torch.batches([torch.ones(1)] * 3):
            with record_function("iteration"):
                model(x).backward()
                optimizer.step()
                clock.advance(1)
    events = [(event.name, event.cpu_parent and event.cpu_parent.name) for event in prof.events()]
    assert 3 == events.count(("training.optimizer", "iteration"))
    assert 2 == events.count(("training.step", None))
    averages = {each.key: (each.count, each.cpu_time_total, each.self_cpu_time_total) for each in prof.key_averages()}
    assert {
        "iteration": (3, 45e6, 5e6),
        "training.data": (4, 0.0, 0.0),
        "training.forward": (2, 4e6, 4e6),  # the first one is not known
        "training.backward": (3, 12e6, 12e6),
        "training.optimizer": (3, 24e6, 24e6),
        "training.step": (2, 30e6, 30e6),
    } == averages
    assert {"MainThread": 15, "steps (MainThread)": 2} == {
        name: len(found) for name, found in lines(exported(prof, tmp_path)).items()
    }


STAGES = ("training.data", "training.forward", "training.backward", "training.optimizer")


OPTIONS: dict[str, Any] = {"waits": False, "compilation": False}


class Samples(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Three samples; each takes 3 s."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 3

    def __getitem__(self, _index: int) -> Any:
        self.clock.advance(3)
        return torch.ones(2)


def each_step(clock: ManualClock) -> Any:
    """Train three steps: 3 s for the batch, 5 s forward, 7 s backward, 11 s in the optimizer. Yield before each."""
    model = torch.nn.Linear(2, 1)
    model.register_forward_hook(lambda *_: clock.advance(5))
    model.weight.register_hook(lambda _gradient: clock.advance(7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: clock.advance(11))
    with monitel.torch.instrument(**OPTIONS):
        for x in torch.utils.data.DataLoader(Samples(clock)):
            model(x).sum().backward()
            optimizer.step()
            yield


def export(receiver: Receiver, folder: Path, action: Any, **options: Any) -> list[Any]:
    """Run an action with a pipeline, and return the received spans."""
    import monitel_otlp

    with monitel_otlp.configure(
        endpoint=receiver.url, spool_dir=folder, export_interval=3600.0, **{"spans": True, **options}
    ):
        action()
    return receiver.spans()


def test_trace_of_a_step_has_its_stages(receiver: Receiver, tmp_path: Path, clock: ManualClock) -> None:
    """With ``step_traces=True`` the span of the rank lasts as long as the step, and has the stages as children."""
    spans = export(receiver, tmp_path, lambda: list(each_step(clock)), step_traces=True)
    by_step = {step: [each for each in spans if each.attributes.get("training.step") == step] for step in (1, 2)}
    for found in by_step.values():
        (rank,) = [each for each in found if each.name == "training.rank"]
        assert 1 == len({each.trace_id for each in found})
        assert {*STAGES, "training.step"} == {each.name for each in found if each.parent_id == rank.span_id}
        assert 26 * SECOND == rank.end_ns - rank.start_ns
