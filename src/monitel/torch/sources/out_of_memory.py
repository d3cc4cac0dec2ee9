"""CUDA out-of-memory errors, including those the program catches."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from torch import backends

from monitel import clock
from monitel.event import Severity
from monitel.step import get_step
from monitel.torch._compat import Missing, attach_out_of_memory_observer, when_cuda_is_initialized
from monitel.torch.context import emit_at

if TYPE_CHECKING:
    from datetime import datetime

_log = logging.getLogger("monitel.torch")
_MAX_QUEUED = 1000
_queue: deque[tuple[datetime, int | None, tuple[int, ...]]] = deque(maxlen=_MAX_QUEUED)
_on = False
_attached = False


class OutOfMemory:
    """Logs ``out_of_memory`` (ERROR) for each failed allocation of torch's CUDA allocator, at most a second later.

    The allocator calls an observer in the allocating thread. The observer only queues the numbers, and the polling
    thread logs them, so that no handler runs and no memory is allocated where there is none. If more than 1000
    allocations fail in a second, the oldest are lost.

    Attaching the observer would initialize CUDA, so it waits until the job does that. torch cannot detach it: after
    ``remove()`` it does nothing. With a torch that was built without CUDA, nothing is attached.
    """

    def install(self) -> None:
        """Attach the observer when CUDA is initialized, once per process."""
        global _on, _attached
        _on = True
        if not _attached and backends.cuda.is_built():
            _attached = True
            try:
                when_cuda_is_initialized(_attach)
            except Missing as missing:
                _log.warning("cannot observe caught out-of-memory errors with this torch version: %s", missing)

    def remove(self) -> None:
        """Stop recording, and discard the queue, which the last poll before this call has logged."""
        global _on
        _on = False
        _queue.clear()

    def poll(self) -> None:
        """Log the failed allocations since the last poll."""
        while _queue:
            timestamp, step, (device, requested, limit, free) = _queue.popleft()
            message = f"out of memory on cuda:{device}: {requested} bytes requested, {free} free, limit {limit}"
            data = {
                "message": message,
                "memory.device": f"cuda:{device}",
                "memory.requested": requested,
                "memory.limit": limit,
                "memory.free": free,
            }
            emit_at(step, "out_of_memory", data, severity=Severity.ERROR, timestamp=timestamp)


def _attach() -> None:
    """Attach the observer. torch runs this while it initializes CUDA, which an exception would abort."""
    try:
        attach_out_of_memory_observer(_observe)
    except Exception:  # an allocator other than torch's has no observer
        _log.warning("cannot observe caught out-of-memory errors with this CUDA allocator", exc_info=True)


def _observe(*numbers: int) -> None:
    """Queue a failed allocation: device, requested bytes, limit of this process, free bytes of the device."""
    if _on:
        _queue.append((clock.now(), get_step(), numbers))
