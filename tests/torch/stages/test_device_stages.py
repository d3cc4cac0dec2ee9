"""Stages on a device, of which the test knows the time that each operation takes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

from tests.torch.scalars.later_device import later, start  # noqa: E402  after the check for torch

import monitel.torch  # noqa: E402
from monitel.torch.scalars import fetcher  # noqa: E402
from monitel.torch.stages import device_clock, device_stages  # noqa: E402

pytestmark = pytest.mark.torch

KNOWN = {"optimizer": 1.0, "other": 2.0, "data": 3.0, "forward": 4.0, "backward": 5.0}
NAME = "training.stage.device.duration"


class Own(torch.autograd.Function):  # type: ignore[misc]
    """A backward that takes 5 ms on the device."""

    @staticmethod
    def forward(_context: Any, x: Any) -> Any:  # noqa: D102  documented in the class
        return x.clone()

    @staticmethod
    def backward(_context: Any, gradient: Any) -> Any:  # noqa: D102  documented in the class
        later.work(KNOWN["backward"])
        return gradient


class Job:
    """A training loop whose stages take known times on the device, and no time on the host.

    Args:
        parameter: The parameter of the model; None for one that is on the CPU.
        options: Options of instrument().
    """

    def __init__(self, parameter: Any = None, **options: Any) -> None:
        self.events: list[monitel.Event] = []
        self.handle = monitel.register_event_handler(self.events.append)
        self.running = monitel.torch.instrument(
            **{"stages_on_device": True, "window_size": 1e6, "waits": False, "compilation": False, **options}
        )
        self.parameter = torch.nn.Parameter(torch.ones(1)) if parameter is None else parameter
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.0)
        self.batches = iter(monitel.torch.batches(self._make()))

    def _make(self) -> Iterator[int]:
        while True:
            later.work(KNOWN["data"])
            yield 1

    def backward(self, micro_batches: int = 1) -> None:
        """Ask for batches, and run forward and backward for each."""
        for _ in range(micro_batches):
            next(self.batches)
            later.work(KNOWN["forward"])
            Own.apply(self.parameter).sum().backward()

    def step(self, micro_batches: int = 1) -> None:
        """Make a training step."""
        self.backward(micro_batches)
        later.work(KNOWN["optimizer"])
        self.optimizer.step()
        later.work(KNOWN["other"])

    def end(self) -> dict[str, tuple[int, float]]:
        """End the instrumentation; return the number of cycles and their mean in milliseconds, by stage."""
        later.answers = True
        self.running.uninstrument()
        monitel.unregister_event_handler(self.handle)
        return self.stages()

    def stages(self) -> dict[str, tuple[int, float]]:
        """Return what was logged so far, in the last window of each stage."""
        windows = [event.window for event in self.events if event.window is not None and event.window.name == NAME]
        return {str(each.attributes["training.stage"]): (each.count, 1e3 * each.sum / each.count) for each in windows}


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide an idle device. The thread that reads it polls only while a flush waits."""
    start()
    later.reset()
    monkeypatch.setattr(fetcher, "_POLL_S", 3600.0)
    monkeypatch.setattr(fetcher, "_WAIT_S", 30.0)
    yield
    later.reset()


def known(**changes: float) -> dict[str, float]:
    """Return the known milliseconds of each stage, with changes."""
    return {**KNOWN, **changes}


def means(stages: dict[str, tuple[int, float]]) -> dict[str, Any]:
    """Return the means alone."""
    return {stage: pytest.approx(mean, abs=1e-6) for stage, (_, mean) in stages.items()}


def test_stages_take_the_time_of_the_device() -> None:
    """Each stage has the time of the operations that it has queued, and nothing waits for the device."""
    job = Job()
    for _ in range(5):
        job.step()
    assert 0 == later.syncs
    found = job.end()
    assert known() == means(found)
    assert {3} == {count for count, _ in found.values()}
    assert 0 == later.syncs


