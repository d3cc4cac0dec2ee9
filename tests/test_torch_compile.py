"""torch.compile beside monitel.torch.instrument(): the captured ops are the same, and what happens is counted."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch: Any = pytest.importorskip("torch", reason="compiles with torch.compile: torch is not installed")

import monitel.torch  # noqa: E402  after the check that torch is there

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),  # of torch, in torch
]


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    monitel._window.set_step(None)


class Model(torch.nn.Module):  # type: ignore[misc]
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        """Compute."""
        return self.second(torch.relu(self.first(x))).sum()


def captured(function: Callable[..., Any], *arguments: Any, calls: int = 1, fullgraph: bool = False) -> list[list[str]]:
    """Give the ops of each graph that is captured."""
    graphs: list[list[str]] = []

    def backend(module: Any, _inputs: Any) -> Any:
        graphs.append([str(node.target) for node in module.graph.nodes if node.op.startswith("call_")])
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=fullgraph)
    for _ in range(calls):
        compiled(*arguments)
    return graphs


def instrumented(**choices: Any) -> monitel.torch.Instrumentation:
    """Switch everything on."""
    return monitel.torch.instrument(phases=True, window_size=float("inf"), **choices)


def test_a_model_with_hooks_is_one_graph() -> None:
    """Its forward hooks do nothing while it is traced, with ``fullgraph=True`` too."""
    model, x = Model(), torch.ones(2, 3)
    before = captured(model, x, fullgraph=True)
    with instrumented(model=model):
        assert before == captured(model, x, fullgraph=True)
    assert [4] == [len(ops) for ops in before]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_compiled_optimizer_step_is_counted(kind: Any) -> None:
    """Each call of it; the ops are the same, and nothing is compiled more often."""
    model = Model()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = kind(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.step()

    step()
    before = captured(step, calls=3)
    with instrumented(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert before == captured(step, calls=3)
        assert 3 == monitel.get_step()
    assert [] != before
    assert [] == [each for each in said if "how to trace" in str(each.message)]


def test_a_training_loop_around_a_compiled_model() -> None:
    """The usual case: the optimizer was made before the first compilation."""
    model, x = Model(), torch.ones(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with monitel.testing.capture_events() as events, instrumented():
        for _ in range(3):
            compiled(x).backward()
            optimizer.step()
            optimizer.zero_grad()
    counts = {event.window.name: event.window.count for event in events if event.window}
    assert (3, 2, 3, 3) == tuple(
        counts[f"training.{name}"] for name in ("steps", "step.duration", "backward.duration", "optimizer.duration")
    )
    said = [event.name for event in events if event.name.startswith("torch.") and not event.window]
    assert ["torch.compile.started", "torch.compile"] == said


def test_to_instrument_is_no_reason_to_compile_anew() -> None:
    """What was compiled before goes on as it is."""
    graphs: list[Any] = []

    def backend(module: Any, _inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    model, x = Model(), torch.ones(2, 3)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    compiled(x)
    with instrumented():
        compiled(x)
    compiled(x)
    assert 1 == len(graphs)
