"""log(), emit() and add() with numbers on a device do not wait: values come later, none is lost uncounted."""

import contextvars
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock, call
from weakref import proxy

import pytest
import torch
from tests.support.checks import wait_until
from tests.support.paths import ROOT
from tests.support.producers import run_together
from tests.support.scripts import Run
from tests.torch.known_work import windows_of
from tests.torch.later_device import Stream, idle, later, on_later

import monitel
import monitel.torch
from monitel.testing import ManualClock

ALL = list(monitel.Aggregation)
EXPORTED = monitel.Stat("exported", ALL, math.inf)  # the compiler keeps it
ROOM = 8192  # numbers that the device holds


@pytest.fixture(autouse=True)
def _instrumented() -> Iterator[None]:
    with idle(), monitel.torch.instrument(window_size=math.inf):
        yield
        later.answers = True  # so that the end need not wait


def deliver() -> None:
    """Let the device execute everything, and flush, until a number has arrived that is added now."""
    later.answers, last = True, monitel.Stat("last", [monitel.SUM], math.inf)
    last.add(on_later(17.0))
    with monitel.testing.capture_events() as events:
        wait_until(lambda: monitel.flush() or windows_of(events, "last"))  # type: ignore[func-returns-value]
    later.answers = False
    assert [17.0] == [window.sum for window in windows_of(events, "last")]


def counted(events: list[monitel.Event], name: str = "loss") -> list[tuple[int, float]]:
    return [(window.count, window.sum) for window in windows_of(events, name)]


def points(events: list[monitel.Event], name: str) -> list[tuple[int | None, Any]]:
    return [
        (event.step, event.data[name])
        for event in events
        if isinstance(event, monitel.LoggedNumbers) and name in event.data
    ]


def lost(events: list[monitel.Event]) -> int:
    """Return the number of values that are counted as lost, and reported once."""
    return sum(window.count for window in windows_of(events, "training.tensors.lost"))


