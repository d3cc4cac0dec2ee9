"""Stat.add in compiled code: the graph is the same as without it, and each call adds its samples."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.support.scripts import Run
from tests.torch.known_work import captured

import monitel
import monitel.torch
from monitel.profiler import record_function

Step = Callable[[Any], Any]

STAT = monitel.Stat("test_compiled_adds", [monitel.SUM, monitel.COUNT], float("inf"))
SECONDS = monitel.Stat("test_compiled_adds.seconds", [monitel.COUNT], float("inf"))
WAITS = monitel.WaitCounter("test_compiled_adds.waits")


@pytest.fixture(autouse=True)
def _no_samples(fresh_compiler: None) -> Iterator[None]:
    monitel.flush()
    yield
    monitel.flush()


def adds_tensor(x: Any, add: Callable[[Any], None]) -> Any:
    total = x.sum()
    add(total)
    return x + total


def adds_constant(x: Any, add: Callable[[Any], None]) -> Any:
    """Add a number that is known at compile time."""
    add(0.5)
    return x.sin()


def adds_in_a_loop(x: Any, add: Callable[[Any], None]) -> Any:
    """Add several numbers, through an inner function."""

    def record(value: Any) -> None:
        add(value)

    for _ in range(3):
        x = x * 2
        record(x.max())
    return x


def adds_in_a_range(x: Any, add: Callable[..., None]) -> Any:
    with record_function("step"), WAITS.guard(), SECONDS.time():
        total = x.sum()
        add(v=total)
    return x + total


def nothing(*_value: Any, v: Any = None) -> None:
    """Stand in for add()."""


def graphs_of(step: Step) -> tuple[list[list[str]], Any]:
    return captured(step, [torch.full((3,), number) for number in (1.0, 2.0)], fullgraph=True)


def added() -> tuple[int, float]:
    """Return the number and the sum of the samples since the last call."""
    count = STAT.count
    STAT.flush()
    return count, STAT.get()[monitel.SUM] if count else 0.0


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (adds_tensor, (2, 3.0 + 6.0)),
        (adds_constant, (2, 0.5 + 0.5)),
        (adds_in_a_loop, (6, 2.0 + 4.0 + 8.0 + 4.0 + 8.0 + 16.0)),
        (adds_in_a_range, (2, 3.0 + 6.0)),
    ],
)
def test_graph_is_the_same_and_each_call_adds(step: Callable[..., Any], expected: tuple[int, float]) -> None:
    """The samples have the values of that call, as those of the uncompiled function."""
    before = graphs_of(lambda x: step(x, nothing))
    assert 1 == len(before[0])
    assert (0, 0.0) == added()
    assert before == graphs_of(lambda x: step(x, STAT.add))
    assert expected == added()
    for number in (1.0, 2.0):
        step(torch.full((3,), number), STAT.add)
    assert expected == added()


@pytest.mark.usefixtures("instrumented")
def test_training_has_the_same_gradients() -> None:
    """The added numbers are the loss from which backward starts, and another number of the graph."""

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


@pytest.mark.usefixtures("instrumented")
def test_handlers_are_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """A handler of the window that a sample closes is not traced. Its exception is raised from the function."""
    received: list[float] = []
    full = monitel.Stat("test_compiled_adds.full", [monitel.SUM], float("inf"), 1)

    def handler(event: monitel.Event) -> None:
        torch._dynamo.graph_break()  # an error if it were compiled
        received.append(float(event.data["test_compiled_adds.full.sum"]))
        raise OSError("no route")

    def step(x: Any) -> Any:
        full.add(x.sum())
        return x.sin()

    compiled = torch.compile(step, backend="eager")
    with monitel.register_event_handler(handler), pytest.raises(OSError, match="no route"):
        compiled(torch.ones(3))
    assert [3.0] == received
    assert [] == [record for record in caplog.records if "torch._dynamo" in record.name]


@pytest.mark.usefixtures("instrumented")
def test_samples_in_the_body_of_an_operation_are_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint is a separate graph, whose values are not accessible. A warning is logged once."""

    def step(x: Any, add: Callable[[Any], None]) -> Any:
        def body(x: Any) -> Any:
            y = x.sin()
            add(y.sum())
            return y

        return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)

    with caplog.at_level(logging.WARNING, "monitel.torch"):
        before = graphs_of(lambda x: step(x, nothing))
        assert before == graphs_of(lambda x: step(x, STAT.add))
        assert before == graphs_of(lambda x: step(x, STAT.add))
    assert 0 == STAT.count
    message = "Stat.add() in compiled code records nothing: it is inside an operation with a separate graph"
    assert [f"{message}, such as a checkpoint"] == [
        record.getMessage() for record in caplog.records if record.name == "monitel.torch"
    ]


def test_after_uninstrument_add_breaks_the_graph_again() -> None:
    """Functions that are compiled already continue to add."""

    def step(x: Any) -> Any:
        STAT.add(x.sum())
        return x.sin()

    with monitel.torch.instrument():
        compiled = torch.compile(step, backend="eager", fullgraph=True)
        compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert 2 == STAT.count
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"requires monitel.torch.instrument\(\)"):
        torch.compile(step, backend="eager", fullgraph=True)(torch.ones(3))
    torch._dynamo.reset()
    torch.compile(step, backend="eager")(torch.ones(3))
    assert 3 == STAT.count


PURE = """\
import monitel.torch
import torch

monitel.torch.instrument(sources="tensors")
stat = monitel.Stat("pure", [monitel.SUM], float("inf"), 4)

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


def test_without_the_c_extension_add_breaks_the_graph(run: Run) -> None:
    """The compiler would trace ``add`` up to its clock, and warn of that."""
    ended = run("-c", PURE, env={"MONITEL_NO_EXTENSIONS": "1"})
    assert ("{'pure.sum': 4.0}\n", "") == (ended.stdout, ended.stderr)
