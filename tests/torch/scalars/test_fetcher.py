"""Samples on a device: fetched without waiting, complete, and in the right window.

The device of these tests executes nothing before the test says so.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

torch: Any = pytest.importorskip("torch", reason="has tensors on a device: torch is not installed")

from tests.torch.scalars.device_scalars import ALL, Scalars, windows  # noqa: E402
from tests.torch.scalars.later_device import Stream, later, on_later  # noqa: E402

from monitel.torch._compat import plain_tensor_check  # noqa: E402  after the check for torch
from monitel.torch.scalars import fetcher  # noqa: E402
from monitel.torch.scalars.compiled_adds import CompiledAdds  # noqa: E402

pytestmark = pytest.mark.torch
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.fixture
def clock() -> Iterator[monitel.testing.ManualClock]:
    """Provide the clock of the Stats that a test creates."""
    with monitel.testing.ManualClock() as clock:
        yield clock


def test_add_is_one_launch_and_does_not_wait(device: Scalars) -> None:
    """A sample counts immediately. The device has executed nothing by then, and was not queried."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(1.0))
    later.launches = 0
    for number in range(100):
        stat.add(on_later(float(number)))
    assert (101, 100, 0, 0) == (stat.count, later.launches, later.syncs, later.queries)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("clock")
def test_window_equals_that_of_synchronous_samples(device: Scalars, events: list[monitel.Event], dtype: Any) -> None:
    """Every number of the window is equal for each dtype, even if the tensor is changed after ``add()``."""
    stat, reference = (monitel.Stat(name, ALL, 60.0) for name in ("loss", "reference"))
    for number in (0.1, 7.0, 3.25, 0.0):
        for shape in ((), (1, 1)):
            loss = torch.full(shape, number, dtype=dtype)
            reference.add(loss.item())
            on_device = on_later(loss.tolist(), dtype)
            stat.add(on_device)
            on_device.fill_(99)
    device.deliver()
    stat.flush()
    reference.flush()
    ours, theirs = windows(events)[0], windows(events, "reference")[0]
    assert repr(theirs).split("start_ns", 1)[1] == repr(ours).split("start_ns", 1)[1]
    assert 0 == later.syncs


def test_loss_with_gradient_keeps_its_graph(device: Scalars) -> None:
    """Adding a tensor that requires a gradient neither changes nor keeps its graph."""
    stat = monitel.Stat("loss", ALL, math.inf)
    loss = on_later(2.0).requires_grad_()
    stat.add(loss)
    device.deliver()
    stat.flush()
    assert 2.0 == stat.get()[monitel.MEAN]
    assert loss.requires_grad


def test_window_has_the_times_and_steps_of_add(
    device: Scalars, clock: monitel.testing.ManualClock, events: list[monitel.Event]
) -> None:
    """Start, end and steps are those of ``add()``, even if the numbers arrive after the next window has begun."""
    stat = monitel.Stat("loss", ALL, 60.0)
    for step in (3, 4):
        monitel.set_step(step)
        stat.add(on_later(float(step)))
    clock.advance(65)
    monitel.set_step(8)
    stat.add(on_later(8.0))
    assert [] == events
    clock.advance(10)
    device.deliver()
    (window,) = windows(events)
    end_ns = clock.time_ns() - 15_000_000_000
    assert (end_ns - 60_000_000_000, end_ns, 2, 7.0, 3, 4) == (
        *(window.start_ns, window.end_ns, window.count, window.sum),
        *(window.first_step, window.last_step),
    )


def test_silent_device_delays_one_flush_only(device: Scalars, events: list[monitel.Event]) -> None:
    """After a flush has timed out, the next ones do not wait; numbers that arrive later are logged later."""
    stats = [monitel.Stat("loss", ALL, math.inf) for _ in range(3)]
    for stat in stats:
        stat.add(on_later(1.0))
    stats[0].flush()
    queries = later.queries
    stats[1].flush()
    stats[2].flush()
    assert queries > 2
    assert [] == events
    device.deliver()
    assert [1.0] * 3 == [window.sum for window in windows(events)]
    device.answer()
    stats[0].add(on_later(2.0))
    monitel.flush()
    assert 4 == len(windows(events))
    assert 0 == later.syncs


