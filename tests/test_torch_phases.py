"""Phases of a torch job where others do not write the loop: closures, checkpoints, evaluation, copies, the compiler."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel.testing import ManualClock

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check that torch is there

pytestmark = pytest.mark.torch


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Give a clock that moves only by advance()."""
    with monitel.testing.ManualClock() as clock:
        yield clock
    monitel._window.set_step(None)


class Net(torch.nn.Module):  # type: ignore[misc]
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.second = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run both."""
        return self.second(self.first(x))


def seen(action: Callable[[], object], model: Any = None) -> dict[str, tuple[int, float]]:
    """Run it instrumented; give counts and sums of the phases."""
    with monitel.testing.capture_events() as events:
        with monitel.torch.instrument(phases=True, model=model, window_size=float("inf")):
            action()
        return {
            event.window.name.split(".")[1]: (event.window.count, event.window.sum) for event in events if event.window
        }


@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.LBFGS])
def test_a_closure_is_no_time_of_the_optimizer(clock: ManualClock, kind: Any, keyword: bool) -> None:
    """It is forward and backward, which have Stats of their own; what it gives comes out of step()."""
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

    assert (1, 0.0) == seen(train)["optimizer"]
    assert isinstance(losses[0], torch.Tensor)


def test_a_closure_given_on_to_another_step_is_timed_once(clock: ManualClock) -> None:
    """As by an optimizer that wraps another one, and takes time too."""
    parameter = torch.nn.Parameter(torch.ones(1))
    inner = torch.optim.SGD([parameter], lr=0.1)

    class Outer(torch.optim.Optimizer):  # type: ignore[misc]
        """Calls the other one."""

        def step(self, closure: Any = None) -> Any:
            clock.advance(100)
            return inner.step(closure)

    outer = Outer([parameter], {})
    assert (1, 0.0) == seen(lambda: outer.step(lambda: clock.advance(5)))["optimizer"]


def test_an_argument_that_is_no_closure_arrives(clock: ManualClock) -> None:
    """Step() of one's own class may take anything."""
    given: list[Any] = []

    class Mine(torch.optim.Optimizer):  # type: ignore[misc]
        """Takes a number."""

        def step(self, number: Any = None, closure: Any = None) -> Any:
            given.append((number, closure))

    mine = Mine([torch.nn.Parameter(torch.ones(1))], {})
    found = seen(lambda: [mine.step(7), mine.step(closure=None), mine.step(None)])
    assert ([(7, None), (None, None), (None, None)], 3) == (given, found["optimizer"][0])


@pytest.mark.usefixtures("clock")
def test_a_backward_within_a_backward_is_part_of_it() -> None:
    """A reentrant checkpoint runs its own."""

    class Again(torch.autograd.Function):  # type: ignore[misc]
        """Runs another backward in its own, as such a checkpoint does."""

        @staticmethod
        def forward(_context: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(_context: Any, gradient: Any) -> Any:
            with torch.enable_grad():
                torch.ones(1, requires_grad=True).sum().backward()
            return gradient

    assert 1 == seen(lambda: Again.apply(torch.ones(1, requires_grad=True)).sum().backward())["backward"][0]


@pytest.mark.usefixtures("clock")
def test_backward_in_several_threads() -> None:
    """Each is one."""
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

    assert 2 == seen(both)["backward"][0]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_forward_without_gradients_is_none_of_training(mode: Any) -> None:
    """So evaluation between two steps leaves the mean of training's forward alone."""
    model = Net()

    def train_and_evaluate() -> None:
        model(torch.ones(1, 2))
        with mode():
            model(torch.ones(1, 2))

    assert 1 == seen(train_and_evaluate, model)["forward"][0]


@pytest.mark.usefixtures("clock")
def test_another_model_of_the_class_is_not_timed() -> None:
    """Such as a copy with averaged weights."""
    model = Net()
    average = torch.optim.swa_utils.AveragedModel(model)
    found = seen(lambda: [model(torch.ones(1, 2)), average(torch.ones(1, 2)), Net()(torch.ones(1, 2))], model)
    assert 1 == found["forward"][0]


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),  # as torch.save(model), and a process that is spawned
        lambda model: torch.optim.swa_utils.AveragedModel(model).module,
    ],
)
def test_a_timed_model_can_be_copied_and_pickled(copied: Callable[[Any], Any]) -> None:
    """And there is nothing of ours in it."""
    model = Net()
    with monitel.torch.instrument(phases=True, model=model):
        model(torch.ones(1, 2))
        assert b"monitel" not in pickle.dumps(model.__dict__)
        assert torch.equal(model(torch.ones(1, 2)), copied(model)(torch.ones(1, 2)))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_timed_model_can_be_scripted_and_exported() -> None:
    """TorchScript would compile hooks that it finds in the model."""
    model, x = Net(), torch.ones(1, 2)
    with monitel.torch.instrument(phases=True, model=model):
        assert torch.equal(model(x), torch.jit.script(model)(x))
        assert torch.equal(model(x), torch.export.export(model, (x,)).module()(x))


def test_the_models_class_is_left_as_it_was() -> None:
    """Also one that has a call of its own; where somebody wraps ours, theirs stays."""

    class Mine(Net):
        """Counts its calls."""

        calls = 0

        def __call__(self, *args: Any) -> Any:
            type(self).calls += 1
            return super().__call__(*args)

    own = vars(Mine)["__call__"]
    model = Mine()
    found = seen(lambda: model(torch.ones(1, 2)), model)
    assert (1, 1, own) == (found["forward"][0], Mine.calls, vars(Mine)["__call__"])
    plain = Net()
    assert 1 == seen(lambda: plain(torch.ones(1, 2)), plain)["forward"][0]
    assert "__call__" not in vars(Net)


def test_who_wraps_the_timed_call_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours beneath it only passes on."""

    class Mine(Net):
        """Of its own, for the wrapper that stays."""

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
def test_a_compiled_optimizer_step_compiles_without_a_failure(phases: bool) -> None:
    """What calls the hooks, torch's wrapper of step(), is nothing to compile."""
    torch._dynamo.reset()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    with monitel.testing.capture_events() as events:
        with monitel.torch.instrument(steps=not phases, phases=phases):
            torch.compile(optimizer.step, backend="eager")()
        compiled = [event for event in events if event.name == "torch.compile"]
    assert [("step", monitel.Severity.INFO)] == [(each.data["compile.function"], each.severity) for each in compiled]


def test_a_model_compiled_later_is_timed_and_its_graph_is_the_same() -> None:
    """The compiler begins with the model's own forward, and is done with the first call."""
    torch._dynamo.reset()
    model, graphs = Net(), []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    def run() -> None:
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        for _ in range(3):
            compiled(torch.ones(1, 2))

    assert 3 == seen(run, model)["forward"][0]
    run()
    assert [[torch._C._nn.linear] * 2] == graphs[:1]
    assert all(graph == graphs[0] for graph in graphs)


def test_a_backward_in_a_function_that_is_compiled() -> None:
    """It breaks the graph, and is timed there as ever."""
    torch._dynamo.reset()
    weight = torch.nn.Parameter(torch.ones(1))
    backward = torch.compile(lambda: (weight * 2).sum().backward(), backend="eager")
    assert 3 == seen(lambda: [backward() for _ in range(3)])["backward"][0]


def test_a_timed_model_in_a_function_that_is_compiled() -> None:
    """It is compiled as part of it, without being timed."""
    torch._dynamo.reset()
    model = Net()

    forward = torch.compile(lambda x: model(x) * 2, backend="eager", fullgraph=True)
    assert {} == seen(lambda: forward(torch.ones(1, 2)), model)