def test_add_is_one_launch_and_does_not_wait(events: list[monitel.Event]) -> None:
    """The sample counts at once, and its value is in the window when the device has got there."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(0.0))
    before = later.launches
    for number in range(1, 101):
        stat.add(on_later(float(number)))
    assert (101, 100, 0, []) == (stat.count, later.launches - before, later.syncs, events)
    deliver()
    assert [(101, 5050.0, 100.0)] == [(each.count, each.sum, each.last) for each in windows_of(events, "loss")]
    assert (0, 0) == (later.syncs, lost(events))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str
)
@pytest.mark.usefixtures("clock")
def test_window_is_that_of_item_to_the_last_bit(dtype: Any, events: list[monitel.Event]) -> None:
    """Even if the tensor is changed after ``add()``, has several dimensions, or requires a gradient."""
    stat, reference = (monitel.Stat(name, ALL, 60.0) for name in ("loss", "reference"))
    for number in (0.1, 7.0, 3.25, 0.0):
        for shape in ((), (1, 1)):
            loss = torch.full(shape, number, dtype=dtype)
            reference.add(loss.item())
            on_device = on_later(loss.tolist(), dtype)
            stat.add(on_device)
            on_device.fill_(99)
    if dtype.is_floating_point:
        with_graph = on_later(2.0, dtype).requires_grad_()
        stat.add(with_graph)
        reference.add(2.0)
        assert with_graph.requires_grad
    deliver()
    (ours,), (theirs,) = windows_of(events, "loss"), windows_of(events, "reference")
    assert repr(theirs).split("start_ns", 1)[1] == repr(ours).split("start_ns", 1)[1]
    assert 0 == later.syncs


def test_events_and_numbers_have_the_moment_of_the_call(clock: ManualClock, events: list[Any]) -> None:
    """Their time, step and context, and the types of their numbers. Events stay complete; known numbers do not wait.

    A value that cannot be read is counted once.
    """
    caller = contextvars.ContextVar("caller", default="elsewhere")
    contexts: list[tuple[str, str]] = []
    monitel.set_step(3)
    with monitel.register_event_handler(lambda event: contexts.append((event.name, caller.get()))):
        called, token = clock.time_ns(), caller.set("the loop")
        monitel.emit("evaluated", {"split": "val"}, loss=on_later(0.5), right=on_later(7), done=on_later(True), n=1)
        values = {"loss": on_later(0.5), "right": on_later(7), "lr": 0.25, "cpu": torch.tensor(2.0, requires_grad=True)}
        monitel.log({**values, "meta": torch.empty((), device="meta"), "many": on_later([1.0, 2.0])}, split="val")
        caller.reset(token)
        assert ([{"lr": 0.25, "cpu": 2.0}], 0) == ([event.data for event in events], later.syncs)
        monitel.set_step(4)
        clock.advance(5)
        deliver()
    ours = [each for each in events if each.window is None]
    assert [
        *("{'lr': 0.25, 'cpu': 2.0}", "{'split': 'val', 'n': 1, 'loss': 0.5, 'right': 7, 'done': True}"),
        "{'loss': 0.5, 'right': 7}",
    ] == [repr(event.data) for event in ours]
    assert [(called / 1e9, 3)] * 3 == [(event.timestamp.timestamp(), event.step) for event in ours]
    assert [(called, {"split": "val"})] * 2 == [(each.time_ns, dict(each.attributes)) for each in (ours[0], ours[2])]
    assert [("evaluated", "the loop")] == [each for each in contexts if each[0] == "evaluated"]
    assert 2 == monitel.counter("monitel.log.left_out").total


def test_numbers_of_a_name_are_logged_in_the_order_of_the_calls(events: list[monitel.Event]) -> None:
    """A number waits for an earlier one of its name, others do not; a lost number holds nothing up."""
    monitel.log({"loss": on_later(1.0), "lr": 1.0}, step=1)
    monitel.log({"loss": 2.0, "lr": 2.0}, step=2)
    for step in range(3, 2000):  # many complete at the same moment
        monitel.log({"loss": float(step), "right": on_later(step)}, step=step)
    monitel.log({"accuracy": 1.0}, step=2000)
    assert [1, 2, 2000] == [event.step for event in events]
    deliver()
    assert [(step, float(step)) for step in range(1, 2000)] == points(events, "loss")
    assert [(step, step) for step in range(3, 2000)] == points(events, "right")
    assert [(1, 1.0), (2, 2.0)] == points(events, "lr")
    later.failure = RuntimeError("device-side assert triggered")
    monitel.log({"loss": on_later(0.0)}, step=2001)
    later.failure = None
    monitel.log({"loss": 2002.0}, step=2002)
    deliver()
    assert ((2002, 2002.0), 1) == (points(events, "loss")[-1], lost(events))


def test_handler_that_raises_holds_no_number_up(events: list[monitel.Event], caplog: pytest.LogCaptureFixture) -> None:
    """Numbers of the name are logged afterwards, from the same thread or another."""
    with monitel.register_event_handler(lambda event: 1 / (event.step != 1)):
        with pytest.raises(ZeroDivisionError):
            monitel.log({"loss": on_later(1.0), "lr": 1.0}, step=1)
        monitel.log({"loss": 2.0}, step=2)
        deliver()
        monitel.log({"loss": 3.0}, step=3)
    assert [(1, 1.0), (2, 2.0), (3, 3.0)] == points(events, "loss")
    wait_until(lambda: caplog.records, "the warning of the thread")
    caplog.clear()  # the records have exceptions


def test_silent_device_delays_one_flush_and_loses_nothing(events: list[monitel.Event]) -> None:
    """The first flush waits for 2 s. Later flushes do not wait; what arrives after them is logged then."""
    stats = [monitel.Stat("loss", ALL, math.inf) for _ in range(3)]
    for stat in stats:
        stat.add(on_later(1.0))
    stats[0].flush()
    asked = later.queries
    assert asked > 1
    stats[1].flush()
    stats[2].flush()
    assert later.queries < 1.5 * asked  # those of the thread; a flush that waits makes as many as the first one
    assert [] == events
    deliver()
    assert [1.0] * 3 == [window.sum for window in windows_of(events, "loss")]
    assert (0, 0) == (later.syncs, lost(events))


def test_numbers_beyond_the_room_of_a_device_are_counted_as_lost(
    events: list[monitel.Event], caplog: pytest.LogCaptureFixture
) -> None:
    """While the device is far behind. The loss is logged once, and later numbers are recorded."""
    stat = monitel.Stat("loss", ALL, math.inf)
    for _ in range(ROOM + 10):
        stat.add(on_later(1.0))
    assert ROOM + 10 == stat.count
    later.answers = True
    monitel.flush()
    stat.add(on_later(1.0))
    deliver()
    assert (ROOM, 1) == tuple(each.count for each in windows_of(events, "loss"))
    assert 10 == lost(events)
    message = "tensor values are lost: the device is too far behind (counted in training.tensors.lost)"
    assert [message] == [each for each in caplog.messages if "lost" in each]


def test_device_that_keeps_up_loses_nothing(events: list[monitel.Event]) -> None:
    """More numbers than it has room for, from two threads, while a third one flushes: each is in one window."""
    stat, done = monitel.Stat("loss", ALL, math.inf), list[int]()
    later.answers = True

    def add() -> None:
        for number in range(ROOM):
            stat.add(on_later(1.0))
            if number % 1000 == 0:  # the thread that fetches numbers keeps up on a busy machine, too
                stat.flush()
        done.append(1)

    def flush() -> None:
        while len(done) < 2:
            stat.flush()

    run_together(add, add, flush)
    deliver()
    found = counted(events)
    assert (2 * ROOM, 2.0 * ROOM) == tuple(map(sum, zip(*found, strict=True)))
    assert (0, 0) == (later.syncs, lost(events))


def test_device_that_fails_loses_its_numbers_only(
    events: list[monitel.Event], caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged instead of raised; what is not on the device is recorded."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(1.0))
    stat.add(on_later(1.0))
    later.failure = RuntimeError("device-side assert triggered")
    stat.add(on_later(2.0))
    stat.add(3.0)
    monitel.emit("epoch", number=4, loss=on_later(5.0))
    stat.flush()
    assert [(1, 3.0)] == counted(events)
    assert [{"number": 4}] == [event.data for event in events if event.name == "epoch"]
    later.failure = None
    monitel.flush()
    assert 4 == lost(events)
    assert "the device failed" in caplog.text
    caplog.clear()  # the records have exceptions


def test_capture_of_a_graph_contains_nothing(events: list[monitel.Event], caplog: pytest.LogCaptureFixture) -> None:
    """Samples that are added meanwhile count as lost; the device is not called, and later numbers are recorded."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(1.0))
    before = later.launches
    later.capturing = True
    stat.add(on_later(1.0))
    monitel.emit("epoch", loss=on_later(1.0), epoch=1)
    assert before == later.launches
    assert [{"epoch": 1}] == [event.data for event in events]
    later.capturing = False
    stat.add(on_later(2.0))
    deliver()
    monitel.flush()
    assert [(2, 3.0)] == counted(events)
    assert 2 == lost(events)
    assert 1 == len([each for each in caplog.messages if "during a graph capture" in each])


