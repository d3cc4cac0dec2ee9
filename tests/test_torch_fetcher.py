"""Tensors on a device are samples that nobody waits for: with a device that does nothing before it is told to."""

from __future__ import annotations

import contextvars
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

torch: Any = pytest.importorskip("torch", reason="has tensors on a device: torch is not installed")

import monitel.torch  # noqa: E402  after the check that torch is there
from monitel.torch import devices, ring  # noqa: E402
from monitel.torch.captures import Captures  # noqa: E402

from .later_device import Stream, later, on_later, start  # noqa: E402

pytestmark = pytest.mark.torch
ALL = list(monitel.Aggregation)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    start()
    later.reset()
    yield
    later.reset()
    monitel._window.set_step(None)


@pytest.fixture
def instrumentation() -> Iterator[Any]:
    """Switch on what knows tensors; its thread looks when a flush waits, a page is full, or a test says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_SECONDS", 3600.0)
        patch.setattr(devices, "_PATIENCE_S", 0.2)
        with monitel.torch.instrument(
            **dict.fromkeys(("steps", "loading", "waits", "monitor", "compilation", "failures"), False),
            stuck_after=None,
        ) as instrumentation:
            yield instrumentation


@pytest.fixture
def clock() -> Iterator[monitel.testing.ManualClock]:
    """Give the clock of the Stats that are made."""
    with monitel.testing.ManualClock() as clock:
        yield clock


@pytest.fixture
def events() -> Iterator[list[monitel.Event]]:
    """Collect the events of the test."""
    with monitel.testing.capture_events() as events:
        yield events


def answer() -> None:
    """Have the device do at once what it is given; it may take as long as the machine is busy."""
    later.answers = True
    devices._PATIENCE_S = 30.0  # until the fixture puts it back


def look(instrumentation: Any) -> None:
    """Do what the thread does each second."""
    instrumentation._sources["tensors"]._devices.turn()


def come(instrumentation: Any) -> None:
    """Have all numbers fetched."""
    look(instrumentation)
    later.run()
    look(instrumentation)


def windows(events: list[monitel.Event], name: str = "loss") -> list[monitel.Window]:
    """Give the windows of a Stat that were logged."""
    return [event.window for event in events if event.window is not None and event.window.name == name]


def lost(instrumentation: Any) -> int:
    """Say how many tensors were counted as lost."""
    found: devices.Devices = instrumentation._sources["tensors"]._devices
    return 0 if found._lost is None else found._lost.count


def test_add_is_one_launch_and_no_wait(instrumentation: Any) -> None:
    """It counts at once. The device has done nothing by then, and is not asked for anything."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(1.0))
    later.launches = 0
    for number in range(100):
        stat.add(on_later(float(number)))
    assert (101, 100, 0, 0) == (stat.count, later.launches, later.syncs, later.queries)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("clock")
def test_the_values_are_those_of_the_synchronous_result(
    instrumentation: Any, events: list[monitel.Event], dtype: Any
) -> None:
    """Each number of the window, whatever type the tensor has, and whatever is done to it later."""
    stat, reference = (monitel.Stat(name, ALL, 60.0) for name in ("loss", "reference"))
    for number in (0.1, 7.0, 3.25, 0.0):
        for shape in ((), (1, 1)):
            loss = torch.full(shape, number, dtype=dtype)
            reference.add(loss.item())
            on_device = on_later(loss.tolist(), dtype)
            stat.add(on_device)
            on_device.fill_(99)
    come(instrumentation)
    stat.flush()
    reference.flush()
    ours, theirs = windows(events)[0], windows(events, "reference")[0]
    assert repr(theirs).split("start_ns", 1)[1] == repr(ours).split("start_ns", 1)[1]
    assert 0 == later.syncs


def test_a_loss_that_needs_a_gradient(instrumentation: Any) -> None:
    """Its graph is left alone, and not kept."""
    stat = monitel.Stat("loss", ALL, math.inf)
    loss = on_later(2.0).requires_grad_()
    stat.add(loss)
    come(instrumentation)
    stat.flush()
    assert 2.0 == stat.get()[monitel.MEAN]
    assert loss.requires_grad