def test_values_count_in_the_window_of_their_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window waits for the device, and then has exactly its own cycles."""
    monkeypatch.setattr(fetcher, "_WAIT_S", 0.0)
    with monitel.testing.ManualClock() as clock:
        job = Job(window_size=60.0)
        for _ in range(4):
            job.step()
        clock.advance(60)
        job.step()  # its cycle is in the second window, and closes the first one
        assert {} == job.stages()
        later.run()
        instrumented = job.running._sources["stages_on_device"]._fetcher  # type: ignore[attr-defined]
        instrumented.advance()
        assert {2} == {count for count, _ in job.stages().values()}
        assert known() == means(job.stages())
        assert {1} == {count for count, _ in job.end().values()}


def test_micro_batches_add_up() -> None:
    """A cycle may have 64 micro-batches."""
    job = Job()
    for _ in range(3):
        job.step(64)
    assert known(data=192.0, forward=256.0, backward=320.0) == means(job.end())


def test_an_evaluation_is_other() -> None:
    """Batches that are asked for with gradients disabled do not train."""
    job = Job()
    for _ in range(3):
        job.step()
        with torch.no_grad():
            next(job.batches)
            later.work(100)
    assert known(other=105.0) == means(job.end())


def test_without_batches_all_before_backward_is_forward() -> None:
    """No boundary tells where making batches ends."""
    job = Job()
    for _ in range(3):
        later.work(KNOWN["forward"])
        Own.apply(job.parameter).sum().backward()
        later.work(KNOWN["optimizer"])
        job.optimizer.step()
    assert {"optimizer": 1.0, "other": 0.0, "data": 0.0, "forward": 4.0, "backward": 5.0} == means(job.end())


def test_several_optimizers_are_one_stage() -> None:
    """Up to the end of the last one, however many there are."""
    job = Job()
    others = [torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.0) for _ in range(50)]
    for _ in range(3):
        job.step()
        for each in others:
            later.work(1)
            each.step()
        later.work(KNOWN["other"])
    assert known(optimizer=53.0) == means(job.end())


def test_a_closure_is_cut_at_its_backward() -> None:
    """The optimizer's own work after the closure begins the next cycle."""
    job = Job()

    def closure() -> None:
        job.backward()
        later.work(KNOWN["optimizer"])

    for _ in range(4):
        job.optimizer.step(closure)
        later.work(KNOWN["other"])
    assert known() == means(job.end())


def test_current_stream_may_change() -> None:
    """Events of a cycle may be on different streams; times are those of the device."""
    job = Job()
    side = later.Stream()  # type: ignore[attr-defined]
    for _ in range(3):
        with later.stream(side):
            job.backward()
        later.run()
        later.work(KNOWN["optimizer"])
        job.optimizer.step()
        later.work(KNOWN["other"])
        later.run()
    assert known() == means(job.end())


class Placed(torch.nn.Parameter):  # type: ignore[misc]
    """A parameter on the second device. Its number is on the CPU."""

    @property
    def device(self) -> Any:
        """Return the device."""
        return torch.device("later", 1)


def test_the_device_is_that_of_the_parameters() -> None:
    """A job need not make its device the current one. No other device is used, whose streams would be idle."""
    later.place = 1
    job = Job(Placed(torch.ones(1)))
    for _ in range(4):
        job.step()
    assert 0 == later.current_device()
    assert known() == means(job.end())
    assert {1} == later.used


def test_a_device_that_cannot_be_found_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop gets no exception. The device is found once it answers."""
    job = Job()
    with monkeypatch.context() as patch:
        patch.setattr(type(later), "current_device", lambda _: 1 // 0)
        job.optimizer.step()
        clock = job.running._sources["stages_on_device"]._clock  # type: ignore[attr-defined]
        assert clock.mark() == (None, "unused")
    for _ in range(3):
        job.step()
    assert known() == means(job.end())


def test_batches_that_are_fetched_ahead_take_no_time() -> None:
    """No stage becomes negative if their stream has reached them before the last cycle ends on the other one."""
    job = Job()
    side = later.Stream()  # type: ignore[attr-defined]
    ready = iter(monitel.torch.batches(range(4)))
    for _ in range(4):
        with later.stream(side):
            next(ready)
        side.run()
        later.work(KNOWN["forward"])
        Own.apply(job.parameter).sum().backward()
        later.work(KNOWN["optimizer"])
        job.optimizer.step()
        later.work(KNOWN["other"])
    assert known(other=0.0, data=0.0, forward=KNOWN["other"] + KNOWN["forward"]) == means(job.end())


def test_a_slow_device_loses_what_exceeds_the_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Events are bounded. Cycles without events are counted as lost, and logged once; later ones are right again."""
    monkeypatch.setattr(device_clock, "EVENTS", 30)
    job = Job()
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        for _ in range(20):
            job.step()
    later.run()
    source: Any = job.running._sources["stages_on_device"]
    source._fetcher.advance()
    for _ in range(4):
        job.step()
    found = job.end()
    assert known() == means(found)
    complete = {count for count, _ in found.values()}
    lost = sum(
        event.window.count for event in job.events if event.window and event.window.name == "training.tensors.lost"
    )
    assert len(complete) == 1
    assert 22 * 5 == 5 * complete.pop() + lost
    assert 1 == caplog.text.count("the device is too far behind")


