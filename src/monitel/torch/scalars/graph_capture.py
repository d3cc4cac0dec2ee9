"""Suspension of device calls while a device graph (CUDA, XPU, MTIA) is being captured."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from monitel.os_threads import RLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GRAPHS = (("cuda", "CUDAGraph"), ("xpu", "XPUGraph"), ("mtia", "MTIAGraph"), ("accelerator", "Graph"))


class CaptureGuard:
    """Tracks graph captures and keeps device calls of other threads out of them.

    By default, a capture forbids other threads every call that may wait, such as an event query, and every memory
    allocation. Such a call invalidates the capture, and with it the job (CUDA runtime API,
    ``cudaStreamCaptureModeGlobal``; pytorch/pytorch#104555). So a starting capture waits a few microseconds for device
    calls in progress, and no device call starts until the capture ends.
    """

    def __init__(self) -> None:
        self._patched: list[tuple[Any, tuple[Any, Any], tuple[Any, Any]]] = []
        self.reset()

    def reset(self) -> None:
        """Discard all state. For a forked child, which has neither the capturing thread nor the owner of the lock."""
        self._lock = RLock()
        self._running = 0

    def install(self) -> None:
        """Wrap the capture methods of torch's graph classes, which torch.cuda.graph() and the compiler use too."""
        for module, name in _GRAPHS:
            graph = getattr(getattr(torch, module, None), name, None)
            if hasattr(graph, "capture_begin") and hasattr(graph, "capture_end"):
                self._patch(graph)

    def remove(self) -> None:
        """Restore torch's methods. Methods that somebody else has wrapped since stay, and only pass calls on."""
        for graph, originals, wrappers in self._patched:
            if (graph.capture_begin, graph.capture_end) == wrappers:
                graph.capture_begin, graph.capture_end = originals
        self._patched.clear()

    @property
    def is_capturing(self) -> bool:
        """True while any capture is in progress. Takes no lock, so a signal handler may read it."""
        return self._running > 0

    @contextmanager
    def device_calls(self) -> Iterator[bool]:
        """Yield whether device calls are allowed. While they are, no capture starts before the block ends."""
        with self._lock:
            yield not self._running

    def _patch(self, graph: Any) -> None:
        begin: Callable[..., Any] = graph.capture_begin
        end: Callable[..., Any] = graph.capture_end

        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._count(1)
            try:
                return begin(graph, *args, **kwargs)
            except BaseException:
                self._count(-1)
                raise

        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return end(graph, *args, **kwargs)
            finally:
                self._count(-1)

        graph.capture_begin, graph.capture_end = capture_begin, capture_end
        self._patched.append((graph, (begin, end), (capture_begin, capture_end)))

    def _count(self, change: int) -> None:
        with self._lock:
            self._running = max(0, self._running + change)  # a capture may have started before install()