def test_the_window_is_that_of_adding(
    instrumentation: Any, clock: monitel.testing.ManualClock, events: list[monitel.Event]
) -> None:
    """Start, end and steps, though the numbers come later, and though the next window has begun by then."""
    stat = monitel.Stat("loss", ALL, 60.0)
    for step in (3, 4):
        monitel.set_step(step)
        stat.add(on_later(float(step)))
    clock.advance(65)
    monitel.set_step(8)
    stat.add(on_later(8.0))
    assert [] == events
    clock.advance(10)
    come(instrumentation)
    (window,) = windows(events)
    end_ns = clock.time_ns() - 15_000_000_000
    assert (end_ns - 60_000_000_000, end_ns, 2, 7.0, 3, 4) == (
        *(window.start_ns, window.end_ns, window.count, window.sum),
        *(window.first_step, window.last_step),
    )


def test_a_flush_waits_for_a_bounded_time(instrumentation: Any, events: list[monitel.Event]) -> None:
    """A device that does not answer delays one flush, not each; what comes then is logged then."""
    stats = [monitel.Stat("loss", ALL, math.inf) for _ in range(3)]
    for stat in stats:
        stat.add(on_later(1.0))
    stats[0].flush()
    asked = later.queries
    stats[1].flush()
    stats[2].flush()
    assert asked > 2
    assert [] == events
    come(instrumentation)
    assert [1.0] * 3 == [window.sum for window in windows(events)]
    answer()
    stats[0].add(on_later(2.0))
    monitel.flush()
    assert 4 == len(windows(events))
    assert 0 == later.syncs


def test_max_samples(instrumentation: Any, events: list[monitel.Event]) -> None:
    """What is beyond is discarded when it is added, and not copied."""
    stat = monitel.Stat("loss", ALL, math.inf, 2)
    for number in range(4):
        stat.add(on_later(float(number)))
    assert (2, 2, 0) == (stat.discarded, later.launches, stat.count)
    come(instrumentation)
    assert [(2, 1.0)] == [(window.count, window.sum) for window in windows(events)]


def test_more_than_the_ring_holds(instrumentation: Any, events: list[monitel.Event]) -> None:
    """While the device keeps up nothing is lost, though nobody looks meanwhile, and no memory is taken anew."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(0.0))
    (only,) = instrumentation._sources["tensors"]._devices._each()
    answer()
    known = {id(page) for page in (*only._free, *only._used)}
    for number in range(1, 3 * ring._PAGES * ring._SLOTS):
        stat.add(on_later(float(number)))
    stat.flush()
    (window,) = windows(events)
    number = 3 * ring._PAGES * ring._SLOTS
    assert (number, number * (number - 1) / 2, 0) == (window.count, window.sum, lost(instrumentation))
    assert known == {id(page) for page in (*only._free, *only._used)}
    assert ring._PAGES == len(known)


def test_a_device_far_behind(
    instrumentation: Any, events: list[monitel.Event], caplog: pytest.LogCaptureFixture
) -> None:
    """Memory is bounded: what does not fit is lost, counted, and said once."""
    stat, fits = monitel.Stat("loss", ALL, math.inf), ring._PAGES * ring._SLOTS
    for _ in range(fits + 10):
        stat.add(on_later(1.0))
    assert (fits + 10, 10) == (stat.count, lost(instrumentation))
    come(instrumentation)
    stat.flush()
    assert [fits] == [window.count for window in windows(events)]
    (said,) = caplog.messages
    assert "values of tensors are lost: the device is far behind; training.tensors.lost counts them" == said


def test_while_a_graph_is_captured(
    instrumentation: Any, events: list[monitel.Event], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing goes into the graph; that is counted, and said once."""
    stat = monitel.Stat("loss", ALL, math.inf)
    later.capturing = True
    stat.add(on_later(1.0))
    stat.add(on_later(1.0))
    monitel.emit("epoch", loss=on_later(1.0), epoch=1)
    assert (0, 0, 3) == (stat.count, later.launches, lost(instrumentation))
    assert [{"epoch": 1}] == [event.data for event in events]
    later.capturing = False
    stat.add(on_later(2.0))
    come(instrumentation)
    stat.flush()
    assert [(1, 2.0)] == [(window.count, window.sum) for window in windows(events)]
    assert 1 == len(caplog.messages)
    assert "captured" in caplog.messages[0]


class Graph:
    """What torch.cuda.CUDAGraph is where there is CUDA."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fails = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begin."""
        self.calls.append(("begin", pool, capture_error_mode))
        if self.fails:
            raise LookupError

    def capture_end(self) -> None:
        """End."""
        self.calls.append("end")
        if self.fails:
            raise LookupError


