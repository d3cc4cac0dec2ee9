"""The stage under way, the end of instrumentation within a stage, and backward of all kinds."""

import gc
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.support.producers import run_together
from tests.torch.known_work import STEP, Cycles, Work, logged_cycles, train

import monitel
import monitel.torch
from monitel.profiler import ranges
from monitel.training.activities import stage_now

Run = Callable[..., Cycles]


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


def stages_of(numbers: Numbers) -> list[str]:
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
    assert ["data", "forward", "backward", "optimizer", "optimizer", "other"] == stages_of(numbers)
    assert ["", "data", "data"] == numbers.found


def test_only_the_training_thread_that_is_alive() -> None:
    """Before the end of a cycle it is the newest thread with a backward; after its end there is none."""
    assert stage_now() is None
    with monitel.torch.instrument(sources="-waits,-compilation,-failures"):
        run_together(partial(stages_of, Numbers()))
        assert stage_now() is None
        torch.nn.Parameter(torch.ones(1)).sum().backward()  # the cycle has not ended
        assert stage_now() is None, "the thread that trained has ended, and no other one has trained"
    with monitel.torch.instrument(sources="-waits,-compilation,-failures", window_size=30.0):
        torch.nn.Parameter(torch.ones(1)).sum().backward()
        found = stage_now()
        assert found is not None
        assert ("other", threading.get_ident()) == (found.name, found.thread)
    assert stage_now() is None


@pytest.mark.parametrize("again", [False, True])
def test_uninstrument_within_a_stage(again: bool, work: Work) -> None:
    """The cycle under way is not reported. Instrumentation may begin in the same place."""
    running = monitel.torch.instrument(window_size=0.001)
    with monitel.testing.capture_events() as events:
        train(work, 3)
        work.forward(backward=running.uninstrument).backward()
        if again:
            running = monitel.torch.instrument(window_size=0.001)
        work.optimize()
        work.takes(32)
        assert [STEP] * 2 == logged_cycles(events)
        events.clear()
        train(work, 3)
        running.uninstrument()
    assert ([STEP] * 2 if again else []) == logged_cycles(events)


def test_memory_stays_constant(work: Work) -> None:
    """Over 4,000 batches with a backward, every second one with an optimizer in it."""
    losses = [work.forward, lambda: work.forward(backward=work.optimize)]
    blocks: list[int] = []
    with monitel.torch.instrument(sources="-compilation,-tensors", window_size=float("inf")):
        for batches in (10, 500, 4_000):
            for index in work.loader(batches):
                losses[index % 2]().backward()
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    assert blocks[2] - blocks[1] < 2000


class Wrapped(torch.Tensor):  # type: ignore[misc]
    """A subclass, whose functions go through ``__torch_function__``."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


BACKWARD = torch.autograd.backward  # as "from torch.autograd import backward" before instrument()


def run_engine(root: Any) -> None:
    """Run the engine as Megatron's pipelines do, which have freed the output."""
    engine = torch.autograd.Variable._execution_engine
    options = {"keep_graph": False, "create_graph": False, "inputs": (), "allow_unreachable": True}
    engine.run_backward(tensors=(root,), grad_tensors=(torch.ones(()),), accumulate_grad=True, **options)


ROOTS: dict[str, Callable[[Work], Any]] = {
    "leaf": lambda work: torch.autograd.backward([torch.ones((), requires_grad=True), work.forward()]),
    "several": lambda work: torch.autograd.backward([work.forward(seconds=1, backward=2) for _ in range(2)]),
    "iterator": lambda work: torch.autograd.backward(iter([work.forward(seconds=1, backward=2) for _ in range(2)])),
    "keyword": lambda work: torch.autograd.backward(tensors=(work.forward(),), grad_tensors=[torch.ones(())]),
    "edge": lambda work: torch.autograd.backward(
        torch.autograd.graph.get_gradient_edge(work.forward()), torch.ones(())
    ),
    "inputs": lambda work: work.forward().backward(inputs=[work.parameter]),
    "subclass": lambda work: work.forward().as_subclass(Wrapped).backward(),
    "subclasses": lambda work: torch.autograd.backward([work.forward().as_subclass(Wrapped)]),
    "function imported before": lambda work: BACKWARD(work.forward()),
    "engine": lambda work: run_engine(work.forward()),
}


@pytest.mark.parametrize("root", ROOTS)
def test_roots_of_all_kinds(root: str, work: Work, cycles: Run) -> None:
    """The gradients are those of torch alone, and no range stays open."""
    ROOTS[root](work)
    expected, work.parameter.grad = work.parameter.grad, None
    gradients = []

    def loop() -> None:
        for _ in work.loader(3):
            ROOTS[root](work)
            gradients.append(work.parameter.grad)
            work.parameter.grad = None
            work.optimize()
            work.takes(32)

    ended: list[str] = []
    with ranges.listen(ended=lambda each: ended.append(each.name)):
        found = cycles(loop)
        assert ranges.current_range() is None
    assert [STEP] * 2 == found
    assert [expected] * 3 == gradients
    assert 3 == ended.count("training.backward")
