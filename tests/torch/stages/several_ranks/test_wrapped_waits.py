"""The wrappers around waits, in one process: other wrappers, copies, compiled code, and torch without distributed."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from datetime import timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import torch
from tests.torch.stages.several_ranks.ranks import ROOT
from torch import distributed
from torch._dynamo.utils import counters
from torch.distributed import _functional_collectives as functional

import monitel.torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

pytestmark = pytest.mark.torch

_DEADLINE = 60


@pytest.fixture
def group() -> Iterator[None]:
    """Provide a process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def places() -> list[object]:
    """Return what waits in torch."""
    operator = torch.ops._c10d_functional.wait_tensor
    return [
        *(distributed.Work.wait, distributed.Store.get, distributed.Store.wait, torch._C.Future.wait),
        *(operator._op, operator.default._op, distributed._broadcast_coalesced, distributed.monitored_barrier),
    ]


def test_uninstrument_restores_all(group: None) -> None:
    """All functions are torch's again, even after two instrumentations."""
    before = places()
    with monitel.torch.instrument():
        assert not any(now is then for now, then in zip(places(), before, strict=True))
    with monitel.torch.instrument(steps=False):
        distributed.barrier()
    assert all(now is then for now, then in zip(places(), before, strict=True))


def test_wrapper_of_somebody_else_stays(group: None) -> None:
    """A later wrapper is left alone, and works after the end."""
    before, calls = distributed.Work.wait, []
    running = monitel.torch.instrument()
    try:
        inner = distributed.Work.wait

        def wait(work: Any, *args: Any) -> Any:
            calls.append(args)
            return inner(work, *args)

        distributed.Work.wait = wait
        running.uninstrument()
        assert distributed.Work.wait is wait
        assert distributed.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=5))
        assert [(timedelta(seconds=5),)] == calls
    finally:
        running.uninstrument()
        distributed.Work.wait = before


def test_uninstrument_while_waiting() -> None:
    """A wait that is under way ends as it would, and so does one with an error or a timeout."""
    future: Any = torch.futures.Future()
    waits, results = Event(), []

    def wait() -> None:
        waits.set()
        results.append(future.wait())

    running = monitel.torch.instrument()
    thread = Thread(target=wait, daemon=True)
    thread.start()
    assert waits.wait(_DEADLINE)
    running.uninstrument()
    future.set_result(5)
    thread.join(_DEADLINE)
    assert [5] == results
    with monitel.torch.instrument():
        failed: Any = torch.futures.Future()
        failed.set_exception(ZeroDivisionError("in the future"))
        with pytest.raises(ZeroDivisionError, match="in the future"):
            failed.wait()
        with pytest.raises(distributed.DistStoreError, match="timeout"):
            distributed.HashStore().wait(["never"], timedelta(milliseconds=10))


def compiled_waits() -> list[Callable[[Tensor], Tensor]]:
    """Return functions with collectives for the compiler."""

    def in_place(tensor: Tensor) -> Tensor:
        distributed.all_reduce(tensor)
        return tensor * 2

    def by_function(tensor: Tensor) -> Tensor:
        return functional.all_reduce(tensor * 2, "sum", distributed.group.WORLD) + 1

    def later(tensor: Tensor) -> Tensor:
        work = distributed.all_reduce(tensor, async_op=True)
        tensor = tensor * 2
        work.wait()
        return tensor + 1

    def between(tensor: Tensor) -> Tensor:
        tensor = tensor + 1
        distributed.barrier()
        return tensor * 2

    return [in_place, by_function, later, between]


def graphs_of(function: Callable[[Tensor], Tensor], *, fullgraph: bool) -> list[str] | None:
    """Return the graphs that the compiler makes of a function; None if that fails."""
    graphs: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=fullgraph)
    try:
        for _ in range(2):
            compiled(torch.ones(2))
    except Exception:
        return None
    return graphs


@pytest.mark.filterwarnings("ignore")
def test_compiled_code_has_the_same_graphs(group: None) -> None:
    """Functions with collectives compile into the same graphs as without monitel, in one graph where torch can."""
    cases = [(each, fullgraph) for each in compiled_waits() for fullgraph in (False, True)]
    expected = [graphs_of(each, fullgraph=fullgraph) for each, fullgraph in cases]
    with monitel.torch.instrument():
        assert expected == [graphs_of(each, fullgraph=fullgraph) for each, fullgraph in cases]
    assert expected[3], "the functional collective is one graph"
    torch.compiler.reset()


def compiled_backwards() -> dict[str, int]:
    """Return the statistics of the compiler after backwards that it has compiled."""
    torch.compiler.reset()
    counters.clear()
    model = torch.nn.Linear(2, 2)

    def step(inputs: Tensor) -> None:
        model(inputs).sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled = torch.compile(step, backend="aot_eager")
        for _ in range(3):
            compiled(torch.ones(2))
    return {**counters["stats"], **counters["compiled_autograd"], **counters["graph_break"]}


@pytest.mark.filterwarnings("ignore")
def test_compiled_backward_has_the_same_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among several ranks, compiled autograd compiles what it compiles without monitel."""
    monkeypatch.setattr("monitel.torch.boundaries.backward.several_ranks", lambda: True)
    expected = compiled_backwards()
    assert expected["captures"] > 0
    with monitel.torch.instrument():
        assert expected == compiled_backwards()
    torch.compiler.reset()


class Waiting(torch.nn.Module):  # type: ignore[misc]  # Any where torch is not installed
    """A module that calls the operator."""

    def forward(self, tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return torch.ops._c10d_functional.wait_tensor.default(tensor)


def test_copies(group: None) -> None:
    """Wrapped functions can be copied and traced as before."""
    operator = torch.ops._c10d_functional.wait_tensor.default
    expected = torch.fx.symbolic_trace(Waiting()).code
    with monitel.torch.instrument():
        assert copy.deepcopy(operator) is operator
        assert pickle.loads(pickle.dumps(distributed.Store)) is distributed.Store
        traced = torch.fx.symbolic_trace(Waiting())
        assert expected == traced.code
        assert [1, 1] == copy.deepcopy(traced)(torch.ones(2)).tolist()


SCRIPT = """\
import sys, torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # loads the compiler, which requires torch.distributed
for name in [each for each in sys.modules if each.startswith("torch.distributed")]:
    del sys.modules[name]
del torch._C._c10d_init  # so torch is built without distributed
import torch.distributed
assert not torch.distributed.is_available() and not hasattr(torch.distributed, "Work")
import monitel.testing, monitel.torch
with monitel.testing.capture_events() as events, monitel.torch.instrument() as running:
    assert "stages" in running.sources, running.missing
    for _ in range(3):
        model(torch.ones(1)).backward()
        optimizer.step()
windows = [each.window for each in events if each.window and each.window.name == "training.stage.duration"]
print(*sorted(each.attributes["training.stage"] for each in windows if each.count == 2))
"""


def test_torch_without_distributed() -> None:
    """Stages are measured, without ``sync``."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=_DEADLINE, check=False
    )
    assert "backward data forward optimizer other\n" == run.stdout, run.stderr