def test_samples_beyond_max_samples_are_discarded_immediately(device: Scalars, events: list[monitel.Event]) -> None:
    """A discarded sample is not copied."""
    stat = monitel.Stat("loss", ALL, math.inf, 2)
    for number in range(4):
        stat.add(on_later(float(number)))
    assert (2, 2, 0) == (stat.discarded, later.launches, stat.count)
    device.deliver()
    assert [(2, 1.0)] == [(window.count, window.sum) for window in windows(events)]


def test_numbers_go_to_the_stream_of_add(device: Scalars, events: list[monitel.Event]) -> None:
    """A number is copied on the current stream. Fetching waits for that stream and blocks none."""
    side, main = Stream(), later.current
    stat, numbers = monitel.Stat("loss", ALL, math.inf), [on_later(1.0), on_later(2.0)]
    stat.add(numbers[0])
    with later.stream(side):
        stat.add(numbers[1])
    assert [(numbers[0].host.data_ptr(), main), (numbers[1].host.data_ptr(), side)] == later.recorded
    before = len(main.operations), len(side.operations)
    device.advance()
    stat.flush()
    after = len(main.operations), len(side.operations)
    assert (before[0] + 1, before[1] + 1) == after  # an event, and no operation that waits
    side.run()
    device.advance()
    assert [] == events
    device.deliver()
    assert [(3.0, 2.0)] == [(window.sum, window.last) for window in windows(events)]


def test_fetching_uses_only_the_device_of_the_numbers(device: Scalars, events: list[monitel.Event]) -> None:
    """In a thread with another current device, as in new threads of all ranks but the first, that one stays unused."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(3.0))

    def fetch() -> None:
        with later.device(1):
            device.deliver()
            assert 1 == later.current_device()

    thread = threading.Thread(target=fetch)
    thread.start()
    thread.join()
    stat.flush()
    assert [3.0] == [window.sum for window in windows(events)]
    assert {0} == later.used


def test_remove_waits_and_then_gives_up(device: Scalars, events: list[monitel.Event]) -> None:
    """Missing numbers are lost, so that no window waits forever. Afterwards tensors are read synchronously."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(1.0)
    stat.add(on_later(5.0))
    stat.flush()
    device.hooks.remove()
    assert [(1, 1.0)] == [(window.count, window.sum) for window in windows(events)]
    assert [1] == [window.count for window in windows(events, "training.tensors.lost")]
    stat.add(on_later(7.0))
    assert 1 == later.syncs
    stat.flush()
    assert 7.0 == stat.get()[monitel.MEAN]


def test_other_tensors_are_read_synchronously_or_refused(device: Scalars) -> None:
    """Several elements and complex numbers raise TypeError; tensors of a device without streams are read."""
    stat = monitel.Stat("loss", ALL, math.inf)
    for value in (on_later([1.0, 2.0]), on_later(1j)):
        with pytest.raises(TypeError, match="takes a real number"):
            stat.add(value)
    assert 0 == stat.count
    later.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetcher, "_REQUIRED", ("no_such_thing",))
        device.hooks.reset()
        stat.add(on_later(1.0))
    assert (1, 1) == (stat.count, later.syncs)


def test_add_within_vmap_is_refused(device: Scalars) -> None:
    """Within a transform of torch.func, one tensor stands for many, so ``add()`` raises torch's error."""
    stat = monitel.Stat("loss", ALL, math.inf)
    device.fetcher._rings[torch.device("cpu")] = None

    def add(x: Any) -> Any:
        with pytest.raises(TypeError, match="vmap"):
            stat.add(x)
        return x

    torch.vmap(add)(torch.ones(3))


def test_add_within_grad_reads_synchronously(device: Scalars) -> None:
    """Within torch.func.grad, a tensor from outside cannot be copied."""
    stat, outside = monitel.Stat("loss", ALL, math.inf), on_later(7.0)

    def loss(x: Any) -> Any:
        stat.add(outside)
        return (x * x).sum()

    assert [2.0] == torch.func.grad(loss)(torch.ones(1)).tolist()
    stat.flush()
    assert (7.0, 0) == (stat.get()[monitel.MEAN], device.lost)


