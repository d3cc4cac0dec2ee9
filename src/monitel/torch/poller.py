"""The thread that polls the sources."""

from __future__ import annotations

import logging
from threading import Event, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger("monitel.torch")
_INTERVAL_S = 1.0
_JOIN_TIMEOUT_S = 2.0


class Poller:
    """Calls functions at a fixed interval in a daemon thread, until it is closed.

    The functions log events, so exceptions of event handlers end up here. They are logged, once for each function, and
    polling continues.

    Args:
        functions: The functions. Without any, no thread is started.
        seconds: The interval.
    """

    def __init__(self, functions: Sequence[Callable[[], None]], seconds: float = _INTERVAL_S) -> None:
        self._functions = functions
        self._failed: set[Callable[[], None]] = set()
        self._seconds = seconds
        self._closed = Event()
        self._thread = Thread(target=self._run, name="monitel-torch", daemon=True)
        if self._functions:
            self._thread.start()

    def close(self) -> None:
        """End the thread, then call each function once more in the calling thread."""
        self._closed.set()
        if self._thread.is_alive():  # not in a forked child
            self._thread.join(_JOIN_TIMEOUT_S)
        self._poll()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            self._poll()

    def _poll(self) -> None:
        for function in self._functions:
            try:
                function()
            except Exception:
                if function not in self._failed:
                    self._failed.add(function)
                    name = getattr(function, "__qualname__", function)
                    _log.warning("%s failed; polling continues (further failures are not logged)", name, exc_info=True)
