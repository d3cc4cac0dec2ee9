"""Training steps, data loading and phases of a torch job, as Stats."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from monitel.testing import ManualClock

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch

pytestmark = pytest.mark.torch


def optimizer(kind: Any = torch.optim.SGD) -> Any:
    """Make an optimizer of one parameter that has a gradient."""
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    return kind([parameter], lr=0.1)


def test_steps_and_their_durations(windows: Any, totals: Any, clock: ManualClock) -> None:
    """Every step is counted. A duration lies between two steps, so there is one fewer."""
    before = optimizer()
    end = windows()
    for seconds in (2, 5, 1):
        clock.advance(seconds)
        before.step()
    assert {"steps": 3, "steps.skipped": 0} == totals()
    duration = end()["training.step.duration"]
    assert (2, 6.0, 1.0, 5.0, "s") == (duration.count, duration.sum, duration.min, duration.max, duration.unit)
    assert (2, 3) == (duration.first_step, duration.last_step)


def test_counters_start_at_zero(windows: Any, totals: Any) -> None:
    """The counters exist before the first step. A Stat without samples has no window, samples and tokens no counter."""
    end = windows()
    assert {"steps": 0, "steps.skipped": 0} == totals()
    assert {} == end()


def test_optimizer_created_later_is_counted(windows: Any, totals: Any) -> None:
    """This holds for every class, including subclasses defined by the user."""

    class Mine(torch.optim.SGD):  # type: ignore[misc]
        """A subclass that overrides step()."""

        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    optimizer()  # by now torch's hooks run for SGD.step too, within that of the subclass
    end = windows()
    for kind in (torch.optim.Adam, Mine):
        made = optimizer(kind)
        for _ in range(3):
            made.step()
    end()
    assert 6 == totals()["steps"]


def test_step_that_raises_is_not_counted(windows: Any, totals: Any) -> None:
    """The next successful one is."""
    one = optimizer()
    end = windows()
    for fail in (1, 1, 0):
        with suppress(ZeroDivisionError):
            one.step(lambda fail=fail: 1 // (not fail))
    end()
    assert 1 == totals()["steps"]


def test_optimizers_that_take_turns_make_one_step(windows: Any, totals: Any, clock: ManualClock) -> None:
    """A training step starts when an optimizer steps again, so durations are those of whole training steps."""
    generator, critic = optimizer(), optimizer()
    end = windows()
    for _ in range(3):
        clock.advance(1)
        critic.step()
        clock.advance(10)
        generator.step()
    duration = end()["training.step.duration"]
    assert (3, [11.0, 11.0]) == (totals()["steps"], [duration.min, duration.max])


def test_most_frequent_optimizer_determines_the_count(windows: Any, totals: Any) -> None:
    """Five critic steps for each generator step make five."""
    generator, critic = optimizer(), optimizer()
    end = windows()
    for _ in range(2):
        for _ in range(5):
            critic.step()
        generator.step()
    end()
    assert 10 == totals()["steps"]


def test_one_optimizer_per_parameter_makes_one_step(windows: Any, totals: Any) -> None:
    """Optimizers that run within backward are created that way."""
    each = [optimizer() for _ in range(20)]
    end = windows()
    for _ in range(4):
        for one in each:
            one.step()
    end()
    assert 4 == totals()["steps"]


def test_time_between_runs_is_not_a_duration(windows: Any, totals: Any, clock: ManualClock) -> None:
    """All steps of consecutive runs are counted, and the time between two runs is not recorded."""
    end = windows()
    for _ in range(3):
        generator, critic = optimizer(), optimizer()
        clock.advance(600)
        for _ in range(4):
            clock.advance(1)
            critic.step()
            generator.step()
    duration = end()["training.step.duration"]
    assert (12, 9, 9.0) == (totals()["steps"], duration.count, duration.sum)


def test_optimizer_that_joins_later_adds_one_step(windows: Any, totals: Any) -> None:
    """A generator whose critic was trained alone before adds its first step, and no others."""
    generator, critic = optimizer(), optimizer()
    end = windows()
    for turn in range(10):
        critic.step()
        if turn >= 5:
            generator.step()
    end()
    assert 11 == totals()["steps"]


def test_steps_increment_the_step_of_the_process(windows: Any) -> None:
    """Counting continues from the step that a resumed run, or the loop itself, has set."""
    monitel.set_step(1000)
    end, one = windows(), optimizer()
    one.step()
    assert 1001 == monitel.get_step()
    monitel.set_step(7)
    one.step()
    assert 8 == monitel.get_step()
    end()


def test_steps_after_uninstrument_are_not_counted(windows: Any) -> None:
    """The hooks are removed."""
    end, one = windows(), optimizer()
    one.step()
    end()
    one.step()
    assert 1 == monitel.get_step()


class Slow(torch.utils.data.Dataset):  # type: ignore[misc]
    """Four numbers, each of which takes three seconds of the test's clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.clock.advance(3)
        return index


