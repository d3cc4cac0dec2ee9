"""The one thread of the bridge."""

from __future__ import annotations

import logging
from threading import Event, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger("monitel.torch")
_SECONDS = 1.0
_PATIENCE = 2.0  # seconds, for the thread to end


class Ticking:
    """Calls some functions every second, in a daemon thread, until it is closed.

    They log events, and what a handler raises ends up here: that is said once for each function.

    Args:
        actions: What to call.
        seconds: How often.
    """

    def __init__(self, actions: Sequence[Callable[[], None]], seconds: float = _SECONDS) -> None:
        self._actions = actions
        self._said: set[Callable[[], None]] = set()
        self._seconds = seconds
        self._over = Event()
        self._thread = Thread(target=self._run, name="monitel-torch", daemon=True)
        if self._actions:
            self._thread.start()

    def close(self) -> None:
        """End the thread, and call each function once more, here."""
        self._over.set()
        if self._thread.is_alive():  # not in a forked child
            self._thread.join(_PATIENCE)
        self._tick()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self._tick()

    def _tick(self) -> None:
        for action in self._actions:
            try:
                action()
            except Exception:
                if action not in self._said:
                    self._said.add(action)
                    _log.warning("the thread of monitel.torch goes on after a failure", exc_info=True)
