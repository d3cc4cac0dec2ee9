"""The thread that polls the sources."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from monitel.process.os_threads import Lock, get_ident
from monitel.process.worker import Worker
from monitel.stats import before_flush

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger("monitel.torch")
_INTERVAL_S = 1.0
_JOIN_TIMEOUT_S = 2.0
_PATIENCE_S = 0.1  # that a flush waits for another thread's poll: it must not hang with an event handler


class Poller:
    """Calls functions at a fixed interval in a daemon thread, and before each flush, until it is closed.

    The functions log events, so exceptions of event handlers end up here. They are logged, once for each function, and
    polling continues.

    Args:
        functions: The functions. Without any, no thread is started.
        threaded: False for no thread, as in a forked child.
    """

    def __init__(self, functions: Sequence[Callable[[], None]], *, threaded: bool = True) -> None:
        self._functions = functions
        self._failed: set[Callable[[], None]] = set()
        self._polling = Lock()
        self._polling_thread: int | None = None
        self._warned = False
        self._worker = Worker("monitel-torch", self._run, first=_INTERVAL_S)
        if self._functions:
            if threaded:
                self._worker.start()
            before_flush.register(self.poll)

    def poll(self) -> None:
        """Call each function in the calling thread, unless it does so already.

        If another thread is calling them, wait until it has finished, for 0.1 s at most. Then its event handlers hang
        or are slow, a warning is logged once, and the functions are not called.
        """
        if self._polling_thread == get_ident():  # an event handler flushes
            return
        if not self._polling.acquire(timeout=_PATIENCE_S):
            if not self._warned:
                self._warned = True
                _log.warning("an event handler hangs or is slow: a flush does not include all events of torch")
            return
        try:
            self._polling_thread = get_ident()
            self._poll()
        finally:
            self._polling_thread = None
            self._polling.release()

    def stop(self) -> None:
        """End the thread. Before each flush the functions are still called."""
        self._worker.stop()

    def close(self) -> None:
        """End the thread, then call each function once more in the calling thread."""
        self.stop()
        if self._worker.started and self._polling_thread != get_ident():
            self._worker.join(time.monotonic() + _JOIN_TIMEOUT_S)
        before_flush.unregister(self.poll)
        self.poll()

    def _run(self) -> float:
        if not self._polling.locked():  # else a flush polls
            self.poll()
        return _INTERVAL_S

    def _poll(self) -> None:
        for function in self._functions:
            try:
                function()
            except Exception:
                if function not in self._failed:
                    self._failed.add(function)
                    name = getattr(function, "__qualname__", function)
                    _log.warning("%s failed; polling continues (further failures are not logged)", name, exc_info=True)
