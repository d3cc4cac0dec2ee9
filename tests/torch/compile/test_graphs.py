"""torch.compile captures the graphs that it captures without monitel, and reports itself: ranges, events, activity."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from tests.support.checks import ledger
from tests.support.scripts import Run
from tests.torch.known_work import Work, activity, captured, logged_cycles, noting, total
from torch import distributed

import monitel
import monitel.torch
from monitel.profiler import ranges, record_function

_DEADLINE = 60

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def trained(part: str, work: Work) -> tuple[list[list[str]], list[Any]]:
    """Train four steps, of which a part is compiled, with batches of 1 s; return all graphs and the parameters."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    graphs: list[list[str]] = []
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)

    def compiled(function: Any, **options: Any) -> Any:
        return torch.compile(function, backend=noting(graphs), **options)

    def train(batch: Any) -> None:
        model(batch).sum().backward()
        if part != "whole step":
            work.takes(16)
        step()

    model = compiled(plain, fullgraph=True) if part == "model" else plain
    step = compiled(optimizer.step) if part == "optimizer" else optimizer.step
    train_compiled = compiled(train) if part == "whole step" else train
    for batch in monitel.torch.batches([torch.ones(3, 2)] * 4):
        work.takes(1)
        train_compiled(batch)
        optimizer.zero_grad()
        work.takes(32)
    return graphs, [each.tolist() for each in plain.parameters()]


@pytest.mark.parametrize("part", ["model", "optimizer", "whole step"])
def test_training_has_the_same_graphs_parameters_and_stages(part: str, work: Work) -> None:
    """The boundaries that are not compiled have their stages. Steps are counted, and no compilation fails."""
    expected = trained(part, work)
    with monitel.testing.capture_events() as events, monitel.torch.instrument(window_size=0.001):
        found = trained(part, work)
        assert 4 == monitel.get_step()
    assert expected == found
    assert expected[0]
    if part != "whole step":
        assert [{"optimizer": 16, "other": 32, "forward": 1}] * 3 == logged_cycles(events)
    assert {monitel.Severity.INFO} == {each.severity for each in events if each.name == "torch.compile"}
    assert expected == trained(part, work)  # with hooks that the compiler has seen


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
    y = x + 1
    y = y * 2
    return y.sin()


@record_function("decorated")
@STAT.time()
@monitel.activity("decorated")
def measured(x: Any) -> Any:
    with WAITS.guard(), STAT.time(), record_function("outer"), monitel.activity("inside"):
        y = x + 1
        with record_function("inner", "details"):
            y = y * 2
    return y.sin()


def recorded() -> tuple[int, int, list[str], set[str]]:
    """Return the numbers of samples and waits, the ranges except compilations, and the activities so far."""
    names = [each.name for each in BEGAN if each.name != "torch.compile"]
    waits = monitel.wait_counters().get(WAITS.key)
    return STAT.count, waits.count if waits else 0, names, {"inside", "decorated"} & {*ledger().activities}


@pytest.mark.usefixtures("instrumented")
def test_guards_timers_ranges_and_activities_do_nothing_in_compiled_code() -> None:
    """One graph with the operations of the plain function. A call that is not compiled is recorded."""
    monitel.set_step(1)
    with ranges.listen(began=BEGAN.append):
        graphs = captured(plain, [torch.ones(3)] * 2, fullgraph=True)
        assert graphs == captured(measured, [torch.ones(3)] * 2, fullgraph=True)
        assert (0, 0, [], set()) == recorded()
        assert plain(torch.ones(3)).tolist() == measured(torch.ones(3)).tolist()
        assert (2, 1, ["decorated", "outer", "inner"], {"inside", "decorated"}) == recorded()
    assert [3] == [len(ops) for ops in graphs[0]]


STEP = """\
import monitel.torch
import torch

monitel.torch.instrument(sources="tensors")
stat = monitel.Stat("compiled", [monitel.SUM], float("inf"), 4)

@torch.compile(backend="eager")
def step(x):
    stat.add(0.5)
    stat.add(x.sum())
    return x.sin()

def handler(event):
    torch._dynamo.graph_break()  # an error if it were compiled
    print(event.data)

monitel.register_event_handler(handler)
for number in range(2):
    step(torch.full((3,), float(number)))
"""


@pytest.mark.parametrize("without_extensions", ["0", "1"])
def test_each_call_of_compiled_code_adds(run: Run, without_extensions: str) -> None:
    """The handler of the window that a sample closes is not compiled. The compiler would trace a window in Python."""
    ended = run("-c", STEP, env={"MONITEL_NO_EXTENSIONS": without_extensions})
    assert ("{'compiled.sum': 4.0}\n", "") == (ended.stdout, ended.stderr)


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
@pytest.mark.usefixtures("group")
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
