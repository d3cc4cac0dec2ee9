"""torch.compile captures the graphs that it captures without monitel, and reports itself: ranges, events, activity."""

import threading
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
from monitel.profiler import profile, ranges, record_function
from monitel.testing import ManualClock

Step = Callable[[Any], Any]
_DEADLINE = 60

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


def compilations(events: list[monitel.Event]) -> list[monitel.Event]:
    monitel.flush()
    return [event for event in events if event.name.startswith("torch.") and event.window is None]


@pytest.mark.usefixtures("instrumented")
def test_compilation_is_a_range(events: list[monitel.Event]) -> None:
    """In the compiling thread, within the current range, and in profiles."""
    compiled = torch.compile(plain, backend="eager", fullgraph=True, dynamic=False)
    with profile() as prof:
        with record_function("step"):
            compiled(torch.ones(2))
            compiled(torch.ones(2))
        compiled(torch.ones(3))
    found = [event for event in prof.events() if event.name == "torch.compile"]
    assert ["step", None] == [None if each.cpu_parent is None else each.cpu_parent.name for each in found]
    assert all(0 < each.time_range.elapsed_us() < 100e6 for each in found)
    started = [event for event in compilations(events) if event.name == "torch.compile.started"]
    assert ["dynamo", "dynamo"] == [event.data["compile.trigger"] for event in started]


@pytest.mark.usefixtures("instrumented")
def test_hanging_compilation_is_reported(monkeypatch: pytest.MonkeyPatch, events: list[monitel.Event]) -> None:
    """The start event, with rank and step, is logged while the compilation runs. Its range has not ended."""
    monkeypatch.setenv("RANK", "2")
    monitel.set_step(7)
    hangs, resume = threading.Event(), threading.Event()
    began: list[ranges.Range] = []

    def backend(module: Any, _inputs: Any) -> Any:
        hangs.set()
        resume.wait(_DEADLINE)
        return module.forward

    thread = threading.Thread(target=lambda: torch.compile(plain, backend=backend)(torch.ones(2)))
    with ranges.listen(began=began.append):
        thread.start()
        assert hangs.wait(_DEADLINE)
        monitel.set_step(8)
        (event,) = compilations(events)
        (range_,) = began
        assert ("torch.compile", None) == (range_.name, range_.end_ns)
        assert "step" == activity()  # the training thread does something else
        resume.set()
        thread.join(_DEADLINE)
    assert ("torch.compile.started", 2, 7) == (*(event.name, event.data["training.rank"], event.data["training.step"]),)
    assert event.data["compile.id"] == range_.args["compile.id"]
    assert range_.end_ns is not None
    assert ["torch.compile.started", "torch.compile"] == [event.name for event in compilations(events)]


@pytest.mark.usefixtures("instrumented")
def test_failed_compilation_is_an_error(events: list[monitel.Event]) -> None:
    """The exception is torch's, the event has its message, and range and activity end."""
    began: list[ranges.Range] = []

    def broken(_module: Any, _inputs: Any) -> Any:
        assert "compile" == activity()
        raise ValueError("no such backend")

    with ranges.listen(began=began.append), pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(plain, backend=broken)(torch.ones(2))
    assert "startup" == activity()
    assert [True] == [each.end_ns is not None for each in began]
    _, ended = compilations(events)
    assert ("torch.compile", monitel.Severity.ERROR) == (ended.name, ended.severity)
    assert "no such backend" in str(ended.data["compile.failure.reason"])
