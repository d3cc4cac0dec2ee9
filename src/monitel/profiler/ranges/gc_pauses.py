"""Python's garbage collections as ranges, for as long as somebody asks for them."""

from __future__ import annotations

import gc
import threading
from typing import Any

from monitel.profiler import _ranges

_NAME = "Python GC"
_lock = threading.RLock()
_asked = 0
_started_ns = -1  # collections do not overlap: the interpreter runs one at a time


def record() -> None:
    """Record pauses from now on."""
    global _asked
    with _lock:
        if _asked == 0:
            gc.callbacks.append(_heard)
        _asked += 1


def stop() -> None:
    """Take back one :func:`record`."""
    global _asked
    with _lock:
        _asked -= 1
        if _asked == 0:
            gc.callbacks.remove(_heard)


def _heard(phase: str, info: dict[str, Any]) -> None:
    global _started_ns
    if phase == "start":
        _started_ns = _ranges.now()
    elif _started_ns >= 0:
        start_ns, _started_ns = _started_ns, -1
        _ranges.past(_NAME, dict(info), start_ns)
