"""Work of a training loop that takes known times of a manual clock, and the cycles that were logged for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from tests.support.checks import ledger

import monitel

#: The stages of each cycle, in seconds. Stages that took no time are left out.
Cycles = list[dict[str, float]]


def windows_of(events: Iterable[monitel.Event], name: str) -> list[monitel.Window]:
    return [each.window for each in events if each.window is not None and each.window.name == name]


def logged_cycles(events: Iterable[monitel.Event]) -> Cycles:
    """Return the stages of each cycle, which has a separate window."""
    cycles: Cycles = []
    found = windows_of(events, "training.stage.duration")
    for stage in ("optimizer", "other", "data", "forward", "backward", "sync"):
        samples = [each for each in found if each.attributes["training.stage"] == stage]
        assert all(each.count == 1 for each in samples)
        cycles += [{} for _ in samples[len(cycles) :]]
        for cycle, window in zip(cycles, samples, strict=False):
            if window.sum:
                cycle[stage] = window.sum
    return cycles


class Takes(torch.autograd.Function):  # type: ignore[misc]
    """The identity, whose forward and backward take some time, or call a function."""

    @staticmethod
    def forward(context: Any, x: Any, advance: Any, forward: Any, backward: Any) -> Any:
        context.work = advance, backward
        context.save_for_backward(x)
        advance(forward)
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        advance, backward = context.work
        assert 1 == len(context.saved_tensors)  # a checkpoint computes it again
        if callable(backward):
            backward()
        else:
            advance(backward)
        return gradient, None, None, None


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Takes 8 s after its closure."""

    def __init__(self, work: Work, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})  # trainers schedule it
        self.work = work

    def step(self, closure: Any = None) -> Any:
        result = None if closure is None else closure()
        self.work.takes(8)
        return result


class Work:
    """The parts of a training step: 1 s for a batch, 2 s forward, 4 s backward, 8 s for the optimizer."""

    def __init__(self, takes: Callable[[float], object], parameter: Any = None) -> None:
        self.takes = takes
        self.parameter = torch.nn.Parameter(torch.ones(1)) if parameter is None else parameter
        self.optimize: Callable[..., Any] = self.optimizer().step

    def optimizer(self) -> Optimizer:
        return Optimizer(self, [self.parameter])

    def loader(self, batches: int = 1000, seconds: float = 1, **options: Any) -> Any:
        def batch(index: int) -> int:
            self.takes(seconds)
            return index

        return torch.utils.data.DataLoader(range(batches), batch_size=None, collate_fn=batch, **options)

    def forward(self, x: Any = None, seconds: float = 2, backward: float | Callable[[], object] = 4) -> Any:
        """Return a loss, whose backward takes some time, or calls a function."""
        return Takes.apply(self.parameter if x is None else x, self.takes, seconds, backward).sum()

    def step(self) -> None:
        """Make the part of a step that follows its batch: forward, backward, optimizer, and 32 s of other work."""
        self.forward().backward()
        self.optimize()
        self.takes(32)

    def batches(self, number: int, seconds: float = 1) -> Iterator[int]:
        for index in range(number):
            self.takes(seconds)
            yield index

    def evaluate(self, batches: Iterable[Any], number: int = 1000) -> None:
        for _, _batch in zip(range(number), batches, strict=False):
            self.takes(100)


def noting(graphs: list[list[str]]) -> Callable[..., Any]:
    """Return a backend of torch.compile that notes the operations of each graph, and runs it as it is."""

    def backend(module: Any, _inputs: Any) -> Any:
        graphs.append([str(node.target) for node in module.graph.nodes if node.op.startswith("call_")])
        return module.forward

    return backend


def captured(function: Callable[..., Any], inputs: Iterable[Any], **options: Any) -> tuple[list[list[str]], list[Any]]:
    """Compile a function anew; return the operations of its graphs, and the result for each input."""
    graphs: list[list[str]] = []
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=noting(graphs), **options)
    results = [compiled(each) for each in inputs]
    return graphs, [each.tolist() if isinstance(each, torch.Tensor) else each for each in results]


#: A step: batch, forward, backward, optimizer, and 32 s of other work.
STEP: dict[str, float] = {"optimizer": 8, "other": 32, "data": 1, "forward": 2, "backward": 4}


def train(work: Work, steps: int) -> None:
    for _ in work.loader(steps):
        work.step()


def sgd(kind: Any = torch.optim.SGD) -> Any:
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    return kind([parameter], lr=0.1)


def total(name: str) -> float:
    return monitel.counter(f"training.{name}").total


def activity() -> str:
    return ledger().current
