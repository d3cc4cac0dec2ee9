"""Stat.add in compiled code: the graph breaks there, each call adds its samples, and nothing of monitel is compiled."""

import pytest
import torch
from tests.support.scripts import Run
from tests.torch.known_work import captured

import monitel
import monitel.torch
from monitel.profiler import record_function

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


@pytest.mark.usefixtures("fresh_compiler", "instrumented")
def test_ranges_guards_and_timers_do_nothing_in_a_graph() -> None:
    seconds = monitel.Stat("test_compiled.seconds", [monitel.COUNT], float("inf"))
    waits = monitel.WaitCounter("test_compiled.waits")

    def step(x: torch.Tensor) -> torch.Tensor:
        with record_function("step"), waits.guard(), seconds.time():
            return x + x.sum()

    inputs = [torch.full((3,), number) for number in (1.0, 2.0)]
    assert captured(lambda x: x + x.sum(), inputs, fullgraph=True) == captured(step, inputs, fullgraph=True)
    assert 0 == seconds.count
