"""While a graph of a device's work is captured, other threads must leave the device alone."""

from __future__ import annotations

from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GRAPHS = (("cuda", "CUDAGraph"), ("xpu", "XPUGraph"), ("mtia", "MTIAGraph"), ("accelerator", "Graph"))


class Captures:
    """Keeps fetching out of captures.

    By default a capture forbids other threads what may wait, such as to ask an event, and to allocate memory: it spoils
    the capture, and with it the job (CUDA runtime API, ``cudaStreamCaptureModeGlobal``; pytorch/pytorch#104555). So a
    capture that begins waits for calls under way, some microseconds, and until it ends there are none.
    """

    def __init__(self) -> None:
        self._taken_over: list[tuple[Any, tuple[Any, Any], tuple[Any, Any]]] = []
        self.forget()

    def forget(self) -> None:
        """Know of none, in a forked child: the thread that captures, or that holds the lock, is not there."""
        self._lock = RLock()
        self._running = 0

    def install(self) -> None:
        """Hear of all captures by torch's graph classes, which torch.cuda.graph() and the compiler use too."""
        for module, name in _GRAPHS:
            graph = getattr(getattr(torch, module, None), name, None)
            if hasattr(graph, "capture_begin") and hasattr(graph, "capture_end"):
                self._take_over(graph)

    def remove(self) -> None:
        """Put torch's methods back; where somebody has put others before ours, these only pass on."""
        for graph, theirs, ours in self._taken_over:
            if (graph.capture_begin, graph.capture_end) == ours:
                graph.capture_begin, graph.capture_end = theirs
        self._taken_over.clear()

    @property
    def running(self) -> bool:
        """Whether one is going on; takes no lock, so that a signal handler may ask."""
        return self._running > 0

    @contextmanager
    def kept_out(self) -> Iterator[bool]:
        """Say whether the device may be used within; while it is, no capture begins."""
        with self._lock:
            yield not self._running

    def _take_over(self, graph: Any) -> None:
        begin: Callable[..., Any] = graph.capture_begin
        end: Callable[..., Any] = graph.capture_end

        def capture_begin(graph: Any, *arguments: Any, **choices: Any) -> Any:
            self._count(1)
            try:
                return begin(graph, *arguments, **choices)
            except BaseException:
                self._count(-1)
                raise

        def capture_end(graph: Any, *arguments: Any, **choices: Any) -> Any:
            try:
                return end(graph, *arguments, **choices)
            finally:
                self._count(-1)

        graph.capture_begin, graph.capture_end = capture_begin, capture_end
        self._taken_over.append((graph, (begin, end), (capture_begin, capture_end)))

    def _count(self, change: int) -> None:
        with self._lock:
            self._running = max(0, self._running + change)  # one may have begun before we heard of them