def test_the_thread_leaves_captures_alone(
    monkeypatch: pytest.MonkeyPatch, instrumentation: Any, events: list[monitel.Event]
) -> None:
    """While another thread captures a graph, the device is neither asked nor told anything, by a flush neither."""
    instrumentation.uninstrument()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    with monitel.torch.instrument(steps=False, failures=False, window_size=math.inf) as again:
        stat, graph = monitel.Stat("loss", ALL, math.inf), torch.cuda.CUDAGraph()
        stat.add(on_later(1.0))
        before = later.launches, later.queries
        graph.capture_begin("pool", capture_error_mode="thread_local")
        look(again)
        stat.flush()
        assert (*before, []) == (later.launches, later.queries, events)
        graph.capture_end()
        come(again)
        assert [1.0] == [window.sum for window in windows(events)]
    assert [("begin", "pool", "thread_local"), "end"] == graph.calls
    assert "Captures" not in Graph.capture_begin.__qualname__


def test_captures_that_fail_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot begin has not begun, and one that cannot end has ended."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    captures, graph = Captures(), Graph()
    captures.install()
    graph.fails = True
    with pytest.raises(LookupError):
        graph.capture_begin()
    graph.fails = False
    graph.capture_begin()
    graph.fails = True
    with pytest.raises(LookupError):
        graph.capture_end()
    with captures.kept_out() as allowed:
        assert allowed
    captures.remove()


def test_a_capture_waits_for_calls_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins when they are done."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    captures, graph, begun = Captures(), Graph(), threading.Event()
    captures.install()

    def capture() -> None:
        graph.capture_begin()
        begun.set()

    with captures.kept_out() as allowed:
        assert allowed
        thread = threading.Thread(target=capture, daemon=True)
        thread.start()
        assert not begun.wait(0.1)
    assert begun.wait(30)
    captures.remove()


def test_streams(instrumentation: Any, events: list[monitel.Event]) -> None:
    """A number is copied on the stream that is current; fetching waits for that stream and holds up none."""
    side, main = Stream(), later.current
    stat, numbers = monitel.Stat("loss", ALL, math.inf), [on_later(1.0), on_later(2.0)]
    stat.add(numbers[0])
    with later.stream(side):
        stat.add(numbers[1])
    assert [(numbers[0].host.data_ptr(), main), (numbers[1].host.data_ptr(), side)] == later.recorded
    before = len(main.operations), len(side.operations)
    look(instrumentation)
    stat.flush()
    after = len(main.operations), len(side.operations)
    assert (before[0] + 1, before[1] + 1) == after  # an event, and nothing that waits
    side.run()
    look(instrumentation)
    assert [] == events
    come(instrumentation)
    assert [(3.0, 2.0)] == [(window.sum, window.last) for window in windows(events)]


def test_a_device_that_fails(
    instrumentation: Any, events: list[monitel.Event], caplog: pytest.LogCaptureFixture
) -> None:
    """The loop does not hear of it from here; what was on it is lost, counted, and said."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(1.0))
    later.failure = RuntimeError("device-side assert triggered")
    look(instrumentation)
    stat.add(on_later(2.0))
    stat.add(3.0)
    stat.flush()
    assert [(1, 3.0)] == [(window.count, window.sum) for window in windows(events)]
    assert 2 == lost(instrumentation)
    assert ["device-side assert triggered" in message for message in caplog.messages] == [True]


def test_uninstrument_waits_and_gives_up(instrumentation: Any, events: list[monitel.Event]) -> None:
    """What is not there by then is lost, so that no window waits for ever; afterwards a tensor is read at once."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(1.0)
    stat.add(on_later(5.0))
    stat.flush()
    instrumentation.uninstrument()
    assert [(1, 1.0)] == [(window.count, window.sum) for window in windows(events)]
    assert [1] == [window.count for window in windows(events, "training.tensors.lost")]
    stat.add(on_later(7.0))
    assert 1 == later.syncs
    stat.flush()
    assert 7.0 == stat.get()[monitel.MEAN]


def test_what_cannot_come_later_is_read_at_once(instrumentation: Any) -> None:
    """Tensors of several elements are refused, as ever; those of a device without streams are waited for."""
    stat = monitel.Stat("loss", ALL, math.inf)
    for value in (on_later([1.0, 2.0]), on_later(1j)):
        with pytest.raises(TypeError, match="takes a real number"):
            stat.add(value)
    assert 0 == stat.count
    later.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_NEEDED", ("no_such_thing",))
        instrumentation._sources["tensors"].forget()
        stat.add(on_later(1.0))
    assert (1, 1) == (stat.count, later.syncs)


