"""What a GPU's memory did not suffice for, also where somebody catches the error."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from torch import backends

from monitel import clock
from monitel.event import Severity
from monitel.handlers import emit
from monitel.step import get_step
from monitel.torch._compat import Missing, attach_out_of_memory_observer, when_cuda_is_initialized
from monitel.torch.place import place_at

if TYPE_CHECKING:
    from datetime import datetime

_log = logging.getLogger("monitel.torch")
_MOST = 1000
_seen: deque[tuple[datetime, int | None, tuple[int, ...]]] = deque(maxlen=_MOST)  # at most a second's
_on = False
_attached = False


class OutOfMemory:
    """Logs ``out_of_memory`` (ERROR) for each allocation that torch's CUDA allocator gives up, at most a second later.

    The allocator calls an observer in the thread that asked for memory. There only the numbers are taken down;
    the bridge's thread logs them, so that no handler runs, and no memory is asked for, where there is none. Of more
    than 1000 in a second the first are lost.

    To attach the observer would initialise CUDA, so that waits until the job does it. torch cannot take it off: once
    removed, it hears nothing. Where torch was built without CUDA there is nothing to observe.
    """

    def install(self) -> None:
        """Observe from when CUDA is initialised; once a process."""
        global _on, _attached
        _on = True
        if not _attached and backends.cuda.is_built():
            _attached = True
            try:
                when_cuda_is_initialized(_attach)
            except Missing as missing:
                _log.warning("out-of-memory errors that are caught stay unsaid with this torch: %s", missing)

    def remove(self) -> None:
        """Hear no more; what was heard is logged by the last tick, before this."""
        global _on
        _on = False
        _seen.clear()

    def tick(self) -> None:
        """Log what has come since."""
        while _seen:
            timestamp, step, (device, requested, limit, free) = _seen.popleft()
            message = f"out of memory on cuda:{device}: {requested} bytes asked for, {free} free, {limit} at most"
            data = {
                **place_at(step),
                "message": message,
                "memory.device": f"cuda:{device}",
                "memory.requested": requested,
                "memory.limit": limit,
                "memory.free": free,
            }
            emit("out_of_memory", data, severity=Severity.ERROR, timestamp=timestamp)


def _attach() -> None:
    """Run by torch as it initialises CUDA, which an error would end."""
    try:
        attach_out_of_memory_observer(_observe)
    except Exception:  # an allocator that is not torch's own has none
        _log.warning("out-of-memory errors that are caught stay unsaid", exc_info=True)


def _observe(*numbers: int) -> None:
    """Run by the allocator: device, bytes asked for, bytes that the process may have, bytes free on the device."""
    if _on:
        _seen.append((clock.now(), get_step(), numbers))
