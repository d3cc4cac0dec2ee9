"""torch.compile: guards, timers and ranges do not change the captured graph, and record nothing while tracing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel.profiler import ranges, record_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Step = Callable[[Any], Any]

torch: Any = pytest.importorskip("torch", reason="compiles with torch.compile: torch is not installed")

pytestmark = pytest.mark.torch

STAT = monitel.Stat("test_compile.seconds", [monitel.COUNT], float("inf"))
COUNTER = monitel.WaitCounter("test_compile.waits")


def plain(x: Any) -> Any:
    """Compute without telemetry."""
    y = x + 1
    y = y * 2
    return y.sin()


def guarded(x: Any) -> Any:
    """Compute within the guard of a wait counter."""
    with COUNTER.guard():
        y = x + 1
        y = y * 2
    return y.sin()


def timed(x: Any) -> Any:
    """Compute within the timer of a Stat."""
    with STAT.time():
        y = x + 1
        y = y * 2
    return y.sin()


@STAT.time()
def decorated(x: Any) -> Any:
    """Compute in a timed function."""
    y = x + 1
    y = y * 2
    return y.sin()


def ranged(x: Any) -> Any:
    """Compute within ranges."""
    with record_function("outer"):
        y = x + 1
        with record_function("inner", "details"):
            y = y * 2
    return y.sin()


@record_function("decorated")
def range_decorated(x: Any) -> Any:
    """Compute in a function decorated with a range."""
    y = x + 1
    y = y * 2
    return y.sin()


def nested(x: Any) -> Any:
    """Compute within a timer, a guard and a range, in a timed function."""
    with STAT.time(), COUNTER.guard(), record_function("nested"):
        return decorated(x)


#: Each step, and the numbers of samples, waits and ranges of one eager call.
STEPS: dict[str, tuple[Step, tuple[int, int, int]]] = {
    "plain": (plain, (0, 0, 0)),
    "guard": (guarded, (0, 1, 0)),
    "timer": (timed, (1, 0, 0)),
    "decorator": (decorated, (1, 0, 0)),
    "ranges": (ranged, (0, 0, 2)),
    "range decorator": (range_decorated, (0, 0, 1)),
    "nested": (nested, (2, 1, 1)),
}
BEGAN: list[ranges.Range] = []


@pytest.fixture(autouse=True)
def _recompile() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def _listening() -> Iterator[None]:
    with ranges.listen(began=BEGAN.append):
        yield


def recorded() -> tuple[int, int, int]:
    """Return the numbers of samples, waits and ranges so far."""
    reading = monitel.wait_counters()[COUNTER.key]
    assert 0 == reading.active
    return STAT.count, reading.count, len(BEGAN)


def captured(step: Step, *, fullgraph: bool) -> tuple[list[list[str]], Any]:
    """Return the ops of each graph that torch.compile captures, and the results of two compiled calls."""
    graphs: list[list[str]] = []

    def backend(module: Any, _inputs: Any) -> Any:
        graphs.append([str(node.target) for node in module.graph.nodes if node.op.startswith("call_")])
        return module.forward

    compiled = torch.compile(step, backend=backend, fullgraph=fullgraph)
    return graphs, [compiled(torch.ones(3)).tolist() for _ in range(2)]


@pytest.mark.usefixtures("_listening")
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("step", [step for step, _ in STEPS.values()], ids=STEPS)
def test_telemetry_does_not_change_the_graph(step: Step, fullgraph: bool) -> None:
    """A step with telemetry is captured as one graph, with the ops of the plain step."""
    before = recorded()
    graphs, results = captured(plain, fullgraph=fullgraph)
    assert [3] == [len(ops) for ops in graphs]
    assert (graphs, results) == captured(step, fullgraph=fullgraph)
    assert before == recorded()


@pytest.mark.usefixtures("_listening")
@pytest.mark.parametrize(("step", "once"), STEPS.values(), ids=STEPS)
def test_eager_calls_are_recorded(step: Step, once: tuple[int, int, int]) -> None:
    """A step that runs eagerly, before and after compilation, records each call."""
    before = recorded()
    expected = plain(torch.ones(3)).tolist()
    for calls in (1, 2):
        assert expected == step(torch.ones(3)).tolist()
        assert tuple(was + calls * more for was, more in zip(before, once, strict=True)) == recorded()
        captured(step, fullgraph=True)


def test_listeners_do_not_recompile() -> None:
    """Adding or removing a listener of ranges does not recompile compiled code."""
    graphs: list[Any] = []

    def backend(module: Any, _inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    compiled = torch.compile(ranged, backend=backend, fullgraph=True)
    for listener in (None, BEGAN.append, None):
        with ranges.listen(began=listener):
            ranged(torch.ones(3))  # eagerly, so that the labels have been used
            compiled(torch.ones(3))
        compiled(torch.ones(3))
    assert 1 == len(graphs)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_context_manager_without_the_check_breaks_the_graph() -> None:
    """A context manager that reads a clock without the check breaks the graph, so the other tests are meaningful."""

    class Clocked:
        """A timer without the check for torch.compile."""

        def __enter__(self) -> None:
            monitel.clock.monotonic_ns()

        def __exit__(self, *_exception: object) -> None:
            """Do nothing."""

    def step(x: Any) -> Any:
        with Clocked():
            y = x + 1
        return y.sin()

    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        captured(step, fullgraph=True)
