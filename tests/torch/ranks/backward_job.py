"""A job of two ranks whose backwards have all kinds of roots, fail, and run in other threads; rank 1 comes late.

At the end rank 1 dies while rank 0 waits for it.

Rank 0 writes ``FOLDER/backward.json``: by case the durations of ``backward`` and ``sync`` in the cycle of the case.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import weakref
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import torch
from tests.torch.ranks.ranks import join
from torch import autograd, distributed
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

import monitel
import monitel.testing
import monitel.torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

LATE = 0.150
DIES = 3  # exit status of rank 1
BACKWARD = autograd.backward  # as "from torch.autograd import backward" before instrument()
_never = Event()


class BackwardError(Exception):
    """An error in backward."""


class WithoutHooks(torch.Tensor):  # type: ignore[misc]  # Any where torch is not installed
    """A tensor that refuses hooks."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raise if a hook is registered."""
        assert "hook" not in function.__name__
        return super().__torch_function__(function, types, args, kwargs or {})


class Payload:
    """An object that the graph holds."""


class Hold(autograd.Function):  # type: ignore[misc]  # Any where torch is not installed
    """Hold an object in the graph, and raise in backward if that is wanted."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, payload: Payload, fails: bool) -> Tensor:
        """Return a copy."""
        context.rest = payload, fails
        return tensor.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Return the gradient."""
        if context.rest[1]:
            raise BackwardError
        return gradient, None, None


def roots(model: Any) -> dict[str, Callable[[], None]]:
    """Return backwards by the kind of their roots."""
    leaf = torch.ones((), requires_grad=True)

    def loss() -> Tensor:
        return model(torch.ones(4)).sum()

    def edge() -> None:
        root = loss()
        autograd.backward((get_gradient_edge(root),), (torch.ones_like(root),))

    def engine() -> None:
        root = loss().as_subclass(WithoutHooks)
        options = {"keep_graph": False, "create_graph": False, "inputs": (), "allow_unreachable": True}
        run = autograd.Variable._execution_engine.run_backward
        run(tensors=(root,), grad_tensors=(torch.ones(()),), accumulate_grad=True, **options)

    return {
        "engine": engine,
        "function imported before": lambda: BACKWARD(loss()),
        "tensor": lambda: loss().backward(),
        "list": lambda: autograd.backward([loss()]),
        "generator": lambda: autograd.backward(each for each in (loss(),)),
        "with a gradient": lambda: autograd.backward(tensors=[model(torch.ones(4))], grad_tensors=[torch.ones(2)]),
        "edge": edge,
        "leaf and tensor": lambda: autograd.backward([leaf, loss()]),
        "tensor and leaf": lambda: autograd.backward([loss(), leaf]),
        "penalty": lambda: _penalty(model),
    }


def _penalty(model: Any) -> None:
    inputs = torch.ones(4, requires_grad=True)
    output = model(inputs).tanh().sum()
    (gradient,) = autograd.grad(output, inputs, create_graph=True)
    (output + gradient.square().sum()).backward()


def error(call: Callable[[], object]) -> str:
    """Return the error of a call."""
    try:
        call()
    except Exception as error:
        return repr(error)
    raise AssertionError("no error")


class Job:
    """A job with DistributedDataParallel, and what it has measured."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)))
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.found: dict[str, dict[str, float]] = {}

    def usual(self) -> None:
        """Run backward."""
        self.model(torch.ones(4)).sum().backward()

    def step(self, backward: Callable[[], None]) -> None:
        """Take a step with a backward."""
        backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def cycle(self, backward: Callable[[], None]) -> None:
        """Take a step with a backward for which rank 1 comes late, and end its cycle."""
        self.step(self.usual)
        if self.rank == 1:
            _never.wait(LATE)
        self.step(backward)
        self._optimizer.step()

    def case(self, name: str, take: Callable[[], None]) -> None:
        """Measure the cycles that a function takes."""
        with monitel.testing.capture_events() as events, monitel.torch.instrument(window_size=3600.0):
            take()
        windows = [each.window for each in events if each.window and each.window.name == "training.stage.duration"]
        self.found[name] = {str(each.attributes["training.stage"]): each.mean * each.count for each in windows}

    def in_thread(self) -> None:
        """Train in another thread."""
        thread = Thread(target=self.cycle, args=(self.usual,))
        thread.start()
        thread.join()

    def after_errors(self, errors: list[str]) -> None:
        """Call backward with wrong arguments, which raises the given errors, and fail inside backward."""
        self.step(self.usual)
        assert errors == wrong_arguments()
        root = Hold.apply(torch.nn.Linear(4, 1)(torch.ones(4)), Payload(), True).sum()
        assert error(root.backward) == "BackwardError()"
        assert not root._backward_hooks
        self.cycle(self.usual)

    def without_references(self) -> None:
        """Check that nothing holds a graph after its backward, without the garbage collector."""
        gc.collect()
        gc.disable()
        held = []
        for _ in range(3):
            payload = Payload()
            held.append(weakref.ref(payload))
            Hold.apply(self.model(torch.ones(4)), payload, False).sum().backward()
            del payload
        assert [None] * 3 == [each() for each in held]
        gc.enable()
        self.cycle(self.usual)


def wrong_arguments() -> list[str]:
    """Return the errors of backward with wrong arguments."""
    return [error(partial(autograd.backward, each)) for each in (5, "x", None, torch.ones(()))]


def main() -> None:
    """Run all cases."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    job = Job(join(folder))
    for _ in range(2):
        job.step(job.usual)  # DDP orders its buckets in the second forward, where ranks wait for each other
    for name, backward in roots(job.model).items():
        job.case(name, partial(job.cycle, backward))
    job.case("in a thread", job.in_thread)
    job.case("after errors", partial(job.after_errors, wrong_arguments()))
    job.case("after a look at memory", job.without_references)
    if job.rank == 0:
        Path(folder, "backward.json").write_text(json.dumps(job.found))
    distributed.barrier()
    with monitel.torch.instrument():
        job.step(job.usual)
        if job.rank == 1:
            os._exit(DIES)
        assert "RuntimeError" in error(distributed.barrier)  # it waits for the one that has died
        assert error(job.usual)


if __name__ == "__main__":
    main()