def test_an_endless_cycle_keeps_a_bounded_number_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward after backward without an optimizer."""
    monkeypatch.setattr(device_stages, "_MARKS", 40)
    job = Job()
    job.step()
    job.backward(500)
    clock = job.running._sources["stages_on_device"]._clock  # type: ignore[attr-defined]
    assert len(clock._events) < 60
    later.work(KNOWN["optimizer"])
    job.optimizer.step()  # this cycle is lost
    later.work(KNOWN["other"])
    job.step()
    found = job.end()
    assert known() == means(found)
    assert {1} == {count for count, _ in found.values()}


def test_nothing_is_recorded_in_a_graph_capture() -> None:
    """An event would become part of the graph."""
    job = Job()
    job.step()
    later.capturing = True
    before = later.launches
    Own.apply(job.parameter).sum().backward()
    assert 1 == later.launches - before  # the job's own
    assert [] == [each for each in later.streams for _ in each.operations if later.capturing is False]
    later.capturing = False
    job.optimizer.step()
    for _ in range(3):
        job.step()
    assert 2 <= job.end()["forward"][0]


def test_a_device_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The loop gets no exception; the cycles are counted as lost."""
    job = Job()
    for _ in range(3):
        job.step()
    later.failure = RuntimeError("device lost")
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        next(job.running._sources["stages_on_device"]._fetcher.rings().__iter__()).advance()  # type: ignore[attr-defined]
        job.parameter.sum().backward()
        job.optimizer.step()
    job.running.uninstrument()
    monitel.unregister_event_handler(job.handle)
    assert "the device failed: device lost" in caplog.text
    later.failure = None


def test_without_an_accelerator_it_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A variable that is set for a whole cluster breaks no job on a machine without a device."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
    with monitel.torch.instrument(stages_on_device=True, window_size=1e6) as running:
        assert "stages" in running.sources
        assert {"stages_on_device": "this torch was built for no accelerator"} == running.missing


def test_a_device_that_the_job_does_not_use_stays_uninitialized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither events nor losses."""
    monkeypatch.setattr(type(later), "is_initialized", lambda _: False)
    job = Job()
    for _ in range(3):
        job.step()
    clock = job.running._sources["stages_on_device"]._clock  # type: ignore[attr-defined]
    assert [] == clock._events
    assert {} == job.end()
    assert [] == [event for event in job.events if event.window and event.window.name == "training.tensors.lost"]


def test_it_requires_the_stages() -> None:
    """An option without effect is an error."""
    with pytest.raises(ValueError, match="stages_on_device requires stages=True"):
        monitel.torch.instrument(stages_on_device=True, stages=False)


class Reduced(torch.autograd.Function):  # type: ignore[misc]
    """Waits for other ranks at the end of backward, as DistributedDataParallel does."""

    @staticmethod
    def forward(_context: Any, x: Any) -> Any:  # noqa: D102  documented in the class
        return x.clone()

    @staticmethod
    def backward(_context: Any, gradient: Any) -> Any:  # noqa: D102  documented in the class
        torch.autograd.Variable._execution_engine.queue_callback(lambda: later.work(7))
        return gradient


def test_waiting_for_other_ranks_is_sync() -> None:
    """In a group of several ranks, what follows the own gradients is the wait for those of the others."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        job = Job()
        for _ in range(3):
            next(job.batches)
            later.work(KNOWN["forward"])
            Own.apply(Reduced.apply(job.parameter)).sum().backward()
            later.work(KNOWN["optimizer"])
            job.optimizer.step()
            later.work(KNOWN["other"])
        assert known(sync=7.0) == means(job.end())
    finally:
        torch.distributed.destroy_process_group()
