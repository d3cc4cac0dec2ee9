"""Stages on a device, of which the test knows the time that each operation takes. The host takes no time."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.torch.later_device import idle, later

import monitel
import monitel.torch

KNOWN = {"optimizer": 1.0, "other": 2.0, "data": 3.0, "forward": 4.0, "backward": 5.0}
NAME = "training.stage.device.duration"


class Own(torch.autograd.Function):  # type: ignore[misc]
    """A backward that takes 5 ms on the device, and perhaps 7 ms more at its end, as that of several ranks."""

    @staticmethod
    def forward(context: Any, x: Any, waits: bool) -> Any:
        context.waits = waits
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        later.work(KNOWN["backward"])
        if context.waits:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: later.work(7))
        return gradient, None


class Placed(torch.nn.Parameter):  # type: ignore[misc]
    """A parameter on the second device. Its number is on the CPU."""

    @property
    def device(self) -> Any:
        return torch.device("later", 1)


class Job:
    """A training loop whose stages take known times on the device.

    Args:
        parameter: The parameter of the model; None for one that is on the CPU.
        options: Options of instrument().
    """

    def __init__(self, parameter: Any = None, **options: Any) -> None:
        self.events: list[monitel.Event] = []
        self.handle = monitel.register_event_handler(self.events.append)
        self.running = monitel.torch.instrument(
            **{"sources": "+stages_on_device,-waits,-compilation", "window_size": 1e6, **options}
        )
        self.parameter = torch.nn.Parameter(torch.ones(1)) if parameter is None else parameter
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.0)
        self.batches = iter(monitel.torch.batches(self._make()))

    def _make(self) -> Iterator[int]:
        while True:
            later.work(KNOWN["data"])
            yield 1

    def forward_and_backward(self, waits: bool = False) -> None:
        later.work(KNOWN["forward"])
        Own.apply(self.parameter, waits).sum().backward()

    def backward(self, micro_batches: int = 1, waits: bool = False) -> None:
        for _ in range(micro_batches):
            next(self.batches)
            self.forward_and_backward(waits)

    def optimize(self) -> None:
        later.work(KNOWN["optimizer"])
        self.optimizer.step()
        later.work(KNOWN["other"])

    def step(self, micro_batches: int = 1, waits: bool = False) -> None:
        self.backward(micro_batches, waits)
        self.optimize()

    def end(self) -> dict[str, float]:
        """End the instrumentation, and return the mean of each stage in milliseconds."""
        later.answers = True
        self.running.uninstrument()
        monitel.unregister_event_handler(self.handle)
        return self.means()

    def windows(self, name: str = NAME) -> list[monitel.Window]:
        return [event.window for event in self.events if event.window is not None and event.window.name == name]

    @property
    def cycles(self) -> int:
        (number,) = {
            sum(each.count for each in self.windows() if each.attributes["training.stage"] == stage) for stage in KNOWN
        }
        return number

    @property
    def lost(self) -> int:
        return sum(each.count for each in self.windows("training.tensors.lost"))

    def means(self) -> dict[str, float]:
        """Return the means of the last windows, to the nanosecond."""
        return {
            str(each.attributes["training.stage"]): round(1e3 * each.sum / each.count, 6) for each in self.windows()
        }


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with idle():
        yield


def test_stages_take_the_time_of_the_device() -> None:
    """Each stage has the time of the operations that it has queued, and nothing waits for the device."""
    job = Job()
    for _ in range(5):
        job.step()
    assert KNOWN == job.end()
    assert (3, 0, 0) == (job.cycles, job.lost, later.syncs)  # the device is known after the first step


def test_values_count_in_the_window_of_their_cycle() -> None:
    """A window waits for the device, and then has exactly its own cycles."""
    with monitel.testing.ManualClock() as clock:
        job = Job(window_size=60.0)
        for _ in range(4):
            job.step()
        clock.advance(60)
        job.step()  # its cycle is in the second window, and closes the first one
        assert [] == job.windows()
        assert KNOWN == job.end()
    assert [2] * 5 + [1] * 5 == [each.count for each in job.windows()]


def test_cycles_of_all_kinds() -> None:
    """Micro-batches, an evaluation, several optimizers, and waiting for other ranks."""
    job = Job()
    for _ in range(3):
        job.step(64)
    assert {**KNOWN, "data": 192.0, "forward": 256.0, "backward": 320.0} == job.end()
    job = Job()
    for _ in range(3):
        job.step()
        with torch.no_grad():
            next(job.batches)
            later.work(100)
    assert {**KNOWN, "other": 105.0} == job.end()
    job, others = Job(), [torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.0) for _ in range(50)]
    for _ in range(3):
        job.step()
        for each in others:
            later.work(1)
            each.step()
        later.work(KNOWN["other"])
    assert {**KNOWN, "optimizer": 53.0} == job.end()


def test_events_may_be_on_several_streams() -> None:
    """Times are those of the device. Batches of a stream that is ahead take none, and no stage is negative."""
    job, side = Job(), later.Stream()  # type: ignore[attr-defined]
    for _ in range(3):
        with later.stream(side):
            job.backward()
        later.run()
        job.optimize()
        later.run()
    assert KNOWN == job.end()
    later.reset()
    job, ready = Job(), iter(monitel.torch.batches(range(4)))
    for _ in range(4):
        with later.stream(side):
            next(ready)
        side.run()
        job.forward_and_backward()
        job.optimize()
    assert {**KNOWN, "other": 0.0, "data": 0.0, "forward": 2.0 + 4.0} == job.end()


def test_device_is_that_of_the_parameters() -> None:
    """A job need not make its device the current one. No other device is used, whose streams would be idle."""
    later.place = 1
    job = Job(Placed(torch.ones(1)))
    for _ in range(4):
        job.step()
    assert 0 == later.current_device()
    assert KNOWN == job.end()
    assert {1} == later.used


def test_cycles_beyond_the_limits_are_counted_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    """A device that is 512 cycles behind, or a cycle with more than 1,024 events. Later cycles are right again."""
    job = Job()
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        for _ in range(1200):
            job.step()
        later.answers = True
        monitel.flush()
        job.step(500)
        for _ in range(3):
            job.step()
    assert KNOWN == job.end()
    assert (1202, 5 * 1202) == (job.cycles + job.lost // 5, 5 * job.cycles + job.lost)
    assert 500 < job.cycles < 1000
    assert 1 == caplog.text.count("the device is too far behind")


def test_short_cycles_are_not_lost_while_the_device_keeps_up() -> None:
    """A loop may have more cycles between two polls, which are a second apart, than may be pending."""
    job = Job()
    later.answers = True
    for _ in range(1200):
        job.step()
    assert KNOWN == job.end()
    assert (1198, 0) == (job.cycles, job.lost)


def test_without_a_device_there_are_no_samples(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an accelerator the reason is in ``missing``. A device that the job does not use stays uninitialized."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
        with monitel.torch.instrument(sources="+stages_on_device", window_size=1e6) as running:
            assert "stages" in running.sources
            assert {"stages_on_device": "this torch was built for no accelerator"} == running.missing
    monkeypatch.setattr(type(later), "is_initialized", lambda _: False)
    job = Job()
    for _ in range(3):
        job.step()
    assert {} == job.end()
    assert (0, set()) == (job.lost, later.used)
    with pytest.raises(ValueError, match="stages_on_device requires stages"):
        monitel.torch.instrument(sources="+stages_on_device,-stages")
    caplog.clear()  # the records have exceptions


def test_waiting_for_other_ranks_is_sync() -> None:
    """In a group of several ranks, what follows the own gradients is the wait for those of the others."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        job = Job()
        for _ in range(3):
            job.step(waits=True)
        assert {**KNOWN, "sync": 7.0} == job.end()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("backend", "source", "warnings"),
    [("cuda:nccl", None, 1), ("cpu:gloo", None, 0), ("cuda:nccl", "+stages_on_device", 0)],
)
def test_job_on_nccl_has_a_warning_of_what_shows_late_ranks(
    backend: str, source: str | None, warnings: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, unless the stages are measured on the device."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: backend)
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    try:
        with monitel.torch.instrument(sources=source, window_size=1e6):
            for _ in range(3):
                parameter.sum().backward()
                optimizer.step()
    finally:
        torch.distributed.destroy_process_group()
    assert warnings == sum("MONITEL_SOURCES=+stages_on_device" in each.getMessage() for each in caplog.records)
    caplog.clear()
