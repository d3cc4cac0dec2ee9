"""Phases of a torch job with closures, checkpoints, evaluation, copied models and the compiler."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.testing import ManualClock

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):  # type: ignore[misc]
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.second = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply both layers."""
        return self.second(self.first(x))


def measured(action: Callable[[], object], model: Any = None) -> dict[str, tuple[int, float]]:
    """Run an action instrumented; return counts and sums of the phases."""
    with monitel.testing.capture_events() as events:
        with monitel.torch.instrument(phases=True, model=model, window_size=float("inf")):
            action()
        return {
            event.window.name.split(".")[1]: (event.window.count, event.window.sum) for event in events if event.window
        }


@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.LBFGS])
def test_closure_is_excluded_from_the_optimizer(clock: ManualClock, kind: Any, keyword: bool) -> None:
    """Forward and backward have separate Stats. step() returns the result of the closure."""
    model = Net()
    optimizer = kind(model.parameters(), lr=0.1)

    def closure() -> Any:
        clock.advance(5)
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    losses: list[Any] = []

    def train() -> None:
        losses.append(optimizer.step(closure=closure) if keyword else optimizer.step(closure))

    assert (1, 0.0) == measured(train)["optimizer"]
    assert isinstance(losses[0], torch.Tensor)


def test_closure_passed_to_another_step_is_excluded_once(clock: ManualClock) -> None:
    """An optimizer that wraps another one passes its closure on, and takes time too."""
    parameter = torch.nn.Parameter(torch.ones(1))
    inner = torch.optim.SGD([parameter], lr=0.1)

    class Outer(torch.optim.Optimizer):  # type: ignore[misc]
        """Calls the inner one."""

        def step(self, closure: Any = None) -> Any:
            clock.advance(100)
            return inner.step(closure)

    outer = Outer([parameter], {})
    assert (1, 0.0) == measured(lambda: outer.step(lambda: clock.advance(5)))["optimizer"]


def test_other_arguments_of_step_are_passed_on(clock: ManualClock) -> None:
    """The step() of a user's class may take any argument."""
    given: list[Any] = []

    class Mine(torch.optim.Optimizer):  # type: ignore[misc]
        """Takes a number."""

        def step(self, number: Any = None, closure: Any = None) -> Any:
            given.append((number, closure))

    mine = Mine([torch.nn.Parameter(torch.ones(1))], {})
    found = measured(lambda: [mine.step(7), mine.step(closure=None), mine.step(None)])
    assert ([(7, None), (None, None), (None, None)], 3) == (given, found["optimizer"][0])


@pytest.mark.usefixtures("clock")
def test_nested_backward_is_part_of_the_outer_one() -> None:
    """A reentrant checkpoint runs a backward within backward."""

    class Again(torch.autograd.Function):  # type: ignore[misc]
        """Runs a nested backward, as such a checkpoint does."""

        @staticmethod
        def forward(_context: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(_context: Any, gradient: Any) -> Any:
            with torch.enable_grad():
                torch.ones(1, requires_grad=True).sum().backward()
            return gradient

    assert 1 == measured(lambda: Again.apply(torch.ones(1, requires_grad=True)).sum().backward())["backward"][0]


@pytest.mark.usefixtures("clock")
def test_concurrent_backwards_are_all_recorded() -> None:
    """Each thread's backward is one sample."""
    barrier = threading.Barrier(2)

    def meet(_gradient: Any) -> None:
        barrier.wait(60)

    def backward() -> None:
        weight = torch.ones(1, requires_grad=True)
        weight.register_hook(meet)
        weight.sum().backward()

    def both() -> None:
        threads = [threading.Thread(target=backward) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert 2 == measured(both)["backward"][0]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_forward_without_gradients_is_not_recorded(mode: Any) -> None:
    """So evaluation between two steps does not change the mean of training."""
    model = Net()

    def train_and_evaluate() -> None:
        model(torch.ones(1, 2))
        with mode():
            model(torch.ones(1, 2))

    assert 1 == measured(train_and_evaluate, model)["forward"][0]


@pytest.mark.usefixtures("clock")
def test_other_models_of_the_class_are_not_measured() -> None:
    """A copy with averaged weights is another model."""
    model = Net()
    average = torch.optim.swa_utils.AveragedModel(model)
    found = measured(lambda: [model(torch.ones(1, 2)), average(torch.ones(1, 2)), Net()(torch.ones(1, 2))], model)
    assert 1 == found["forward"][0]


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),  # as torch.save(model), and a spawned process
        lambda model: torch.optim.swa_utils.AveragedModel(model).module,
    ],
)
def test_measured_model_can_be_copied_and_pickled(copied: Callable[[Any], Any]) -> None:
    """The model itself contains nothing of monitel."""
    model = Net()
    with monitel.torch.instrument(phases=True, model=model):
        model(torch.ones(1, 2))
        assert b"monitel" not in pickle.dumps(model.__dict__)
        assert torch.equal(model(torch.ones(1, 2)), copied(model)(torch.ones(1, 2)))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_measured_model_can_be_scripted_and_exported() -> None:
    """TorchScript would compile hooks of the model."""
    model, x = Net(), torch.ones(1, 2)
    with monitel.torch.instrument(phases=True, model=model):
        assert torch.equal(model(x), torch.jit.script(model)(x))
        assert torch.equal(model(x), torch.export.export(model, (x,)).module()(x))


