"""torch.compile captures the graphs that it captures without monitel; steps, stages and results are the same."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from tests.torch.known_work import Work, activity, captured, ledger, logged_cycles, noting, total
from torch import distributed

import monitel
import monitel.torch
from monitel.profiler import ranges, record_function
from monitel.testing import ManualClock

Step = Callable[[Any], Any]

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Training:
    """A model and an optimizer, of which parts are compiled."""

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
        return torch.compile(function, backend=noting(self.graphs), **options)

    def compile(self, part: str) -> None:
        if part == "model":
            self.model = self.compiled(self.model, fullgraph=True)
        elif part == "optimizer":
            self.step = self.compiled(self.optimizer.step)
        else:
            backward, step = self.backward, self.step

            def both(x: Any) -> None:
                backward(x)
                step()

            self.backward, self.step = self.compiled(both), lambda: None

    def run(self) -> None:
        """Train four steps with batches of 1 s, and 32 s of other work."""
        for batch in monitel.torch.batches([torch.ones(3, 2)] * 4):
            self.takes(1)
            self.backward(batch)
            self.takes(16)
            self.step()
            self.optimizer.zero_grad()
            self.takes(32)


@pytest.mark.parametrize("part", ["model", "optimizer", "whole step"])
def test_training_has_the_same_graphs_parameters_and_stages(part: str, work: Work, clock: ManualClock) -> None:
    """The boundaries that are not compiled have their stages. Steps are counted in any case."""

    def trained() -> tuple[list[list[str]], list[Any]]:
        torch._dynamo.reset()
        training = Training(work)
        training.compile(part)
        training.run()
        return training.graphs, [each.tolist() for each in training.parameters]

    expected = trained()
    assert clock.monotonic_ns() > 0
    with monitel.testing.capture_events() as events, monitel.torch.instrument(window_size=0.001):
        found = trained()
        assert 4 == monitel.get_step()
    assert expected == found
    assert expected[0]
    if part != "whole step":
        assert [{"optimizer": 16, "other": 32, "forward": 1}] * 3 == logged_cycles(events)
    assert expected == trained()  # with hooks that the compiler has seen


@pytest.mark.parametrize("option", ["steps", "stages"])
def test_hooks_are_not_compiled(option: str, events: list[monitel.Event]) -> None:
    """The compiler skips torch's wrapper of step(), which calls them. No warning, and no failed compilation."""
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    with monitel.torch.instrument(sources=(option, "compilation")), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.compile(optimizer.step, backend="eager")()
    compiled = [(each.data["compile.function"], each.severity) for each in events if each.name == "torch.compile"]
    assert [("step", monitel.Severity.INFO)] == compiled
    assert [] == [each for each in caught if "how to trace" in str(each.message)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # of the compiler
def test_compiled_step_with_gradient_scaling() -> None:
    """Applied and skipped steps are counted, and change parameters as without the compiler."""

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
    assert (2, 2) == (total("steps"), total("steps.skipped"))
    assert [1.0, 0.5, 0.5, -0.5] == found == train(lambda step: step)


STAT = monitel.Stat("test_graphs.seconds", [monitel.COUNT], float("inf"))
WAITS = monitel.WaitCounter("test_graphs.waits")
BEGAN: list[ranges.Range] = []


def plain(x: Any) -> Any:
    """Compute without telemetry."""
    y = x + 1
    y = y * 2
    return y.sin()


def guarded(x: Any) -> Any:
    """Compute within the guard of a wait counter and the timer of a Stat."""
    with WAITS.guard(), STAT.time():
        y = x + 1
        y = y * 2
    return y.sin()


def ranged(x: Any) -> Any:
    with record_function("outer"):
        y = x + 1
        with record_function("inner", "details"):
            y = y * 2
    return y.sin()


@record_function("decorated")
@STAT.time()
def decorated(x: Any) -> Any:
    y = x + 1
    y = y * 2
    return y.sin()


def recorded() -> tuple[int, int, int]:
    """Return the numbers of samples, waits and ranges so far."""
    with WAITS.guard():
        pass
    return STAT.count, monitel.wait_counters()[WAITS.key].count - 1, len(BEGAN)


@pytest.mark.parametrize(("step", "once"), [(guarded, (1, 1, 0)), (ranged, (0, 0, 2)), (decorated, (1, 0, 1))])
def test_guards_timers_and_ranges_do_nothing_in_compiled_code(step: Step, once: tuple[int, int, int]) -> None:
    """One graph with the operations of the plain function. Calls that are not compiled are recorded."""
    with ranges.listen(began=BEGAN.append):
        graphs = captured(plain, [torch.ones(3)] * 2, fullgraph=True)
        before = recorded()
        assert graphs == captured(step, [torch.ones(3)] * 2, fullgraph=True)
        assert (before[0], before[1] + 1, before[2]) == (found := recorded())
        assert plain(torch.ones(3)).tolist() == step(torch.ones(3)).tolist()
        assert (found[0] + once[0], found[1] + 1 + once[1], found[2] + once[2]) == recorded()
    assert [3] == [len(ops) for ops in graphs[0]]


def test_activities_have_no_effect_in_compiled_code() -> None:
    """A function with an activity, or decorated with one, is one graph, and runs as without."""
    monitel.set_step(1)

    @monitel.activity("decorated")
    def inner(x: Any) -> Any:
        return x * 2

    def outer(x: Any) -> Any:
        with monitel.activity("inside"):
            return inner(x) + 1

    function = torch.compile(outer, fullgraph=True, backend="eager")
    with monitel.activity("around"):
        assert [3.0, 5.0] == function(torch.tensor([1.0, 2.0])).tolist()
        assert "around" == activity()
    book = ledger()
    assert not {"inside", "decorated"} & {*book.activities}


@pytest.fixture
def _group() -> Iterator[None]:
    """Provide a process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def in_place(tensor: Any) -> Any:
    distributed.all_reduce(tensor)
    return tensor * 2


def by_function(tensor: Any) -> Any:
    return functional.all_reduce(tensor * 2, "sum", distributed.group.WORLD) + 1


def awaited(tensor: Any) -> Any:
    work = distributed.all_reduce(tensor, async_op=True)
    tensor = tensor * 2
    work.wait()
    return tensor + 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_group")
def test_compiled_collectives_have_the_same_graphs() -> None:
    """In one graph where torch can."""

    def graphs() -> list[Any]:
        found: list[Any] = []
        for function in (in_place, by_function, awaited):
            for fullgraph in (False, True):
                try:
                    found.append(captured(function, [torch.ones(2), torch.ones(2)], fullgraph=fullgraph)[0])
                except torch._dynamo.exc.TorchDynamoException as error:
                    found.append(type(error))
        return found

    expected = graphs()
    with monitel.torch.instrument():
        assert expected == graphs()
    assert isinstance(expected[3], list), "the functional collective is one graph"
