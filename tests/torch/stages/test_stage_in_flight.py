"""The stage in flight: what the boundaries so far imply, in both twins, and in real loops."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import torch
from tests.torch.stages.test_cycle_model import _PROGRAM, Loop, twins

import monitel.torch
from monitel.stage import stage_now
from monitel.torch.stages import _cycle_py, cycle

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch


class Loader:
    """An iterator, which is only asked."""


@pytest.fixture
def calls(request: pytest.FixtureRequest) -> Any:
    """Return a cycle whose first step has ended at 100: ``(name, ns)`` calls it."""
    made = request.param(lambda _stages: None)
    for name, ns in (("backward_began", 10), ("backward_ended", 20), ("optimizer_began", 30), ("optimizer_ended", 100)):
        getattr(made, name)(ns)
    return made


each_twin = pytest.mark.parametrize("calls", [_cycle_py.Cycle, cycle.Cycle], indirect=True, ids=["py", "c"])


@each_twin
def test_stages_of_a_step(calls: Any) -> None:
    """Each stage begins at its boundary; a step of an optimizer belongs to the stage that began with backward's end."""
    iterator = Loader()
    assert ("other", False, 100) == calls.in_flight()
    calls.batch_began(110)
    assert ("data", False, 110) == calls.in_flight()
    calls.batch_ended(120, iterator, 1, True)
    assert ("forward", False, 120) == calls.in_flight()
    calls.backward_began(130)
    assert ("backward", False, 130) == calls.in_flight()
    calls.backward_ended(140)
    assert ("optimizer", False, 140) == calls.in_flight()
    calls.optimizer_began(150)
    assert ("optimizer", False, 140) == calls.in_flight()
    calls.optimizer_ended(160)
    assert ("other", False, 160) == calls.in_flight()
    calls.batch_began(170)
    calls.batch_ended(180, iterator, 1, False)
    assert ("other", False, 180) == calls.in_flight(), "a batch for evaluation"


@each_twin
def test_loop_whose_batches_are_not_seen(calls: Any) -> None:
    """Time outside of backward and of the optimizer may be anything."""
    calls.backward_began(130)
    assert ("backward", False, 130) == calls.in_flight()
    calls.backward_ended(140)
    assert ("other", False, 140) == calls.in_flight(), "perhaps the forward of the next part of a batch"
    calls.backward_began(150)
    assert ("backward", False, 150) == calls.in_flight()
    calls.backward_ended(160)
    calls.optimizer_began(170)
    assert ("optimizer", False, 160) == calls.in_flight()


@each_twin
def test_optimizer_within_backward(calls: Any) -> None:
    """The cycle ends with backward, and backward is not in flight any more."""
    calls.backward_began(130)
    calls.optimizer_began_in_backward()
    assert ("backward", False, 130) == calls.in_flight()
    calls.backward_ended(140)
    assert ("other", False, 140) == calls.in_flight()


@each_twin
def test_waits_for_other_ranks(calls: Any) -> None:
    """In any stage, also one within another one; and the rest of backward, when the own gradients are complete."""
    outer = calls.wait_began()
    inner = calls.wait_began()
    assert ("other", True, 100) == calls.in_flight()
    calls.wait_ended(inner, 5)
    assert ("other", True, 100) == calls.in_flight()
    calls.wait_ended(outer, 8)
    assert (("other", False, 100), 8) == (calls.in_flight(), calls.waited())
    calls.backward_began(130)
    calls.gradients_complete()
    assert ("backward", True, 130) == calls.in_flight()
    calls.backward_ended(140)
    assert ("other", False, 140) == calls.in_flight()
    calls.backward_began(150)
    assert ("backward", False, 150) == calls.in_flight(), "the gradients of this one are not complete"


