"""Stages on a device, of which the test knows the milliseconds of each operation. The host takes no time."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.torch.known_work import STEP, Work, sgd, windows_of
from tests.torch.later_device import idle, later

import monitel
import monitel.torch


class Placed(torch.nn.Parameter):  # type: ignore[misc]
    """A parameter on the second device. Its number is on the CPU."""

    @property
    def device(self) -> Any:
        return torch.device("later", 1)


class Job(Work):
    """A training loop whose parts take milliseconds of the device, instead of seconds of the host."""

    def __init__(self, parameter: Any = None, **options: Any) -> None:
        super().__init__(later.work, parameter)
        self.events: list[monitel.Event] = []
        self.handle = monitel.register_event_handler(self.events.append)
        self.running = monitel.torch.instrument(
            **{"sources": "+stages_on_device,-waits,-compilation", "window_size": 1e6, **options}
        )
        self.source = iter(monitel.torch.batches(self.batches(10**9)))

    def steps(self, number: int, micro_batches: int = 1, backward: Any = 4) -> None:
        for _ in range(number):
            for _ in range(micro_batches):
                next(self.source)
                self.forward(backward=backward).backward()
            self.optimize()
            self.takes(32)

    def end(self) -> dict[str, float]:
        """End the instrumentation, and return the mean of each stage in its last window, in milliseconds."""
        later.answers = True
        self.running.uninstrument()
        monitel.unregister_event_handler(self.handle)
        return {str(each.attributes["training.stage"]): round(1e3 * each.mean, 6) for each in self.windows}

    @property
    def windows(self) -> list[monitel.Window]:
        return windows_of(self.events, "training.stage.device.duration")

    @property
    def cycles(self) -> int:
        counts = [[each.count for each in self.windows if each.attributes["training.stage"] == stage] for stage in STEP]
        (number,) = {*map(sum, counts)}
        return number

    @property
    def lost(self) -> int:
        return sum(each.count for each in windows_of(self.events, "training.tensors.lost"))


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with idle():
        yield


def test_stages_take_the_time_of_the_device() -> None:
    """Each has that of the operations that it has queued. A window waits for the device, and has exactly its cycles."""
    with monitel.testing.ManualClock() as clock:
        job = Job(window_size=60.0)
        job.steps(4)
        clock.advance(60)
        job.steps(1)  # its cycle is in the second window, and closes the first one
        assert [] == job.windows
        assert STEP == job.end()
    assert [2] * 5 + [1] * 5 == [each.count for each in job.windows]  # the device is known after the first step
    assert (0, 0) == (job.lost, later.syncs)


def test_cycles_of_all_kinds() -> None:
    """Micro-batches, an evaluation, and several optimizers."""
    job = Job()
    job.steps(3, 64)
    assert {**STEP, "data": 64, "forward": 128, "backward": 256} == job.end()
    job = Job()
    for _ in range(3):
        job.steps(1)
        with torch.no_grad():
            next(job.source)
            later.work(100)
    assert {**STEP, "other": 133} == job.end()
    job = Job()
    others = [job.optimizer() for _ in range(50)]
    for _ in range(3):
        job.steps(1)
        for each in others:
            each.step()
        later.work(32)
    assert {**STEP, "optimizer": 8 + 32 + 50 * 8} == job.end()


def test_events_may_be_on_several_streams() -> None:
    """Times are those of the device. Batches of a stream that is ahead take none, and no stage is negative."""
    job, side = Job(), later.Stream()  # type: ignore[attr-defined]
    for _ in range(3):
        with later.stream(side):
            next(job.source)
            job.forward().backward()
        later.run()
        job.optimize()
        job.takes(32)
        later.run()
    assert STEP == job.end()
    later.reset()
    job, ready = Job(), iter(monitel.torch.batches(range(4)))
    for _ in range(4):
        with later.stream(side):
            next(ready)
        side.run()
        job.step()
    assert {**STEP, "other": 0, "data": 0, "forward": 32 + 2} == job.end()


def test_device_is_that_of_the_parameters() -> None:
    """A job need not make its device the current one. No other device is used, whose streams would be idle."""
    later.place = 1
    job = Job(Placed(torch.ones(1)))
    job.steps(4)
    assert 0 == later.current_device()
    assert STEP == job.end()
    assert {1} == later.used


def test_cycles_beyond_the_limits_are_counted_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    """A device that is 512 cycles behind, or a cycle with more than 1,024 events. Later cycles are right again."""
    job = Job()
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        job.steps(1200)
        later.answers = True
        monitel.flush()
        job.steps(1, 500)
        job.steps(3)
    assert STEP == job.end()
    assert (1202, 5 * 1202) == (job.cycles + job.lost // 5, 5 * job.cycles + job.lost)
    assert 500 < job.cycles < 1000
    assert 1 == caplog.text.count("the device is too far behind")


def test_short_cycles_are_not_lost_while_the_device_keeps_up() -> None:
    """A loop may have more cycles between two polls, which are a second apart, than may be pending."""
    job = Job()
    later.answers = True
    job.steps(1200)
    assert STEP == job.end()
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
    job.steps(3)
    assert {} == job.end()
    assert (0, set()) == (job.lost, later.used)
    caplog.clear()  # the records have exceptions


@pytest.mark.usefixtures("two_ranks")
def test_waiting_for_other_ranks_is_sync() -> None:
    """In a group of several ranks, what follows the own gradients is the wait for those of the others."""
    job, engine = Job(), torch.autograd.Variable._execution_engine

    def backward() -> None:
        later.work(4)
        engine.queue_callback(lambda: later.work(7))

    job.steps(3, backward=backward)
    assert {**STEP, "sync": 7} == job.end()


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize(
    ("backend", "source", "warnings"),
    [("cuda:nccl", None, 1), ("cpu:gloo", None, 0), ("cuda:nccl", "+stages_on_device", 0)],
)
def test_job_on_nccl_has_a_warning_of_what_shows_late_ranks(
    backend: str, source: str | None, warnings: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, unless the stages are measured on the device."""
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: backend)
    optimizer = sgd()
    with monitel.torch.instrument(sources=source, window_size=1e6):
        for _ in range(3):
            optimizer.param_groups[0]["params"][0].sum().backward()
            optimizer.step()
    assert warnings == sum("MONITEL_SOURCES=+stages_on_device" in each.getMessage() for each in caplog.records)
    caplog.clear()