def test_data_duration_has_one_sample_per_batch(windows: Any, clock: ManualClock) -> None:
    """Neither the end of the epoch nor the work of the loop is included."""
    end, seen = windows(), []
    for batch in torch.utils.data.DataLoader(Slow(clock), batch_size=2):
        seen += batch.tolist()
        clock.advance(100)
    duration = end()["training.data.duration"]
    assert ([0, 1, 2, 3], 2, 6.0, 6.0) == (seen, duration.count, duration.min, duration.max)


def test_iterator_in_progress_is_measured(windows: Any, clock: ManualClock) -> None:
    """Instrumenting and uninstrumenting within an epoch does not affect the loop."""
    batches = iter(torch.utils.data.DataLoader(Slow(clock)))
    seen = [next(batches).item()]
    end = windows()
    seen.append(next(batches).item())
    found = end()
    seen += [batch.item() for batch in batches]
    assert ([0, 1, 2, 3], 1) == (seen, found["training.data.duration"].count)


def test_wrapper_of_another_library_stays(windows: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """After uninstrument(), the wrapper beneath it records nothing."""
    end = windows()
    iterator = monitel.torch._compat.loader_iterator()
    ours, calls = iterator.__next__, []

    def theirs(self: Any) -> Any:
        calls.append(1)
        return ours(self)

    monkeypatch.setattr(iterator, "__next__", theirs)
    assert {} == end()
    assert 4 == len(list(torch.utils.data.DataLoader(Slow(clock))))
    with monitel.testing.capture_events() as events:
        monitel.flush()
    assert [] == events
    assert iterator.__next__ is theirs
    assert 5 == len(calls)


def test_phases_are_measured_separately(windows: Any, clock: ManualClock) -> None:
    """The forward of the model, backward and the optimizer each have a Stat."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        """Takes five seconds forward and seven back."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.weight.register_hook(lambda gradient: clock.advance(7) or gradient)  # type: ignore[func-returns-value]

        def forward(self, x: Any) -> Any:
            clock.advance(5)
            return x * self.weight

    class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
        """Takes a second, and changes nothing."""

        def step(self, closure: Any = None) -> Any:
            clock.advance(1)

    model = Model()
    one = Optimizer(model.parameters(), {})
    end = windows(phases=True, model=model)
    for _ in range(2):
        clock.advance(50)
        loss = model(torch.ones(1)).sum()
        clock.advance(50)
        loss.backward()
        one.step()
    found = {name: (window.count, window.min, window.max) for name, window in end().items()}
    assert (2, 5.0, 5.0) == found["training.forward.duration"]
    assert (2, 7.0, 7.0) == found["training.backward.duration"]
    assert (2, 1.0, 1.0) == found["training.optimizer.duration"]
    assert (1, 113.0, 113.0) == found["training.step.duration"]


def test_forward_that_raises_is_not_recorded(windows: Any, clock: ManualClock) -> None:
    """Its time is not added to the next one either."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        """Raises on request."""

        def forward(self, fail: bool) -> int:
            clock.advance(5)
            return 1 // (not fail)

    model = Model()
    end = windows(phases=True, model=model)
    with pytest.raises(ZeroDivisionError):
        model(fail=True)
    model(fail=False)
    forward = end()["training.forward.duration"]
    assert (1, 5.0) == (forward.count, forward.sum)


def test_recursive_forward_is_one_sample(windows: Any, clock: ManualClock) -> None:
    """A nested call is part of the outer one."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        """Calls itself."""

        def forward(self, depth: int) -> int:
            clock.advance(5)
            return self(depth - 1) if depth else 0

    model = Model()
    end = windows(phases=True, model=model)
    model(3)
    forward = end()["training.forward.duration"]
    assert (1, 20.0) == (forward.count, forward.sum)