@each_twin
def test_wait_whose_end_was_lost(calls: Any) -> None:
    """An interrupt may lose it. The next boundary shows that the wait is over, and later waits are right."""
    calls.wait_began()
    calls.batch_began(110)
    assert ("data", False, 110) == calls.in_flight()
    before = calls.wait_began()
    assert ("data", True, 110) == calls.in_flight()
    calls.wait_ended(before, 3)
    assert ("data", False, 110) == calls.in_flight()


@twins
def test_before_the_first_boundary(twin: Any) -> None:
    """Nothing is known."""
    assert twin(lambda _stages: None).in_flight() is None


class Observed(Loop):
    """A loop whose stage in flight is noted after each call."""

    def __init__(self, twin: Any) -> None:
        super().__init__(twin)
        self.found: list[Any] = []

    def call(self, kind: str, *iterator: Any) -> None:
        """Pass a boundary."""
        super().call(kind, *iterator)
        self.found.append(self.cycle.in_flight())


@settings(deadline=None)
@given(st.lists(_PROGRAM, max_size=3))
def test_both_twins_agree(programs: list[Any]) -> None:
    """In any order of boundaries."""
    both = [Observed(twin) for twin in (_cycle_py.Cycle, cycle.Cycle)]
    for each in both:
        for program in programs:
            each.work(1)
            each.run(program)
    assert both[0].found == both[1].found


@pytest.fixture
def instrumented() -> Iterator[None]:
    """Instrument torch for the test."""
    with monitel.torch.instrument(waits=False, compilation=False, failures=False):
        yield


class Numbers(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Batches that note the stage in which they are made."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def __len__(self) -> int:
        return 3

    def __getitem__(self, _index: int) -> Any:
        self.found.append(_stage())
        return torch.ones(4)


def _stage() -> str:
    found = stage_now()
    assert found is None or (found.thread, found.waits) == (threading.get_ident(), False)
    assert found is None or found.age_ns >= 0
    return "" if found is None else found.name


def train(numbers: Numbers) -> list[str]:
    """Train, and return the stages of the last step as its own code sees them."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[str] = []
    for batch in torch.utils.data.DataLoader(numbers, batch_size=1):
        found = [numbers.found[-1], _stage()]
        loss = model(batch).sum()
        loss.register_hook(lambda _gradient: found.append(_stage()))  # noqa: B023  runs in this step
        loss.backward()
        found.append(_stage())
        optimizer.step(lambda: (found.append(_stage()), loss)[1])  # type: ignore[func-returns-value]  # noqa: B023
        found.append(_stage())
    return found


@pytest.mark.usefixtures("instrumented")
def test_stages_of_a_real_loop() -> None:
    """Every part of the loop finds itself in its stage. Before the first backward nothing is known."""
    numbers = Numbers()
    assert ["data", "forward", "backward", "optimizer", "optimizer", "other"] == train(numbers)
    assert ["", "data", "data"] == numbers.found


def test_only_the_training_thread_that_is_alive() -> None:
    """Before the end of a cycle it is the newest thread with a backward; after its end there is none."""
    assert stage_now() is None
    with monitel.torch.instrument(waits=False, compilation=False, failures=False):
        thread = threading.Thread(target=train, args=(Numbers(),))
        thread.start()
        thread.join()
        assert stage_now() is None
        torch.nn.Parameter(torch.ones(1)).sum().backward()  # the cycle has not ended
        assert stage_now() is None, "the thread that trained has ended, and no other one has trained"
    with monitel.torch.instrument(waits=False, compilation=False, failures=False, window_size=30.0):
        torch.nn.Parameter(torch.ones(1)).sum().backward()
        found = stage_now()
        assert found is not None
        assert ("other", threading.get_ident()) == (found.name, found.thread)
    assert stage_now() is None


@pytest.mark.usefixtures("instrumented")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_has_no_stage() -> None:
    """The training thread is the parent's."""
    train(Numbers())
    child = os.fork()
    if child == 0:
        os._exit(0 if stage_now() is None else 1)
    assert 0 == os.waitpid(child, 0)[1]
    assert stage_now() is not None
