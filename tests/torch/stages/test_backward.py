"""Backward of all kinds: nested, repeated, of other roots, compiled by nobody, or wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.known_work import STEP, Cycles, Work
from torch.utils.checkpoint import checkpoint

import monitel
import monitel.torch
from monitel.profiler import ranges

Run = Callable[..., Cycles]


def trained(work: Work, cycles: Run, backward: Callable[[], object]) -> Cycles:
    """Run a loop with a batch, a function for forward and backward, an optimizer and other work."""

    def train() -> None:
        for _ in work.loader(3):
            backward()
            work.optimize()
            work.takes(32)

    return cycles(train)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_are_backward(reentrant: bool, work: Work, cycles: Run) -> None:
    """Checkpointing runs forward again. A reentrant checkpoint runs a backward within backward."""

    def backward() -> None:
        x = work.parameter * 1
        for _ in range(2):
            x = checkpoint(work.forward, x, use_reentrant=reentrant)
        x.backward()

    assert [{**STEP, "forward": 4, "backward": 2 * (2 + 4)}] * 2 == trained(work, cycles, backward)


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

    def backward() -> None:
        ROOTS[root](work)
        gradients.append(work.parameter.grad)
        work.parameter.grad = None

    ended: list[str] = []
    with ranges.listen(ended=lambda each: ended.append(each.name)):
        found = trained(work, cycles, backward)
        assert ranges.current_range() is None
    assert [STEP] * 2 == found
    assert [expected] * 3 == gradients
    assert 3 == ended.count("training.backward")


def test_backward_while_a_batch_is_made(work: Work, cycles: Run) -> None:
    """Batches that are trained themselves, such as adversarial ones: the stages still add up to the cycle."""

    def hardened() -> Any:
        for _ in range(3):
            work.takes(1)
            work.forward(torch.ones(1, requires_grad=True), 0.25, 0.5).backward()
            work.takes(0.125)
            yield

    def train() -> None:
        for _ in monitel.torch.batches(hardened()):
            work.step()

    assert [{**STEP, "data": 1 + 0.25 + 0.125, "backward": 4.5}] * 2 == cycles(train)
