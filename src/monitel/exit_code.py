"""Exit code of the process, which atexit functions cannot see otherwise."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from monitel.os_threads import in_main_thread


class ExitCode:
    """Records calls of ``sys.exit`` in the main thread that may end the process, by replacing ``sys.exit``.

    Attributes:
        failed: True after a call with a code other than None and 0, unless the program has caught its exception.
        interrupted: True if that call handled a KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.failed = False
        self.interrupted = False
        self._calls = 0
        self._watching = False
        self._previous: Any = None
        self._replacement = self._exit  # one bound method, so that it can be recognized

    def watch(self) -> None:
        """Replace ``sys.exit``. Idempotent."""
        self.failed = False
        self._watching = True
        if self._previous is None:
            self._previous = sys.exit
            sys.exit = self._replacement

    def forget(self) -> None:
        """Restore ``sys.exit``. If it has been replaced since, the replacement stays, and only passes calls on."""
        self._watching = False
        if sys.exit is self._replacement:
            sys.exit = self._previous
            self._previous = None

    def caught(self, call: int) -> None:
        """Forget a call of ``sys.exit`` that does not end the process."""
        if call == self._calls:
            self.failed = False

    def _exit(self, code: Any = None, /) -> Any:
        try:
            self._previous(code)
        except SystemExit as error:
            if self._watching and in_main_thread():  # elsewhere it ends only the thread
                self._calls += 1
                self.failed = error.code is not None and error.code != 0
                self.interrupted = isinstance(error.__context__, KeyboardInterrupt)
                with suppress(Exception):
                    error._monitel_call = _Call(self, self._calls)  # type: ignore[attr-defined]
            raise


class _Call:
    """A call of ``sys.exit``. As an attribute of its exception, it is deleted with it."""

    def __init__(self, owner: ExitCode, number: int) -> None:
        self._owner = owner
        self._number = number

    def __del__(self) -> None:
        with suppress(ValueError):  # raised if no Python code runs any more: the exception has ended the program
            sys._getframe(1)
            self._owner.caught(self._number)