def test_end_waits_and_then_counts_what_is_missing(events: list[monitel.Event]) -> None:
    """``uninstrument()`` logs each window with the numbers that have arrived. Then tensors are read by waiting."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(1.0)
    stat.add(on_later(5.0))
    stat.flush()
    assert [] == windows_of(events, "loss")
    monitel.torch.instrument(window_size=math.inf).uninstrument()
    assert [(1, 1.0)] == counted(events)
    assert 1 == lost(events)
    stat.add(on_later(7.0))
    assert 1 == later.syncs
    stat.flush()
    assert 7.0 == windows_of(events, "loss")[-1].sum


def test_interrupted_add_loses_that_sample_only(monkeypatch: pytest.MonkeyPatch, events: list[monitel.Event]) -> None:
    """``KeyboardInterrupt`` is raised from ``add()``. A handler of a signal may add, too."""
    stat, launch, thread = monitel.Stat("loss", ALL, math.inf), later.launch, threading.get_ident()
    later.answers = True
    stat.add(on_later(1.0))
    actions: list[Callable[[], object]] = []

    def interrupted(operation: Any) -> None:
        if actions and thread == threading.get_ident():
            actions.pop()()
        launch(operation)

    monkeypatch.setattr(later, "launch", interrupted)
    actions.append(lambda: stat.add(on_later(4.0)))
    stat.add(on_later(2.0))
    actions.append(Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        stat.add(on_later(100.0))
    stat.add(on_later(8.0))
    monitel.flush()
    found = counted(events)
    assert (4, 15.0) == tuple(map(sum, zip(*found, strict=True)))


def test_tensors_that_are_not_a_number_are_refused_at_once(events: list[monitel.Event]) -> None:
    """``Stat.add()`` raises as without ``instrument()``, other calls leave them out; the device is not called."""
    stat, before = monitel.Stat("loss", ALL, math.inf), later.launches
    for wrong in (on_later([1.0, 2.0]), on_later(1j), torch.ones(2), torch.tensor(1j), torch.ones(1, device="meta")):
        with pytest.raises(TypeError, match=r"add\(\) takes a real number"):
            stat.add(wrong)
    for wrong in (torch.ones(2), on_later([1.0, 2.0])):
        monitel.emit("evaluated", loss=wrong)
    monitel.counter("training.tokens").add(on_later(3))
    assert (0, before) == (stat.count, later.launches)
    assert [{}, {}] == [event.data for event in events]
    left_out = {each.counter.name: each.total for each in monitel.counters()}
    assert (0, 3) == (left_out["training.tokens"], left_out["monitel.log.left_out"])


def test_proxy_of_an_object_that_is_gone_is_not_a_tensor(events: list[monitel.Event]) -> None:
    """``Stat.add()`` raises as for each object that is not a number, other calls leave it out."""
    gone: Any = proxy(Mock())
    with pytest.raises(TypeError, match=r"add\(\) takes a real number"):
        monitel.stat("loss").add(gone)
    monitel.emit("evaluated", loss=gone)
    monitel.log(loss=gone)
    assert [{}, {}] == [event.data for event in events]


def test_tensor_of_the_cpu_is_its_item(events: list[monitel.Event]) -> None:
    """Whatever its type, as a parameter, and with a gradient: without torch's warning, and the graph stays usable."""
    stat = monitel.Stat("loss", ALL, math.inf)
    made = [torch.tensor(2), torch.tensor([[0.5]]), torch.tensor(True), torch.tensor(0.25, dtype=torch.bfloat16)]
    loss = torch.tensor(1.5, requires_grad=True) * 2
    made += [loss, torch.nn.Parameter(torch.ones(1))]
    for each in made:
        stat.add(each)
    deliver()
    assert [(6, math.fsum(each.detach().item() for each in made))] == counted(events)
    loss.backward()