def test_class_of_the_model_is_restored() -> None:
    """This holds for classes with and without ``__call__``."""

    class Mine(Net):
        """Counts its calls."""

        calls = 0

        def __call__(self, *args: Any) -> Any:
            type(self).calls += 1
            return super().__call__(*args)

    original = vars(Mine)["__call__"]
    model = Mine()
    found = measured(lambda: model(torch.ones(1, 2)), model)
    assert (1, 1, original) == (found["forward"][0], Mine.calls, vars(Mine)["__call__"])
    plain = Net()
    assert 1 == measured(lambda: plain(torch.ones(1, 2)), plain)["forward"][0]
    assert "__call__" not in vars(Net)


def test_wrapper_of_the_measured_call_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """After uninstrument(), the call beneath it only passes on."""

    class Mine(Net):
        """A separate class, because the wrapper stays."""

    model, calls = Mine(), []
    with monitel.torch.instrument(phases=True, model=model):
        ours = Mine.__call__

        def theirs(module: Any, *args: Any) -> Any:
            calls.append(1)
            return ours(module, *args)

        monkeypatch.setattr(Mine, "__call__", theirs)
    model(torch.ones(1, 2))
    assert ([1], theirs) == (calls, Mine.__call__)
    with monitel.testing.capture_events() as events:
        monitel.flush()
    assert [] == events


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("phases", [False, True])
def test_compiled_optimizer_step_compiles_without_failure(phases: bool) -> None:
    """The compiler skips torch's wrapper of step(), which calls the hooks."""
    torch._dynamo.reset()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    with monitel.testing.capture_events() as events:
        with monitel.torch.instrument(steps=not phases, phases=phases):
            torch.compile(optimizer.step, backend="eager")()
        compiled = [event for event in events if event.name == "torch.compile"]
    assert [("step", monitel.Severity.INFO)] == [(each.data["compile.function"], each.severity) for each in compiled]


def test_model_compiled_later_is_measured_with_the_same_graph() -> None:
    """The compiler starts at the model's forward, and compiles once."""
    torch._dynamo.reset()
    model, graphs = Net(), []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    def run() -> None:
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        for _ in range(3):
            compiled(torch.ones(1, 2))

    assert 3 == measured(run, model)["forward"][0]
    run()
    assert [[torch._C._nn.linear] * 2] == graphs[:1]
    assert all(graph == graphs[0] for graph in graphs)


def test_backward_in_a_compiled_function_is_measured() -> None:
    """Backward breaks the graph, with or without monitel."""
    torch._dynamo.reset()
    weight = torch.nn.Parameter(torch.ones(1))
    backward = torch.compile(lambda: (weight * 2).sum().backward(), backend="eager")
    assert 3 == measured(lambda: [backward() for _ in range(3)])["backward"][0]


def test_model_in_a_compiled_function_is_not_measured() -> None:
    """The model is compiled as part of that function."""
    torch._dynamo.reset()
    model = Net()

    forward = torch.compile(lambda x: model(x) * 2, backend="eager", fullgraph=True)
    assert {} == measured(lambda: forward(torch.ones(1, 2)), model)
