"""Stages of loops that torch.compile compiles: the graphs are those of torch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.stages.known_work import logged_cycles  # noqa: E402

import monitel.torch  # noqa: E402  after the check for torch

if TYPE_CHECKING:
    from tests.torch.stages.known_work import Work

    from monitel.testing import ManualClock

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")]


class Training:
    """A model and an optimizer, of which parts are compiled, with the operations of each graph.

    Attributes:
        graphs: The operations of each compiled graph.
    """

    def __init__(self, work: Work) -> None:
        torch.manual_seed(0)
        self.takes = work.takes
        self.graphs: list[list[str]] = []
        self.model: Any = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.1)
        self.step: Any = self.optimizer.step
        self.backward: Any = lambda x: self.model(x).sum().backward()

    def compiled(self, function: Any, **options: Any) -> Any:
        """Compile a function or a model."""

        def backend(graph: Any, _inputs: Any) -> Any:
            self.graphs.append([str(node.target) for node in graph.graph.nodes if node.op.startswith("call")])
            return graph.forward

        return torch.compile(function, backend=backend, **options)

    def run(self) -> None:
        """Train four steps with batches of 1 s, and 32 s of other work."""
        for batch in monitel.torch.batches([torch.ones(3, 2)] * 4):
            self.takes(1)
            self.backward(batch)
            self.takes(16)
            self.step()
            self.optimizer.zero_grad()
            self.takes(32)


def _model(training: Training) -> None:
    training.model = training.compiled(training.model, fullgraph=True)


def _optimizer(training: Training) -> None:
    training.step = training.compiled(training.optimizer.step)


def _forward_and_backward(training: Training) -> None:
    training.backward = training.compiled(training.backward)


def _step(training: Training) -> None:
    backward, step = training.backward, training.step

    def both(x: Any) -> None:
        backward(x)
        step()

    training.backward = training.compiled(both)
    training.step = lambda: None


KINDS: dict[str, tuple[Callable[[Training], None], bool]] = {
    "model": (_model, True),
    "optimizer": (_optimizer, True),
    "forward and backward": (_forward_and_backward, True),
    "whole step": (_step, False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_and_parameters_are_those_of_torch_alone(kind: str, work: Work, clock: ManualClock) -> None:
    """The boundaries that are not compiled have their stages."""
    compile_part, has_stages = KINDS[kind]

    def trained() -> tuple[list[list[str]], list[Any]]:
        torch._dynamo.reset()
        training = Training(work)
        compile_part(training)
        training.run()
        return training.graphs, [each.tolist() for each in training.parameters]

    expected = trained()
    assert clock.monotonic_ns() > 0
    with monitel.testing.capture_events() as events, monitel.torch.instrument(window_size=0.001):
        found = trained()
    assert expected == found
    assert expected[0]
    if has_stages:
        assert [{"optimizer": 16, "other": 32, "forward": 1}] * 3 == logged_cycles(events)
    assert expected == trained()  # with hooks that the compiler has seen


def test_compiled_model_calls_hooks_once_instrumented(work: Work) -> None:
    """A loop that was compiled before instrument() has its stages all the same, without another compilation."""
    torch._dynamo.reset()
    training = Training(work)
    _model(training)
    training.run()
    graphs = len(training.graphs)
    with monitel.testing.capture_events() as events, monitel.torch.instrument(window_size=0.001):
        training.run()
    assert [{"optimizer": 16, "other": 32, "forward": 1}] * 3 == logged_cycles(events)
    assert graphs == len(training.graphs)
