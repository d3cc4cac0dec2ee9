"""Tensors as samples: those of the CPU, within transforms of torch, and what a device may and may not be asked for."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.support.checks import wait_until
from tests.torch.later_device import Stream, idle, later, on_later

import monitel
import monitel.torch

ALL = list(monitel.Aggregation)
EXPORTED = monitel.Stat("exported", ALL, math.inf)  # the compiler keeps it


class Graph:
    """A stand-in for torch.cuda.CUDAGraph.

    Attributes:
        calls: Calls of the methods.
        fails: Whether they raise.
    """

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fails = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self.calls.append(("begin", pool, capture_error_mode))
        if self.fails:
            raise LookupError

    def capture_end(self) -> None:
        self.calls.append("end")
        if self.fails:
            raise LookupError


@pytest.fixture(autouse=True)
def _instrumented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    with idle(), monitel.torch.instrument(window_size=math.inf):
        yield
        later.answers = True  # so that the end need not wait


def windows(events: list[monitel.Event], name: str) -> list[tuple[int, float]]:
    """Return the counts and sums of the windows of a Stat that are logged."""
    return [(event.window.count, event.window.sum) for event in events if event.window and event.window.name == name]


def flush_until(holds: Callable[[], object]) -> None:
    wait_until(lambda: monitel.flush() or holds())  # type: ignore[func-returns-value]


def arrived(events: list[monitel.Event], number: int = 1) -> list[tuple[int, float]]:
    """Wait until so many windows of the Stat are logged; return their counts and sums."""
    later.answers = True
    flush_until(lambda: len(windows(events, "loss")) >= number)
    return windows(events, "loss")


def test_tensor_of_the_cpu_is_its_item(events: list[monitel.Event]) -> None:
    """Whatever its type, as a parameter, and with a gradient: without torch's warning, and the graph stays usable."""
    stat = monitel.Stat("loss", ALL, math.inf)
    made = [torch.tensor(2), torch.tensor([[0.5]]), torch.tensor(True), torch.tensor(0.25, dtype=torch.bfloat16)]
    loss = torch.tensor(1.5, requires_grad=True) * 2
    made += [loss, torch.nn.Parameter(torch.ones(1))]
    for each in made:
        stat.add(each)
    assert [(6, math.fsum(each.detach().item() for each in made))] == arrived(events)
    loss.backward()


def test_dtensor_is_refused(events: list[monitel.Event]) -> None:
    """Reading it would be a collective: ``Stat.add()`` refuses it with a message, ``emit()`` leaves it out."""
    stat = monitel.Stat("loss", ALL, math.inf)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        loss = distribute_tensor(torch.ones(1), init_device_mesh("cpu", (1,)))
        with pytest.raises(TypeError, match=r"add\(\) does not take a DTensor.*pass loss.to_local\(\)"):
            stat.add(loss)
        monitel.emit("evaluated", loss=loss, step=1)
        assert {"step": 1} == events.pop().data
        stat.add(loss.to_local())
    finally:
        torch.distributed.destroy_process_group()
    assert [(1, 1.0)] == arrived(events)


def test_transforms_of_torch(events: list[monitel.Event]) -> None:
    """Within vmap a tensor stands for many, within grad one from outside is read; inference mode does nothing."""
    stat = monitel.Stat("loss", ALL, math.inf)
    outside = on_later(7.0)

    def refused(x: Any) -> Any:
        with pytest.raises(TypeError, match="vmap"):
            stat.add(x)
        return x

    def loss(x: Any) -> Any:
        stat.add(outside)
        return (x * x).sum()

    torch.vmap(refused)(torch.ones(3))
    assert [2.0] == torch.func.grad(loss)(torch.ones(1)).tolist()
    with torch.inference_mode():
        stat.add(on_later(1.0))
    stat.add(on_later(2.0))
    assert [(3, 10.0)] == arrived(events)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("strict", [True, False])
def test_exported_model_does_not_add(strict: bool) -> None:
    """torch.export runs the model with tensors that hold no numbers: nothing is added."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            EXPORTED.add(x.sum())
            return x * 2

    program = torch.export.export(Model(), (torch.ones(3),), strict=strict)
    assert [2.0] * 3 == program.module()(torch.ones(3)).tolist()
    assert 0 == EXPORTED.count


def test_numbers_are_copied_on_the_stream_of_add(events: list[monitel.Event]) -> None:
    """Each number arrives when its stream has reached it. The fetching thread uses no other device than theirs."""
    stat = monitel.Stat("loss", ALL, math.inf)
    side, main, numbers = Stream(0), later.current, [on_later(1.0), on_later(2.0)]
    later.first = 1  # as in new threads of all ranks but the first
    with later.device(0):
        stat.add(numbers[0])
        with later.stream(side):
            stat.add(numbers[1])
    assert [(numbers[0].host.data_ptr(), main), (numbers[1].host.data_ptr(), side)] == later.recorded
    stat.flush()
    side.run()
    assert [] == events
    assert [(2, 3.0)] == arrived(events)
    assert {0} == later.used


def test_other_thread_that_captures_a_graph_is_not_disturbed(events: list[monitel.Event]) -> None:
    """A flush calls the device only after the capture, even if its end fails. Methods are torch's afterwards."""
    stat = monitel.Stat("loss", ALL, math.inf)
    graph = torch.cuda.CUDAGraph()
    stat.add(on_later(1.0))
    graph.capture_begin("pool", capture_error_mode="thread_local")
    before = later.queries
    stat.flush()
    assert (before, []) == (later.queries, events)
    graph.fails = True
    with pytest.raises(LookupError):
        graph.capture_end()
    with pytest.raises(LookupError):
        graph.capture_begin()  # it has not begun
    assert [(1, 1.0)] == arrived(events)
    assert [("begin", "pool", "thread_local"), "end", ("begin", None, "global")] == graph.calls
    monitel.torch.instrument(window_size=math.inf).uninstrument()
    assert ["Graph.capture_begin", "Graph.capture_end"] == [
        each.__qualname__ for each in (Graph.capture_begin, Graph.capture_end)
    ]


def test_device_that_is_silent_for_minutes_loses_its_numbers(
    events: list[monitel.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows are then logged with the known samples, so that they do not pile up."""
    stat = monitel.Stat("loss", ALL, math.inf)
    monkeypatch.setattr("monitel.torch.devices.TIMEOUT_S", 0.0)
    stat.add(3.0)
    stat.add(on_later(1.0))
    flush_until(lambda: len(events) == 2)
    assert ([(1, 3.0)], [(1, 1.0)]) == (windows(events, "loss"), windows(events, "training.tensors.lost"))
