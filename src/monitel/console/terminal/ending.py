"""The end of the process behind the screen, even if a thread of the screen does not end.

After a hangup, threads that read the terminal may wait or spin forever, and Python waits for them at its exit.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

with suppress(ImportError):  # on Windows
    import termios

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S = 3.0
_RESTORE = b"\x1b[<u\x1b[?2004l\x1b[?1004l\x1b[?7h\x1b[?1049l\x1b[?25h"  # keys, paste, focus, wrap, screen, cursor


class Ending:
    """Ends the process some seconds after :meth:`begin`, unless :meth:`finish` finds that it can end by itself.

    Args:
        patience: The seconds.
        leave: Ends the process with an exit status, whatever its threads do.
    """

    def __init__(self, patience: float = _PATIENCE_S, leave: Callable[[int], object] = os._exit) -> None:
        self._patience, self._leave = patience, leave
        self._before = set(threading.enumerate())
        self._terminal = _settings()
        self._timer: threading.Timer | None = None
        self._status = 1

    def begin(self, status: int) -> None:
        """Begin to end, with an exit status. Idempotent."""
        if self._timer is None:
            self._status = status
            self._timer = threading.Timer(self._patience, self._force)
            self._timer.daemon = True
            self._timer.start()

    def finish(self, status: int) -> None:
        """Wait for the threads that were started meanwhile. If one does not end, the process ends nevertheless."""
        self.begin(status)
        self._status = status
        for thread in set(threading.enumerate()) - self._before:
            if not thread.daemon and thread is not threading.current_thread():
                thread.join(self._patience / 2)
                if thread.is_alive():
                    return
        if self._timer is not None:
            self._timer.cancel()

    def _force(self) -> None:
        with suppress(OSError, ValueError):
            os.write(sys.__stdout__.fileno(), _RESTORE)  # type: ignore[union-attr]  # run_app() has checked it
        if self._terminal is not None:
            with suppress(OSError, ValueError, termios.error):
                termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, self._terminal)  # type: ignore[union-attr]
        self._leave(self._status)


def is_terminal_gone() -> bool:
    """Return True if the terminal was hung up. A process that ignores SIGHUP, as with ``nohup``, receives no signal."""
    try:
        return sys.__stdin__ is not None and _hung_up(sys.__stdin__.fileno())
    except (OSError, ValueError):
        return True


def _hung_up(descriptor: int) -> bool:
    try:
        termios.tcgetattr(descriptor)
    except termios.error:
        return True
    return False


def _settings() -> list[Any] | None:
    try:
        return termios.tcgetattr(sys.__stdin__.fileno())  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError, NameError):
        return None
    except termios.error:
        return None
