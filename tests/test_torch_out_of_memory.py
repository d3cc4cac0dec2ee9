"""Out-of-memory errors of the CUDA allocator, by an observer that is called here as torch calls it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check that torch is there
from monitel.torch import failures, out_of_memory  # noqa: E402

pytestmark = pytest.mark.torch

GIB = 1 << 30


class Cuda:
    """A torch that was built with CUDA: when it is initialised, and what its allocator calls when it gives up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.observers: list[Callable[..., None]] = []
        monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
        monkeypatch.setattr("torch.cuda._lazy_call", self.waiting.append)
        monkeypatch.setattr("torch._C._cuda_attach_out_of_memory_observer", self.observers.append, raising=False)
        monkeypatch.setattr(out_of_memory, "_attached", False)

    def initialise(self) -> None:
        """Do what ``torch.cuda.init()`` does with what waits for it."""
        for each in self.waiting:
            each()

    def give_up(self, device: int, requested: int, limit: int, free: int) -> None:
        """Call the observers as torch/csrc/cuda/Module.cpp does, and raise."""
        for observe in self.observers:
            observe(device, requested, limit, free)
        raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """Have such a torch."""
    yield Cuda(monkeypatch)
    out_of_memory._seen.clear()
    monitel._window.set_step(None)


@pytest.fixture
def source(cuda: Cuda) -> Iterator[failures.Failures]:
    """Listen to failures."""
    source = failures.Failures()
    source.install()
    yield source
    source.remove()


def test_an_error_that_is_caught_is_said(
    cuda: Cuda, source: failures.Failures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With device and bytes, and the step that it happened in: by the tick, not within the allocator."""
    monkeypatch.setenv("RANK", "3")
    cuda.initialise()
    clock = monitel.testing.ManualClock()
    before = monitel.clock.inject(clock)
    monitel.set_step(11)
    with monitel.testing.capture_events() as events:
        happened = monitel.clock.now()
        with pytest.raises(torch.OutOfMemoryError):
            cuda.give_up(1, 20 * GIB, 80 * GIB, 2 * GIB)
        assert [] == events
        monitel.set_step(12)
        clock.advance(1)
        source.tick()
        source.tick()
    monitel.clock.inject(before)
    (event,) = events
    assert ("out_of_memory", monitel.Severity.ERROR, happened) == (event.name, event.severity, event.timestamp)
    assert {
        "message": f"out of memory on cuda:1: {20 * GIB} bytes asked for, {2 * GIB} free, {80 * GIB} at most",
        "memory.device": "cuda:1",
        "memory.requested": 20 * GIB,
        "memory.limit": 80 * GIB,
        "memory.free": 2 * GIB,
        "training.rank": 3,
        "training.step": 11,
    } == event.data


def test_before_the_first_step(cuda: Cuda, source: failures.Failures) -> None:
    """No step is said, though there is one by the time that it is logged."""
    cuda.initialise()
    with monitel.testing.capture_events() as events:
        with pytest.raises(torch.OutOfMemoryError):
            cuda.give_up(0, GIB, GIB, 0)
        monitel.set_step(1)
        source.tick()
    assert [None] == [event.data.get("training.step") for event in events]


def test_cuda_is_not_initialised_for_it(cuda: Cuda, source: failures.Failures) -> None:
    """Which attaching would do: it waits until the job does it; twice installed it is attached once."""
    source.remove()
    source.install()
    assert ([], 1) == (cuda.observers, len(cuda.waiting))
    cuda.initialise()
    assert 1 == len(cuda.observers)


def test_once_it_is_removed(cuda: Cuda, source: failures.Failures) -> None:
    """The observer stays with torch, and hears nothing."""
    cuda.initialise()
    source.remove()
    with monitel.testing.capture_events() as events:
        with pytest.raises(torch.OutOfMemoryError):
            cuda.give_up(0, GIB, GIB, 0)
        source.install()
        source.tick()
    assert [] == events


def test_many_at_once_take_no_room(cuda: Cuda, source: failures.Failures) -> None:
    """Of more than a thousand in a second the first are lost."""
    cuda.initialise()
    for number in range(2000):
        with pytest.raises(torch.OutOfMemoryError):
            cuda.give_up(0, number, GIB, 0)
    with monitel.testing.capture_events() as events:
        source.tick()
    assert (1000, 1999) == (len(events), events[-1].data["memory.requested"])


def test_an_allocator_that_has_no_observers(
    cuda: Cuda, source: failures.Failures, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as cudaMallocAsync: CUDA is initialised all the same, and it is said."""

    def refuse(_observe: Any) -> None:
        raise RuntimeError("cudaMallocAsync does not yet support attachOutOfMemoryObserver")

    monkeypatch.setattr("torch._C._cuda_attach_out_of_memory_observer", refuse, raising=False)
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        cuda.initialise()
    assert ["out-of-memory errors that are caught stay unsaid"] == [record.getMessage() for record in caplog.records]


def test_a_torch_that_has_changed(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other failures are heard of."""
    monkeypatch.delattr("torch.cuda._lazy_call")
    source = failures.Failures()
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        source.install()
    source.remove()
    assert "stay unsaid with this torch: torch.cuda._lazy_call is not there" in caplog.text


def test_without_cuda_nothing_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """There is nothing to observe."""
    monkeypatch.setattr(out_of_memory, "_attached", False)
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: False)
    with caplog.at_level(logging.DEBUG, "monitel.torch"), monitel.torch.instrument() as running:
        assert "failures" in running.sources
    assert ([], False) == (caplog.records, out_of_memory._attached)
