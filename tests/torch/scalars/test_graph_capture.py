"""Device graph captures: nothing is fetched or allocated while one is in progress."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterator

torch: Any = pytest.importorskip("torch", reason="has tensors on a device: torch is not installed")

from tests.torch.scalars.device_scalars import ALL, Scalars, scalars, windows  # noqa: E402
from tests.torch.scalars.later_device import later, on_later  # noqa: E402

from monitel.torch.scalars.graph_capture import CaptureGuard  # noqa: E402  after the check for torch

pytestmark = pytest.mark.torch


class Graph:
    """A stand-in for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fails = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begin a capture."""
        self.calls.append(("begin", pool, capture_error_mode))
        if self.fails:
            raise LookupError

    def capture_end(self) -> None:
        """End the capture."""
        self.calls.append("end")
        if self.fails:
            raise LookupError


@pytest.fixture(autouse=True)
def _graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)


@pytest.fixture(name="device")
def _device(_graph: None) -> Iterator[Scalars]:
    with scalars() as device:
        yield device


@pytest.fixture
def guard() -> Iterator[CaptureGuard]:
    """Install a guard."""
    guard = CaptureGuard()
    guard.install()
    yield guard
    guard.remove()


def test_samples_added_to_a_capture_are_lost(device: Scalars, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is recorded into the graph. The lost tensors are counted, and logged once."""
    stat = monitel.Stat("loss", ALL, math.inf)
    later.capturing = True
    with monitel.testing.capture_events() as events:
        stat.add(on_later(1.0))
        stat.add(on_later(1.0))
        monitel.emit("epoch", loss=on_later(1.0), epoch=1)
        assert (0, 0, 3) == (stat.count, later.launches, device.lost)
        assert [{"epoch": 1}] == [event.data for event in events]
        later.capturing = False
        stat.add(on_later(2.0))
        device.deliver()
        stat.flush()
    assert [(1, 2.0)] == [(window.count, window.sum) for window in windows(events)]
    assert 1 == len(caplog.messages)
    assert "during a graph capture" in caplog.messages[0]


def test_device_is_not_called_during_a_capture(device: Scalars) -> None:
    """While another thread captures a graph, neither the fetching thread nor a flush calls the device."""
    stat, graph = monitel.Stat("loss", ALL, math.inf), torch.cuda.CUDAGraph()
    with monitel.testing.capture_events() as events:
        stat.add(on_later(1.0))
        before = later.launches, later.queries
        graph.capture_begin("pool", capture_error_mode="thread_local")
        device.advance()
        stat.flush()
        assert (*before, []) == (later.launches, later.queries, events)
        graph.capture_end()
        device.deliver()
    assert [1.0] == [window.sum for window in windows(events)]
    assert [("begin", "pool", "thread_local"), "end"] == graph.calls


def test_no_memory_is_allocated_during_a_capture(device: Scalars) -> None:
    """The first sample of a device, which would allocate its pages, is lost then."""
    stat, graph = monitel.Stat("loss", ALL, math.inf), torch.cuda.CUDAGraph()
    graph.capture_begin()
    stat.add(on_later(1.0))
    assert (0, 1) == (later.launches, device.lost)
    graph.capture_end()
    stat.add(on_later(2.0))
    device.deliver()
    stat.flush()
    assert 2.0 == stat.get()[monitel.SUM]


def test_remove_restores_the_methods(device: Scalars) -> None:
    """Torch's methods are in place again."""
    assert "CaptureGuard" in Graph.capture_begin.__qualname__
    device.hooks.remove()
    assert "CaptureGuard" not in Graph.capture_begin.__qualname__


def test_failed_capture_counts_as_ended(guard: CaptureGuard) -> None:
    """A capture that fails to begin has not begun, and a capture that fails to end has ended."""
    graph = Graph()
    graph.fails = True
    with pytest.raises(LookupError):
        graph.capture_begin()
    graph.fails = False
    graph.capture_begin()
    assert guard.is_capturing
    graph.fails = True
    with pytest.raises(LookupError):
        graph.capture_end()
    with guard.device_calls() as allowed:
        assert allowed


def test_capture_waits_for_device_calls_in_progress(guard: CaptureGuard) -> None:
    """The capture begins when they have ended."""
    graph, begun = Graph(), threading.Event()

    def capture() -> None:
        graph.capture_begin()
        begun.set()

    with guard.device_calls() as allowed:
        assert allowed
        thread = threading.Thread(target=capture, daemon=True)
        thread.start()
        assert not begun.wait(0.1)
    assert begun.wait(30)
    graph.capture_end()
