"""A process of the same group that shows whether a signal was sent to the whole group."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import NoReturn

_PATIENCE = 2.0  # seconds in which it answers, on a machine that is overloaded


class Witness:
    """A process with all signals blocked. It does nothing but answer questions, and ends with this process.

    A signal to the group stays pending in it. A receiver cannot see otherwise whether a signal was sent to it or to its
    group.
    """

    def __init__(self) -> None:
        self._process = 0
        self._questions = self._answers = -1
        self._question = 0  # its number, modulo 256

    def start(self) -> None:
        """Start the process. This process must have a single thread.

        Raises:
            OSError: The system has no resources for another process.
        """
        asked, self._questions = os.pipe()
        self._answers, answered = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._process = os.fork()
            if self._process == 0:
                _answer(asked, answered)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(asked)
            os.close(answered)

    def saw(self, number: int) -> bool:
        """Return True if the process has received a signal, too, since the last question for it."""
        if not self._process:
            return False
        self._question = (self._question + 1) % 256
        try:
            os.write(self._questions, bytes([self._question, number]))
            while select.select([self._answers], [], [], _PATIENCE)[0]:
                question, found = os.read(self._answers, 2)
                if question == self._question:  # else the late answer to an earlier question
                    return bool(found)
        except (OSError, ValueError):
            pass
        return False

    def stop(self) -> None:
        """End the process. Idempotent."""
        if self._process:
            with suppress(OSError):
                os.kill(self._process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._process, 0)
            os.close(self._questions)
            os.close(self._answers)
            self._process = 0


def _answer(asked: int, answered: int) -> NoReturn:
    """Answer in the new process until the other one has ended: then nobody holds the end for writing."""
    try:
        begin = 0
        for kept in sorted((asked, answered)):
            os.closerange(begin, kept)
            begin = kept + 1
        most = os.sysconf("SC_OPEN_MAX")
        os.closerange(begin, most if most > 0 else 1 << 20)
        os.chdir("/")
        while read := os.read(asked, 2):
            question, number = read
            found = signal.sigtimedwait({number}, 0) is not None
            os.write(answered, bytes([question, found]))
    finally:
        os._exit(0)
