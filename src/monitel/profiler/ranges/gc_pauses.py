"""Pauses of Python's garbage collector, recorded as ranges on request."""

from __future__ import annotations

import gc
from typing import Any

from monitel.os_threads import RLock
from monitel.profiler.ranges import _ranges

_NAME = "Python GC"
_lock = RLock()
_requests = 0  # calls of record() without a stop()
_started_ns = -1  # collections do not overlap: the interpreter runs one at a time


def record() -> None:
    """Record pauses from now on, until as many calls of :func:`stop`."""
    global _requests
    with _lock:
        if _requests == 0:
            gc.callbacks.append(_on_collection)
        _requests += 1


def stop() -> None:
    """Undo one :func:`record`."""
    global _requests
    with _lock:
        _requests -= 1
        if _requests == 0:
            gc.callbacks.remove(_on_collection)


def _on_collection(phase: str, info: dict[str, Any]) -> None:
    global _started_ns
    if phase == "start":
        _started_ns = _ranges.now()
    elif _started_ns >= 0:
        start_ns, _started_ns = _started_ns, -1
        _ranges.record_past(_NAME, dict(info), start_ns, _ranges.now(), None)
