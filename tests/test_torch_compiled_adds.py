"""Stat.add in compiled code: the graph is the same as without it, and each call of that code adds its samples."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel.profiler import record_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunScript

    Step = Callable[[Any], Any]

torch: Any = pytest.importorskip("torch", reason="compiles with torch.compile: torch is not installed")

import monitel.torch  # noqa: E402  after the check that torch is there
from monitel.torch import compiled_adds  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),  # of torch, in torch
]

STAT = monitel.Stat("test_compiled_adds", [monitel.SUM, monitel.COUNT], float("inf"))
SECONDS = monitel.Stat("test_compiled_adds.seconds", [monitel.COUNT], float("inf"))
WAITS = monitel.WaitCounter("test_compiled_adds.waits")
ADD = STAT.add


class Special(monitel.Stat):
    """A subclass that has the method from Stat."""

    __slots__ = ()


SPECIAL = Special("test_compiled_adds.special", [monitel.COUNT], float("inf"))


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    torch._dynamo.reset()
    monitel.flush()
    yield
    torch._dynamo.reset()
    monitel.flush()


@pytest.fixture
def _instrumented() -> Iterator[None]:
    with monitel.torch.instrument(window_size=float("inf")) as running:
        assert "compiled_adds" in running.sources
        yield


def of_tensor(x: Any, add: Callable[[Any], None]) -> Any:
    """Add a tensor that the graph computes."""
    total = x.sum()
    add(total)
    return x + total


def of_float(x: Any, add: Callable[[Any], None]) -> Any:
    """Add a number that is known when it is compiled."""
    add(0.5)
    return x.sin()


def of_size(x: Any, add: Callable[[Any], None]) -> Any:
    """Add a number that is known from a shape."""
    add(x.shape[0])
    return x.sin()


def in_a_loop(x: Any, add: Callable[[Any], None]) -> Any:
    """Add several, from a function that is called."""

    def note_it(value: Any) -> None:
        add(value)

    for _ in range(3):
        x = x * 2
        note_it(x.max())
    return x


def beside_all(x: Any, add: Callable[..., None]) -> Any:
    """Add within a range, a guard and a timer."""
    with record_function("step"), WAITS.guard(), SECONDS.time():
        total = x.sum()
        add(v=total)
    return x + total


def nothing(*_value: Any, v: Any = None) -> None:
    """Be in the place of add()."""


def note(value: Any) -> None:
    """Add from a function of its own."""
    STAT.add(v=value)


def captured(step: Step, *, calls: int = 2, fullgraph: bool = True, **options: Any) -> tuple[list[list[str]], Any]:
    """Give the ops of each graph that torch.compile captures, and what the calls return."""
    graphs: list[list[str]] = []

    def backend(module: Any, _inputs: Any) -> Any:
        graphs.append([str(node.target) for node in module.graph.nodes if node.op.startswith("call_")])
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(step, backend=backend, fullgraph=fullgraph, **options)
    return graphs, [compiled(torch.full((3,), number + 1.0)).tolist() for number in range(calls)]


def added() -> tuple[int, float]:
    """Give the number of samples since the last time, and their sum."""
    count = STAT.count
    STAT.flush()
    return count, STAT.get()[monitel.SUM] if count else 0.0


@pytest.mark.usefixtures("_instrumented")
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (of_tensor, (2, 3.0 + 6.0)),
        (of_float, (2, 0.5 + 0.5)),
        (of_size, (2, 3.0 + 3.0)),
        (in_a_loop, (6, 2.0 + 4.0 + 8.0 + 4.0 + 8.0 + 16.0)),
        (beside_all, (2, 3.0 + 6.0)),
    ],
)
def test_captures_the_same_ops_and_adds_at_each_call(
    step: Callable[..., Any], expected: tuple[int, float], fullgraph: bool
) -> None:
    """With the values of that call, as the plain function does."""
    before = captured(lambda x: step(x, nothing), fullgraph=fullgraph)
    assert 1 == len(before[0])
    assert (0, 0.0) == added()
    assert before == captured(lambda x: step(x, STAT.add), fullgraph=fullgraph)
    assert expected == added()
    for number in (1.0, 2.0):
        step(torch.full((3,), number), STAT.add)
    assert expected == added()


@pytest.mark.usefixtures("_instrumented")
def test_however_it_is_reached() -> None:
    """As a method of a global, of a module's attribute, in a dict; as a bound method; of a subclass."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stats = {"loss": STAT}

        def forward(self, x: Any) -> Any:
            self.stats["loss"].add(x.sum())
            return x.sin()

    model = torch.nn.Sequential(Model(), Model())

    def step(x: Any) -> Any:
        STAT.add(1)
        ADD(2.0)
        note(x.max())
        SPECIAL.add(x.sum())
        return model(x)

    graphs, _ = captured(step, calls=1)
    assert [["max", "sum", "sum", "sin", "sum", "sin"]] == graphs
    assert 1 + 1 + 1 + 2 == STAT.count
    assert 1 == SPECIAL.count