@pytest.mark.usefixtures("group")
def test_dtensor_is_refused(events: list[monitel.Event]) -> None:
    """Reading it would be a collective: ``Stat.add()`` refuses it with a message, ``emit()`` leaves it out."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    loss = distribute_tensor(torch.ones(1), init_device_mesh("cpu", (1,)))
    with pytest.raises(TypeError, match=r"add\(\) does not take a DTensor.*pass loss.to_local\(\)"):
        monitel.Stat("loss", ALL, math.inf).add(loss)
    monitel.emit("evaluated", loss=loss, step=1)
    assert [{"step": 1}] == [event.data for event in events]


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
    deliver()
    assert [(3, 10.0)] == counted(events)


def test_exported_model_does_not_add() -> None:
    """torch.export runs the model with tensors that hold no numbers: nothing is added."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            EXPORTED.add(x.sum())
            return x * 2

    program = torch.export.export(Model(), (torch.ones(3),))
    assert [2.0] * 3 == program.module()(torch.ones(3)).tolist()
    assert 0 == EXPORTED.count


def test_numbers_are_copied_on_the_stream_of_add(events: list[monitel.Event]) -> None:
    """Each number arrives when its stream has reached it. The fetching thread uses no other device than theirs."""
    stat = monitel.Stat("loss", ALL, math.inf)
    side, main, numbers = Stream(0), later.current_stream(), [on_later(1.0), on_later(2.0)]
    later.first = 1  # as in new threads of all ranks but the first
    with later.device(0):
        stat.add(numbers[0])
        with later.stream(side):
            stat.add(numbers[1])
    assert [(numbers[0].host.data_ptr(), main), (numbers[1].host.data_ptr(), side)] == later.recorded
    stat.flush()
    side.run()
    assert [] == events
    deliver()
    assert [(2, 3.0)] == counted(events)
    assert {0} == later.used


