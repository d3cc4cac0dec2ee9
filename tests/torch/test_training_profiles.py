"""Training steps and their stages in profiles: parents, self times, and the lines of the trace file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.profiler.traces import exported, lines

import monitel
from monitel.profiler import profile, record_function

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.testing import ManualClock

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.sources.slow_training import Net, Optimizer  # noqa: E402  after the check for torch

import monitel.torch  # noqa: E402

pytestmark = pytest.mark.torch


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


def test_profile_omits_the_step_in_which_it_starts(clock: ManualClock, tmp_path: Path) -> None:
    """Its range began before the recording, so its time in the trace would be negative."""
    optimizer = Optimizer(clock, Net(clock).parameters())
    with monitel.torch.instrument():
        optimizer.step()
        clock.advance(5)
        with profile() as prof:
            optimizer.step()
            optimizer.step()
    assert [("training.step", 8e6, 16e6)] == [(event.name, *event.time_range) for event in prof.events()]
    assert {"steps (MainThread)": ["training.step"]} == lines(exported(prof, tmp_path))


def test_ranges_inside_an_optimizer_are_its_children_in_a_profile(clock: ManualClock) -> None:
    """The range of the optimizer is recorded after them, and contains them."""

    class Nested(Optimizer):
        """Has a range of 5 s."""

        def step(self, closure: Any = None) -> Any:
            """Clip first."""
            self.clock.advance(1)
            with record_function("clip"):
                self.clock.advance(5)
            self.clock.advance(8)

    model = Net(clock)
    optimizer = Nested(clock, model.parameters())
    with monitel.torch.instrument(), profile() as prof, record_function("user"):
        model(torch.ones(1)).backward()
        optimizer.step()
    assert {
        "user": (None, 2e6),
        "training.backward": ("user", 4e6),
        "training.optimizer": ("user", 9e6),
        "clip": ("training.optimizer", 5e6),
    } == {each.name: (each.cpu_parent and each.cpu_parent.name, each.self_cpu_time_total) for each in prof.events()}