@pytest.mark.usefixtures("_instrumented")
def test_a_graph_break_in_between() -> None:
    """Each part of the function adds what is in it; also where it breaks in what is to be added."""

    def broken(x: Any) -> Any:
        STAT.add(x.mean())
        torch._dynamo.graph_break()
        return x.max()

    def step(x: Any) -> Any:
        STAT.add(x.sum())
        torch._dynamo.graph_break()
        STAT.add(broken(x))
        return x.sin()

    captured(step, calls=1, fullgraph=False)
    assert (3, 3.0 + 1.0 + 1.0) == added()


@pytest.mark.usefixtures("_instrumented")
def test_of_any_size_without_compiling_anew() -> None:
    """Neither a size that changes nor what was added before is a reason to."""
    graphs: list[Any] = []

    def backend(module: Any, _inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    def step(x: Any) -> Any:
        STAT.add(x.shape[0])
        STAT.add(x.sum())
        return x.sin()

    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=True)
    for size in (3, 4, 5):
        compiled(torch.ones(size))
    assert (6, 2.0 * (3 + 4 + 5)) == added()
    assert 1 == len(graphs)


@pytest.mark.usefixtures("_instrumented")
def test_training_gives_the_same_gradients() -> None:
    """By torch's own compiler, the loss added that backward starts from, and another number of the graph."""

    def gradients(add: Callable[[Any], None]) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)

        def step(x: Any) -> Any:
            y = model(x)
            loss = y.square().sum()
            add(loss)
            add(y.sum())
            return loss

        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        for _ in range(2):
            compiled(torch.ones(2, 3)).backward()
        return [parameter.grad.tolist() for parameter in model.parameters()]

    assert gradients(nothing) == gradients(STAT.add)
    assert 4 == STAT.count


@pytest.mark.usefixtures("_instrumented")
def test_what_adding_runs_is_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """A handler, of the window that the sample closes, neither traced nor warned about; what it raises comes out."""
    heard: list[float] = []
    full = monitel.Stat("test_compiled_adds.full", [monitel.SUM], float("inf"), 1)

    def handler(event: monitel.Event) -> None:
        torch._dynamo.graph_break()  # an error where it is compiled as one graph, which runs otherwise
        heard.append(float(event.data["test_compiled_adds.full.sum"]))
        raise OSError("no route")

    def step(x: Any) -> Any:
        full.add(x.sum())
        return x.sin()

    compiled = torch.compile(step, backend="eager")
    with monitel.register_event_handler(handler), pytest.raises(OSError, match="no route"):
        compiled(torch.ones(3))
    assert [3.0] == heard
    assert [] == [record for record in caplog.records if "torch._dynamo" in record.name]


@pytest.mark.usefixtures("_instrumented")
def test_misuse_raises_when_it_runs() -> None:
    """As it does without the compiler."""

    def step(x: Any) -> Any:
        STAT.add(x)
        return x.sin()

    with pytest.raises(TypeError, match="add"):
        torch.compile(step, backend="eager", fullgraph=True)(torch.ones(3))
    assert 0 == STAT.count


