"""Training steps of a torch job, and the wrapped methods of its loaders."""

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


def test_iterator_in_progress_is_measured(windows: Any, clock: ManualClock) -> None:
    """Instrumenting and uninstrumenting within an epoch does not affect the loop."""
    batches = iter(torch.utils.data.DataLoader(Slow(clock)))
    weight = torch.nn.Parameter(torch.ones(1))
    one = torch.optim.SGD([weight], lr=0.1)
    seen = [next(batches).item()]
    end = windows()
    for _ in range(2):
        seen.append(next(batches).item())
        weight.sum().backward()
        one.step()
    data = end()["data"]
    seen += [batch.item() for batch in batches]
    assert ([0, 1, 2, 3], 1, 3.0) == (seen, data.count, data.mean)


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
