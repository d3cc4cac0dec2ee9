"""torch.compile with monitel.torch.instrument(): the graphs stay the same, and steps and stages are recorded."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch: Any = pytest.importorskip("torch", reason="compiles with torch.compile: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),  # raised within torch
]


@pytest.fixture(autouse=True)
def _reset_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Model(torch.nn.Module):  # type: ignore[misc]
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        """Return the sum of the outputs."""
        return self.second(torch.relu(self.first(x))).sum()


def captured(function: Callable[..., Any], *arguments: Any, calls: int = 1, fullgraph: bool = False) -> list[list[str]]:
    """Return the operations of each captured graph."""
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
    """Instrument with one window."""
    return monitel.torch.instrument(window_size=float("inf"), **choices)


def test_model_is_captured_as_one_graph() -> None:
    """The stages need nothing of the model."""
    model, x = Model(), torch.ones(2, 3)
    before = captured(model, x, fullgraph=True)
    with instrumented():
        assert before == captured(model, x, fullgraph=True)
    assert [4] == [len(ops) for ops in before]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_compiled_optimizer_step_is_counted(kind: Any) -> None:
    """Each call is counted. The operations are the same, and nothing is compiled more often."""
    model = Model()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = kind(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.step()

    step()
    before = captured(step, calls=3)
    with instrumented(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert before == captured(step, calls=3)
        assert 3 == monitel.get_step()
    assert [] != before
    assert [] == [each for each in caught if "how to trace" in str(each.message)]


def test_training_loop_with_a_compiled_model() -> None:
    """In the usual case, the optimizer is created before the first compilation."""
    model, x = Model(), torch.ones(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with monitel.testing.capture_events() as events, instrumented():
        for _ in range(3):
            compiled(x).backward()
            optimizer.step()
            optimizer.zero_grad()
    windows = [event.window for event in events if event.window]
    stages = {each.attributes.get("training.stage", each.name): each.count for each in windows}
    expected = dict.fromkeys(("training.step.duration", "optimizer", "other", "data", "forward", "backward"), 2)
    assert expected == {name: count for name, count in stages.items() if name in expected}
    assert 3 == monitel.counter("training.steps").total
    names = [event.name for event in events if event.name.startswith("torch.") and not event.window]
    assert ["torch.compile.started", "torch.compile"] == names


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # of the compiler
def test_compiled_step_with_gradient_scaling() -> None:
    """Steps that GradScaler applies and skips are counted in compiled code, and change parameters as without it."""

    def train(steps: Callable[..., Any]) -> list[float]:
        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

        def step(gradient: Any) -> None:
            scaler.scale((parameter * gradient).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        compiled, values = steps(step), []
        for gradient in (float("inf"), 1.0, float("inf"), 2.0):
            compiled(torch.tensor([gradient]))
            values.append(parameter.item())
        return values

    with monitel.torch.instrument(window_size=float("inf")):
        found = train(torch.compile(backend="eager"))
    assert (2, 2) == tuple(monitel.counter(f"training.steps{rest}").total for rest in ("", ".skipped"))
    assert [1.0, 0.5, 0.5, -0.5] == found == train(lambda step: step)


@pytest.mark.parametrize("option", ["steps", "stages"])
def test_compiled_optimizer_step_compiles_without_failure(option: str) -> None:
    """The compiler skips torch's wrapper of step(), which calls the hooks."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    alone = {each: each == option for each in ("steps", "stages")}
    with monitel.testing.capture_events() as events:
        with instrumented(**alone):
            torch.compile(optimizer.step, backend="eager")()
        compiled = [event for event in events if event.name == "torch.compile"]
    assert [("step", monitel.Severity.INFO)] == [(each.data["compile.function"], each.severity) for each in compiled]


def test_backward_in_a_compiled_function_is_a_stage() -> None:
    """Backward breaks the graph, with or without monitel. Nothing else is compiled: no hook of monitel."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step() -> None:
        (weight * 2).sum().backward()
        optimizer.step()

    before = captured(step, calls=4)
    with monitel.testing.capture_events() as events:
        with instrumented():
            assert before == captured(step, calls=4)
        compiled = [str(event.data["compile.function"]) for event in events if event.name == "torch.compile"]
        stages = [event.window for event in events if event.window and "training.stage" in event.window.attributes]
    assert [] == [name for name in compiled if name != "step" and "_resume_in_step_at_" not in name]
    assert [3] * 5 == [each.count for each in stages]


def test_instrument_does_not_cause_recompilation() -> None:
    """Code compiled before instrument() is not compiled again."""
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_compiles_backward() -> None:
    """TorchScript knows ``torch.autograd.backward`` by identity."""
    with monitel.torch.instrument():
        step = torch.jit.script(scripted_step)
        weight = torch.ones(3, requires_grad=True)
        step(weight)
    assert [2.0] * 3 == weight.grad.tolist()


def scripted_step(weight: torch.Tensor) -> None:
    """Compute a loss and its gradient."""
    torch.autograd.backward([(2.0 * weight).sum()])