def test_within_a_transform_of_torch_func(instrumentation: Any) -> None:
    """There one tensor stands for many, and is refused as ever."""
    stat = monitel.Stat("loss", ALL, math.inf)
    instrumentation._sources["tensors"]._devices._rings[torch.device("cpu")] = None

    def add(x: Any) -> Any:
        with pytest.raises(TypeError, match="vmap"):
            stat.add(x)
        return x

    torch.vmap(add)(torch.ones(3))
    from torch._subclasses.fake_tensor import FakeTensorMode

    plain = monitel.torch._compat.plainness()
    with FakeTensorMode():
        assert not plain(torch.ones(()))
    assert plain(torch.nn.Parameter(torch.ones(())))
    assert plain(on_later(1.0))


@pytest.mark.parametrize("strict", [True, False])
def test_while_a_model_is_exported(instrumentation: Any, strict: bool) -> None:
    """It is run with tensors that have no numbers: nothing is added, and the program is that of the model."""
    stat = monitel.Stat("loss", ALL, math.inf)

    class Model(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            stat.add(x.sum())
            return x * 2

    program = torch.export.export(Model(), (torch.ones(3),), strict=strict)
    assert [2.0] * 3 == program.module()(torch.ones(3)).tolist()
    assert 0 == stat.count


def test_made_in_inference_mode(instrumentation: Any, events: list[monitel.Event]) -> None:
    """The pages that an evaluation is the first to need serve the training too."""
    stat = monitel.Stat("loss", ALL, math.inf)
    with torch.inference_mode():
        stat.add(on_later(1.0))
    stat.add(on_later(2.0))
    come(instrumentation)
    stat.flush()
    assert [3.0] == [window.sum for window in windows(events)]
    assert 0 == lost(instrumentation)


def test_threads(instrumentation: Any, events: list[monitel.Event]) -> None:
    """Several may add while others look and flush: every sample is in one window."""
    stat, over = monitel.Stat("loss", ALL, math.inf), threading.Event()
    answer()

    def add() -> None:
        for _ in range(2000):
            stat.add(on_later(1.0))

    def run() -> None:
        while not over.is_set():
            look(instrumentation)
            stat.flush()

    threads = [threading.Thread(target=each, daemon=True) for each in (add, add, run)]
    for thread in threads:
        thread.start()
    for thread in threads[:2]:
        thread.join(60)
    over.set()
    threads[2].join(60)
    stat.flush()
    assert [] == [thread for thread in threads if thread.is_alive()]
    assert (4000, 4000.0) == tuple(
        sum(getattr(window, name) for window in windows(events)) for name in ("count", "sum")
    )
    assert (0, 0) == (later.syncs, lost(instrumentation))


def test_a_signal_handler_that_flushes_in_the_middle(
    monkeypatch: pytest.MonkeyPatch, instrumentation: Any, events: list[monitel.Event]
) -> None:
    """What is being put is not fetched before it is there, and the flush waits for a bounded time."""
    stat, launch = monitel.Stat("loss", ALL, math.inf), later.launch

    def interrupted(operation: Any) -> None:
        monkeypatch.setattr(later, "launch", launch)
        monitel.flush()
        launch(operation)

    stat.add(on_later(1.0))
    monkeypatch.setattr(later, "launch", interrupted)
    stat.add(on_later(2.0))
    answer()
    stat.flush()
    for _ in range(3):
        look(instrumentation)
    assert (2, 3.0) == tuple(sum(getattr(each, name) for each in windows(events)) for name in ("count", "sum"))


def test_a_signal_handler_that_adds_in_the_middle(
    monkeypatch: pytest.MonkeyPatch, instrumentation: Any, events: list[monitel.Event]
) -> None:
    """Each number has a slot of its own."""
    stat, launch = monitel.Stat("loss", ALL, math.inf), later.launch

    def interrupted(operation: Any) -> None:
        monkeypatch.setattr(later, "launch", launch)
        stat.add(on_later(4.0))
        launch(operation)

    stat.add(on_later(1.0))
    monkeypatch.setattr(later, "launch", interrupted)
    stat.add(on_later(2.0))
    come(instrumentation)
    stat.flush()
    assert [(3, 7.0, 4.0)] == [(each.count, each.sum, each.last) for each in windows(events)]


def test_an_interrupt_in_the_middle(
    monkeypatch: pytest.MonkeyPatch, instrumentation: Any, events: list[monitel.Event]
) -> None:
    """Ctrl-C comes out of ``add``; the sample is lost, and no window waits for it."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(1.0))
    with monkeypatch.context() as patch:
        patch.setattr(later, "launch", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            stat.add(on_later(2.0))
    stat.add(on_later(4.0))
    come(instrumentation)
    stat.flush()
    assert [(2, 5.0)] == [(window.count, window.sum) for window in windows(events)]


def test_a_handler_that_fails(
    instrumentation: Any,
    events: list[monitel.Event],
    caplog: pytest.LogCaptureFixture,
    unraisable: list[BaseException | None],
) -> None:
    """The loop does not hear of it; it is said once, and all others hear of the window."""
    stats = [monitel.Stat("loss", ALL, math.inf) for _ in range(3)]
    for stat in stats:
        stat.add(on_later(1.0))
        stat._close()
    with monitel.register_event_handler(lambda _event: 1 // 0):
        come(instrumentation)
    assert 3 == len(windows(events))
    assert ["the thread of monitel.torch goes on after a failure"] == caplog.messages
    assert 2 == len(unraisable)


def test_a_device_that_never_answers(
    monkeypatch: pytest.MonkeyPatch, instrumentation: Any, events: list[monitel.Event]
) -> None:
    """After some minutes windows are logged with what is known, so that they do not pile up."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(3.0)
    stat.add(on_later(1.0))
    stat._close()
    look(instrumentation)
    assert [] == events
    monkeypatch.setattr(ring, "_HOPE_S", 0.0)
    look(instrumentation)
    assert ([(1, 3.0)], 1) == ([(each.count, each.sum) for each in windows(events)], lost(instrumentation))


def test_pages_that_a_device_may_still_use_are_not_freed(instrumentation: Any) -> None:
    """To free memory that CUDA has failed with, or in a forked child, would abort the process."""
    source, stat = instrumentation._sources["tensors"], monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(1.0))
    (first,) = source._devices._each()
    (page,) = first._used
    later.failure = RuntimeError("device-side assert triggered")
    look(instrumentation)
    assert page in ring._left_alone
    source.forget()
    assert first in devices._parents[-1].values()
    assert [] == source._devices._each()


