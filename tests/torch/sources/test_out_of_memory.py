"""Out-of-memory errors of the CUDA allocator. The tests call the observer as torch does."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch
from monitel.torch.sources import failures, out_of_memory  # noqa: E402

pytestmark = pytest.mark.torch

GIB = 1 << 30


class Cuda:
    """A stand-in for a torch with CUDA: its initialization and its allocator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.observers: list[Callable[..., None]] = []
        monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
        monkeypatch.setattr("torch.cuda._lazy_call", self.waiting.append)
        monkeypatch.setattr("torch._C._cuda_attach_out_of_memory_observer", self.observers.append, raising=False)
        monkeypatch.setattr(out_of_memory, "_attached", False)

    def initialize(self) -> None:
        """Run the waiting functions as ``torch.cuda.init()`` does."""
        for each in self.waiting:
            each()

    def fail_allocation(self, device: int, requested: int, limit: int, free: int) -> None:
        """Call the observers as torch/csrc/cuda/Module.cpp does, and raise."""
        for observe in self.observers:
            observe(device, requested, limit, free)
        raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """Put the stand-in in place."""
    yield Cuda(monkeypatch)
    out_of_memory._queue.clear()


@pytest.fixture
def source(cuda: Cuda) -> Iterator[failures.Failures]:
    """Install the source."""
    source = failures.Failures()
    source.install()
    yield source
    source.remove()


def test_caught_error_is_reported(cuda: Cuda, source: failures.Failures, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event has device, bytes, and the step of the failure. poll() logs it, not the allocator's thread."""
    monkeypatch.setenv("RANK", "3")
    cuda.initialize()
    monitel.set_step(11)
    with monitel.testing.ManualClock() as clock, monitel.testing.capture_events() as events:
        happened = monitel.clock.now()
        with pytest.raises(torch.OutOfMemoryError):
            cuda.fail_allocation(1, 20 * GIB, 80 * GIB, 2 * GIB)
        assert [] == events
        monitel.set_step(12)
        clock.advance(1)
        source.poll()
        source.poll()
    (event,) = events
    assert ("out_of_memory", monitel.Severity.ERROR, happened) == (event.name, event.severity, event.timestamp)
    assert {
        "message": f"out of memory on cuda:1: {20 * GIB} bytes requested, {2 * GIB} free, limit {80 * GIB}",
        "memory.device": "cuda:1",
        "memory.requested": 20 * GIB,
        "memory.limit": 80 * GIB,
        "memory.free": 2 * GIB,
        "training.rank": 3,
        "training.step": 11,
    } == event.data


def test_error_before_the_first_step_has_no_step(cuda: Cuda, source: failures.Failures) -> None:
    """This holds even if there is a step by the time the event is logged."""
    cuda.initialize()
    with monitel.testing.capture_events() as events:
        with pytest.raises(torch.OutOfMemoryError):
            cuda.fail_allocation(0, GIB, GIB, 0)
        monitel.set_step(1)
        source.poll()
    assert [None] == [event.data.get("training.step") for event in events]


def test_observer_is_attached_once_when_the_job_initializes_cuda(cuda: Cuda, source: failures.Failures) -> None:
    """Attaching would initialize CUDA, so it waits until the job does. A second install() attaches nothing."""
    source.remove()
    source.install()
    assert ([], 1) == (cuda.observers, len(cuda.waiting))
    cuda.initialize()
    assert 1 == len(cuda.observers)


def test_removed_observer_records_nothing(cuda: Cuda, source: failures.Failures) -> None:
    """The observer stays attached to torch."""
    cuda.initialize()
    source.remove()
    with monitel.testing.capture_events() as events:
        with pytest.raises(torch.OutOfMemoryError):
            cuda.fail_allocation(0, GIB, GIB, 0)
        source.install()
        source.poll()
    assert [] == events


def test_queue_is_limited(cuda: Cuda, source: failures.Failures) -> None:
    """If more than a thousand allocations fail in a second, the oldest are lost."""
    cuda.initialize()
    for number in range(2000):
        with pytest.raises(torch.OutOfMemoryError):
            cuda.fail_allocation(0, number, GIB, 0)
    with monitel.testing.capture_events() as events:
        source.poll()
    assert (1000, 1999) == (len(events), events[-1].data["memory.requested"])


def test_allocator_without_observers_is_logged(
    cuda: Cuda, source: failures.Failures, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The allocator cudaMallocAsync has none. CUDA is initialized nevertheless."""

    def refuse(_observe: Any) -> None:
        raise RuntimeError("cudaMallocAsync does not yet support attachOutOfMemoryObserver")

    monkeypatch.setattr("torch._C._cuda_attach_out_of_memory_observer", refuse, raising=False)
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        cuda.initialize()
    assert ["cannot observe caught out-of-memory errors with this CUDA allocator"] == caplog.messages


def test_torch_without_the_observer_is_logged(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other failures are reported."""
    monkeypatch.delattr("torch.cuda._lazy_call")
    source = failures.Failures()
    with caplog.at_level(logging.WARNING, "monitel.torch"):
        source.install()
    source.remove()
    message = "cannot observe caught out-of-memory errors with this torch version: torch.cuda._lazy_call does not exist"
    assert message in caplog.text


def test_without_cuda_nothing_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A torch built without CUDA has no allocator to observe."""
    monkeypatch.setattr(out_of_memory, "_attached", False)
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: False)
    with caplog.at_level(logging.DEBUG, "monitel.torch"), monitel.torch.instrument() as running:
        assert "failures" in running.sources
    assert ([], False) == (caplog.records, out_of_memory._attached)
