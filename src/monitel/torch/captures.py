"""While a CUDA graph is captured, other threads must leave CUDA alone."""

from __future__ import annotations

from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class Captures:
    """Keeps the bridge's own calls of CUDA out of captures.

    By default a capture forbids them to all threads: what one asks of an event or allocates, and even its copies on
    another stream, spoils the capture, and with it the job (CUDA runtime API, ``cudaStreamCaptureModeGlobal``;
    pytorch/pytorch#104555, vllm-project/vllm#48053). So a capture that begins waits for calls under way, some
    microseconds, and until it ends there are none.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._running = 0

    def install(self) -> None:
        """Hear of all captures by torch.cuda.CUDAGraph, which torch.cuda.graph() and the compiler use too."""
        graph: Any = torch.cuda.CUDAGraph
        begin, end = self._theirs = graph.capture_begin, graph.capture_end

        def capture_begin(graph: Any, *arguments: Any, **choices: Any) -> Any:
            with self._lock:
                self._running += 1
            try:
                return begin(graph, *arguments, **choices)
            except BaseException:
                self._running -= 1
                raise

        def capture_end(graph: Any, *arguments: Any, **choices: Any) -> Any:
            try:
                return end(graph, *arguments, **choices)
            finally:
                self._running -= 1

        self._ours = graph.capture_begin, graph.capture_end = capture_begin, capture_end

    def remove(self) -> None:
        """Put torch's methods back; where somebody has put others before ours, these only pass on."""
        graph: Any = torch.cuda.CUDAGraph
        if (graph.capture_begin, graph.capture_end) == self._ours:
            graph.capture_begin, graph.capture_end = self._theirs

    @contextmanager
    def kept_out(self) -> Iterator[bool]:
        """Say whether CUDA may be called within; while it is, no capture begins."""
        with self._lock:
            yield not self._running