def test_within_a_gradient_of_torch_func(instrumentation: Any) -> None:
    """There a tensor from outside cannot be copied, and is read at once."""
    stat, outside = monitel.Stat("loss", ALL, math.inf), on_later(7.0)

    def loss(x: Any) -> Any:
        stat.add(outside)
        return (x * x).sum()

    assert [2.0] == torch.func.grad(loss)(torch.ones(1)).tolist()
    stat.flush()
    assert (7.0, 0) == (stat.get()[monitel.MEAN], lost(instrumentation))


def test_the_first_add_beside_a_capture(monkeypatch: pytest.MonkeyPatch, instrumentation: Any) -> None:
    """No memory is taken while another thread captures a graph."""
    instrumentation.uninstrument()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    with monitel.torch.instrument(steps=False, failures=False, window_size=math.inf) as again:
        stat, graph = monitel.Stat("loss", ALL, math.inf), torch.cuda.CUDAGraph()
        graph.capture_begin()
        stat.add(on_later(1.0))
        assert (0, 1) == (later.launches, lost(again))
        graph.capture_end()
        stat.add(on_later(2.0))
        come(again)
        stat.flush()
        assert 2.0 == stat.get()[monitel.SUM]


def test_memory_of_the_host_that_copies_need_not_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is pinned; where there is none, any other will do."""
    empty = Mock(side_effect=[RuntimeError("no accelerator"), "plain"])
    monkeypatch.setattr(torch, "empty", empty)
    assert "plain" == ring._pinned((1, 2), torch.float64)
    assert [True, False] == [call.kwargs.get("pin_memory", False) for call in empty.call_args_list]


def test_an_event_with_a_number_on_the_device(
    instrumentation: Any, clock: monitel.testing.ManualClock, events: list[monitel.Event]
) -> None:
    """It is logged when the number has come, with the time, the step and the context of its making."""
    place = contextvars.ContextVar("place", default="elsewhere")
    seen: list[Any] = []
    monitel.set_step(3)
    with monitel.register_event_handler(lambda event: seen.append((event.step, place.get()))):
        made = clock.time_ns()
        token = place.set("the loop")
        monitel.emit("evaluated", {"split": "val"}, loss=on_later(0.5), right=on_later(7), done=on_later(True), n=1)
        place.reset(token)
        assert ([], 0, 3) == (events, later.syncs, later.launches)
        monitel.set_step(4)
        clock.advance(5)
        come(instrumentation)
    (event,) = events
    assert {"split": "val", "n": 1, "loss": 0.5, "right": 7, "done": True} == event.data
    assert [float, int, bool] == [type(event.data[key]) for key in ("loss", "right", "done")]
    assert round(made / 1e9) == round(event.timestamp.timestamp())
    assert [(3, "the loop")] == seen


def test_events_with_tensors_of_the_cpu(instrumentation: Any, events: list[monitel.Event]) -> None:
    """They are logged at once, with what ``item()`` gives; one of several elements is refused."""
    monitel.emit("evaluated", {"loss": torch.tensor(0.5)}, right=torch.tensor([7]))
    assert [{"loss": 0.5, "right": 7}] == [event.data for event in events]
    for wrong in (torch.ones(2), on_later([1.0, 2.0])):
        with pytest.raises(TypeError, match="Event data 'loss': a value must be a str, int, float or bool"):
            monitel.emit("evaluated", loss=wrong)


def test_a_wrong_event_is_refused_at_once(instrumentation: Any, events: list[monitel.Event]) -> None:
    """Nothing is asked of the device then."""
    with pytest.raises(TypeError, match="Event name must be a str"):
        monitel.emit(None, loss=on_later(1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Event data must be a mapping"):
        monitel.emit("x", 3, loss=on_later(1.0))  # type: ignore[arg-type]
    assert ([], 0) == (events, later.launches)


def test_an_event_whose_number_is_lost(instrumentation: Any, events: list[monitel.Event]) -> None:
    """It is logged without it."""
    monitel.emit("evaluated", loss=on_later(1.0), epoch=2)
    instrumentation.uninstrument()
    assert [{"epoch": 2}] == [event.data for event in events if event.window is None]


SCRIPT = f"""
sys.path.insert(0, {str(Path(__file__).parent)!r})
import math
import torch, monitel.torch
from later_device import later, on_later, start