def test_only_tensors_that_hold_their_numbers_are_plain() -> None:
    """A parameter is plain, and a tensor on the device; a fake tensor is not."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    is_plain = plain_tensor_check()
    with FakeTensorMode():
        assert not is_plain(torch.ones(()))
    assert is_plain(torch.nn.Parameter(torch.ones(())))
    assert is_plain(on_later(1.0))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.usefixtures("device")
def test_exported_model_does_not_add(strict: bool) -> None:
    """torch.export runs the model with tensors that hold no numbers: nothing is added, and the program is the same."""
    stat, compiled_adds = monitel.Stat("loss", ALL, math.inf), CompiledAdds()

    class Model(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            stat.add(x.sum())
            return x * 2

    compiled_adds.install()
    program = torch.export.export(Model(), (torch.ones(3),), strict=strict)
    compiled_adds.remove()
    assert [2.0] * 3 == program.module()(torch.ones(3)).tolist()
    assert 0 == stat.count


def test_pages_made_in_inference_mode_serve_training(device: Scalars, events: list[monitel.Event]) -> None:
    """An evaluation may be the first to need pages."""
    stat = monitel.Stat("loss", ALL, math.inf)
    with torch.inference_mode():
        stat.add(on_later(1.0))
    stat.add(on_later(2.0))
    device.deliver()
    stat.flush()
    assert [3.0] == [window.sum for window in windows(events)]
    assert 0 == device.lost


def test_threads_lose_no_sample(device: Scalars, events: list[monitel.Event]) -> None:
    """Two threads add while another one fetches and flushes: every sample is in one window."""
    stat, over = monitel.Stat("loss", ALL, math.inf), threading.Event()
    device.answer()

    def add() -> None:
        for _ in range(2000):
            stat.add(on_later(1.0))

    def run() -> None:
        while not over.is_set():
            device.advance()
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
    assert (0, 0) == (later.syncs, device.lost)


def test_signal_handler_may_flush_during_add(
    monkeypatch: pytest.MonkeyPatch, device: Scalars, events: list[monitel.Event]
) -> None:
    """A number that is being put is not fetched before it is there, and the flush waits for a limited time."""
    stat, launch = monitel.Stat("loss", ALL, math.inf), later.launch

    def interrupted(operation: Any) -> None:
        monkeypatch.setattr(later, "launch", launch)
        monitel.flush()
        launch(operation)

    stat.add(on_later(1.0))
    monkeypatch.setattr(later, "launch", interrupted)
    stat.add(on_later(2.0))
    device.answer()
    stat.flush()
    for _ in range(3):
        device.advance()
    assert (2, 3.0) == tuple(sum(getattr(each, name) for each in windows(events)) for name in ("count", "sum"))


def test_signal_handler_may_add_during_add(
    monkeypatch: pytest.MonkeyPatch, device: Scalars, events: list[monitel.Event]
) -> None:
    """Each number has its slot."""
    stat, launch = monitel.Stat("loss", ALL, math.inf), later.launch

    def interrupted(operation: Any) -> None:
        monkeypatch.setattr(later, "launch", launch)
        stat.add(on_later(4.0))
        launch(operation)

    stat.add(on_later(1.0))
    monkeypatch.setattr(later, "launch", interrupted)
    stat.add(on_later(2.0))
    device.deliver()
    stat.flush()
    assert [(3, 7.0, 4.0)] == [(each.count, each.sum, each.last) for each in windows(events)]


def test_keyboard_interrupt_during_add_loses_that_sample_only(
    monkeypatch: pytest.MonkeyPatch, device: Scalars, events: list[monitel.Event]
) -> None:
    """``add()`` raises KeyboardInterrupt, and the window does not wait for the sample."""
    stat = monitel.Stat("loss", ALL, math.inf)
    stat.add(on_later(1.0))
    with monkeypatch.context() as patch:
        patch.setattr(later, "launch", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            stat.add(on_later(2.0))
    stat.add(on_later(4.0))
    device.deliver()
    stat.flush()
    assert [(2, 5.0)] == [(window.count, window.sum) for window in windows(events)]


def test_handler_that_raises_is_logged_once(
    device: Scalars,
    clock: monitel.testing.ManualClock,
    events: list[monitel.Event],
    caplog: pytest.LogCaptureFixture,
    unraisable: list[BaseException | None],
) -> None:
    """Its exception does not reach the loop, and the other handlers receive every window."""
    stats = [monitel.Stat("loss", ALL, 60.0) for _ in range(3)]
    for stat in stats:
        stat.add(on_later(1.0))
    clock.advance(61)
    monitel.close_expired_windows()
    with monitel.register_event_handler(lambda _event: 1 // 0):
        device.deliver()
    assert 3 == len(windows(events))
    assert ["an event handler raised in the thread that fetches tensors"] == caplog.messages
    assert 2 == len(unraisable)