@pytest.mark.usefixtures("_instrumented")
def test_in_the_body_of_an_operation_nothing_is_added(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint is a graph of its own, whose values nobody sees; the graph is the same, and it is said once."""
    monkeypatch.setattr(compiled_adds, "_said", False)

    def step(x: Any, add: Callable[[Any], None]) -> Any:
        def body(x: Any) -> Any:
            y = x.sin()
            add(y.sum())
            return y

        return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)

    with caplog.at_level(logging.WARNING, "monitel.torch"):
        before = captured(lambda x: step(x, nothing))
        assert before == captured(lambda x: step(x, STAT.add))
        assert before == captured(lambda x: step(x, STAT.add))
    assert 0 == STAT.count
    assert ["a Stat.add() in compiled code adds nothing: it is in the body of an operation, such as a checkpoint"] == [
        record.getMessage() for record in caplog.records if record.name == "monitel.torch"
    ]


@pytest.mark.usefixtures("_instrumented")
def test_a_compiler_that_has_changed_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is added then; the job runs, in one graph."""
    monkeypatch.setattr(compiled_adds, "_said", False)

    def changed(*_arguments: Any) -> bool:
        raise AttributeError("no such name")

    monkeypatch.setattr(compiled_adds, "call_after_graph", changed)
    before = captured(lambda x: of_tensor(x, nothing))
    assert before == captured(lambda x: of_tensor(x, STAT.add))
    assert 0 == STAT.count
    assert "adds nothing: this torch does not do what it takes" in caplog.text


def test_what_is_exported_holds_no_samples() -> None:
    """torch.export gives the same graph, and adds nothing."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, add: Callable[[Any], None]) -> None:
            super().__init__()
            self.add = add

        def forward(self, x: Any) -> Any:
            return of_tensor(x, self.add)

    with monitel.torch.instrument():
        texts = [str(torch.export.export(Model(add), (torch.ones(3),), strict=True).graph) for add in (nothing, ADD)]
    assert texts[0] == texts[1]
    assert 0 == STAT.count


def test_once_it_is_switched_off() -> None:
    """What is compiled goes on adding; what is compiled from then on breaks the graph, as it did before."""

    def step(x: Any) -> Any:
        STAT.add(x.sum())
        return x.sin()

    with monitel.torch.instrument():
        compiled = torch.compile(step, backend="eager", fullgraph=True)
        compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert 2 == STAT.count
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"is of monitel.torch.instrument\(\)"):
        torch.compile(step, backend="eager", fullgraph=True)(torch.ones(3))
    torch._dynamo.reset()
    torch.compile(step, backend="eager")(torch.ones(3))
    assert 3 == STAT.count


BEFORE_THE_COMPILER = """
import importlib.util
import monitel.torch
monitel.torch.instrument()
say(importlib.util.find_spec("torch._dynamo") is None, "torch._dynamo" in sys.modules)

import monitel.testing
import torch

stat = Stat("x", [SUM], float("inf"))
waits = monitel.WaitCounter("waits")

def step(x):
    with stat.time(), waits.guard():
        y = x.sum()
        stat.add(y)
    return x + y

graphs = []

def backend(module, inputs):
    graphs.append([str(node.target) for node in module.graph.nodes if node.op.startswith("call_")])
    return module.forward

before = stat.add
compiled = torch.compile(step, backend=backend, fullgraph=True)
with monitel.testing.capture_events() as events:
    for number in range(3):
        compiled(torch.full((2,), 1.0 + number))
    stat.flush()
    say(graphs, stat.get()[SUM], stat.add == before)
    monitel.torch.instrument().uninstrument()
say([event.name for event in events if event.name == "torch.compile.started"])
say([each for each in sys.meta_path if "monitel" in type(each).__module__])
"""


def test_the_compiler_is_taught_when_it_is_loaded(run_script: RunScript) -> None:
    """Which neither instrument() nor whoever looks for it does; over the C window and the Python one."""
    ended = run_script(BEFORE_THE_COMPILER)
    graphs = "[['sum', '<built-in function add>']] 12.0 True"
    assert ["False False", graphs, "['torch.compile.started']", "[]"] == ended.lines


WHEN_TEACHING_FAILS = """
import monitel.torch
import torch
import torch._dynamo
from monitel.torch import _compat, compiled_adds

def fail(*_arguments):
    raise _compat.Missing("no such name")

compiled_adds.trace_instead = fail
with monitel.torch.instrument() as running:
    say(running.missing)
compiled_adds.trace_instead = _compat.trace_instead
stat = Stat("x", [COUNT], float("inf"))

def step(x):
    stat.add(x.sum())
    return x.sin()

with monitel.torch.instrument() as running:
    say(running.missing)
    torch.compile(step, backend="eager", fullgraph=True)(torch.ones(3))
say(stat.count)
"""


def test_teaching_that_has_failed_is_tried_again(run_script: RunScript) -> None:
    """By the next instrument(), which would else say that it works."""
    assert ["{'compiled_adds': 'no such name'}", "{}", "1"] == run_script(WHEN_TEACHING_FAILS).lines


def test_add_itself_is_untouched() -> None:
    """What the class has is what it had: the C method, or the plain function."""
    script = (
        "import monitel, sys\nbefore = monitel.Stat.add\nimport monitel.torch\n"
        "with monitel.torch.instrument():\n    import torch._dynamo\n    print(monitel.Stat.add is before)\n"
    )
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=120)
    assert b"True\n" == found.stdout