start()
monitel.register_event_handler(lambda event: say(os.getpid() == parent, event.window.name, event.window.sum))
parent = os.getpid()
instrumentation = monitel.torch.instrument(waits=False, monitor=False, compilation=False, failures=False)
monitel.torch.devices._PATIENCE_S = 0.2
stat = Stat("loss", [SUM], math.inf)
stat.add(on_later(1.0))
stat.add(on_later(2.0))
"""


def test_at_exit(run_script: Any) -> None:
    """The device is waited for; what it still does not give is said, and windows come with what there is."""
    answering = "later.answers = True; monitel.torch.devices._PATIENCE_S = 20"
    assert ["True loss 3.0"] == run_script(SCRIPT + answering).lines
    ended = run_script(SCRIPT + "stat.add(5.0)")
    assert ["True loss 5.0", "True training.tensors.lost 2.0"] == sorted(ended.lines)
    assert "values of tensors are lost: the device had not come to them at the end" in ended.stderr


def test_in_a_forked_child(run_script: Any) -> None:
    """What the parent has on the device is the parent's; the child's own is fetched by its flush."""
    ended = run_script(
        SCRIPT
        + """
devices = instrumentation._sources["tensors"]._devices
ring, = devices._each()
held, over = threading.Event(), threading.Event()

def hold():  # in another thread, which the child does not have
    with ring._lock, devices._lock, devices._turning, devices._captures._lock, monitel.late._lock:
        held.set()
        over.wait(20)

stat.flush()  # a window that is held
stat.add(on_later(4.0))
threading.Thread(target=hold).start()
held.wait(20)
child = os.fork()
over.set()
later.answers = True
monitel.torch.devices._PATIENCE_S = 20
if not child:
    stat.add(on_later(10.0))
    within(20, stat.flush)
    os._exit(0)
os.waitpid(child, 0)
stat.flush()
"""
    )
    assert ["False loss 10.0", "True loss 3.0", "True loss 4.0"] == sorted(ended.lines)