def test_other_thread_that_captures_a_graph_is_not_disturbed(
    events: list[monitel.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush calls the device only after the capture, even if its end fails. Methods are torch's afterwards."""
    begin, end = Mock(), Mock()
    graphs = type("CUDAGraph", (), {"capture_begin": begin, "capture_end": end})
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graphs)
    running = monitel.torch.instrument(window_size=1e9)  # which wraps its methods
    stat = monitel.Stat("loss", ALL, math.inf)
    graph = torch.cuda.CUDAGraph()
    stat.add(on_later(1.0))
    graph.capture_begin("pool", capture_error_mode="thread_local")
    before = later.queries
    stat.flush()
    assert (before, []) == (later.queries, events)
    begin.side_effect = end.side_effect = LookupError
    with pytest.raises(LookupError):
        graph.capture_end()
    with pytest.raises(LookupError):
        graph.capture_begin()  # it has not begun
    deliver()
    assert [(1, 1.0)] == counted(events)
    assert [call(graph, "pool", capture_error_mode="thread_local"), call(graph)] == begin.call_args_list
    assert [call(graph)] == end.call_args_list
    running.uninstrument()
    assert (begin, end) == (graphs.capture_begin, graphs.capture_end)  # type: ignore[attr-defined]


def test_device_that_is_silent_for_minutes_loses_its_numbers(
    events: list[monitel.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows are then logged with the known samples, so that they do not pile up."""
    stat = monitel.Stat("loss", ALL, math.inf)
    monkeypatch.setattr("monitel.torch.devices.TIMEOUT_S", 0.0)
    stat.add(3.0)
    stat.add(on_later(1.0))
    wait_until(lambda: monitel.flush() or len(events) == 2)  # type: ignore[func-returns-value]
    assert ([(1, 3.0)], [(1, 1.0)]) == (counted(events), counted(events, "training.tensors.lost"))


SCRIPT = f"""\
import math, os, sys
import torch, monitel, monitel.torch
sys.path.insert(0, {str(ROOT)!r})
from tests.torch.known_work import windows_of
from tests.torch.later_device import later, on_later, start

start()

def report(event):  # unbuffered: a forked child would copy a line that another thread has begun
    os.write(1, f"{{os.getpid() == parent}} {{event.window.name}} {{event.window.sum}}\\n".encode())

monitel.register_event_handler(report)
parent = os.getpid()
monitel.torch.instrument(sources="-waits,-monitor,-compilation,-failures")
stat = monitel.Stat("loss", [monitel.SUM], math.inf)
stat.add(on_later(1.0))
stat.add(on_later(2.0))
"""
FORK = """\
child = os.fork()
if not child:
    later.answers = True
    stat.add(on_later(10.0))
    stat.flush()
    os._exit(0)
os.waitpid(child, 0)
later.answers = True
"""


@pytest.mark.parametrize(
    ("script", "expected", "warnings"),
    [
        ("stat.add(5.0)\n", ["True loss 5.0", "True training.tensors.lost 2.0"], 1),
        (FORK, ["False loss 10.0", "True loss 3.0"], 0),
    ],
    ids=["exit with a silent device", "fork"],
)
def test_exit_waits_and_a_child_has_its_own_numbers(script: str, expected: list[str], warnings: int, run: Run) -> None:
    """Numbers that do not arrive in time are counted and logged. The parent reports what was added before a fork."""
    ended = run("-W", "ignore", "-c", SCRIPT + script)
    assert expected == sorted(ended.stdout.splitlines()), ended.stderr
    assert warnings == ended.stderr.count("the device had not delivered them when instrumentation ended")
