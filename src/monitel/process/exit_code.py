"""Exit code of the process, which atexit functions cannot see otherwise."""

from __future__ import annotations

import builtins
import sys
from contextlib import suppress
from functools import partial
from typing import Any

from monitel.process.os_threads import in_main_thread

_FUNCTIONS = [(sys, "exit"), (builtins, "exit"), (builtins, "quit")]  # the module site adds those to builtins


class ExitCode:
    """Records calls in the main thread that may end the process, by replacing ``sys.exit``, ``exit`` and ``quit``.

    Attributes:
        failed: True after a call with a code other than None and 0, unless the program has caught its exception.
        interrupted: True if that call handled a KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.failed = False
        self.interrupted = False
        self._calls = 0
        self._watching = False
        self._replacements: dict[tuple[Any, str], partial[Any]] = {}

    def watch(self) -> None:
        """Replace the functions. Idempotent. An interactive session keeps ``exit`` and ``quit``, which it shows."""
        self.failed = False
        self._watching = True
        for place in [(sys, "exit")] if hasattr(sys, "ps1") else _FUNCTIONS:
            if place not in self._replacements and hasattr(*place):
                self._replacements[place] = partial(self._exit, getattr(*place))
                setattr(*place, self._replacements[place])

    def forget(self) -> None:
        """Restore the functions. If one has been replaced since, the replacement stays, and only passes calls on."""
        self._watching = False
        for place, replacement in [*self._replacements.items()]:
            if getattr(*place, None) is replacement:
                setattr(*place, replacement.args[0])
                del self._replacements[place]

    def caught(self, call: int) -> None:
        """Forget a call of ``sys.exit`` that does not end the process."""
        if call == self._calls:
            self.failed = False

    def _exit(self, previous: Any, /, *code: Any, **named: Any) -> Any:
        try:
            previous(*code, **named)
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
