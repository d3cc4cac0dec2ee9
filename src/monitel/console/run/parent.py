"""The parent of a command: it waits for the end, and passes on signals that were sent to it alone."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from monitel.console.run.child import start
from monitel.run_folder import start_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GRACE = 0.03  # seconds in which a sender that signals each process of a job reaches the others

#: Signals of the terminal that stop a job.
_STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}

#: Signals that are not waited for: they cannot be blocked, or are caused by this process.
_OWN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE} | {
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS)
}

WAITED = signal.valid_signals() - _OWN


@dataclass(frozen=True)
class Ended:
    """The end of the command.

    Attributes:
        pid: Its process id.
        start: Its start time in ticks since the boot: an earlier process may have had the same id.
        status: Its status, as ``os.waitpid`` returns it.
        began_ns: Time of its start, Unix ns.
        ended_ns: Time of its end, Unix ns.
    """

    pid: int
    start: str
    status: int
    began_ns: int
    ended_ns: int


class Parent:
    """Starts a command, and waits for it like a shell would.

    The command is in the process group of this process, so a signal to the group, such as Ctrl-C, reaches it without
    help. A signal that was sent to this process alone is passed on. If the command is stopped by the terminal, this
    process stops as well, so that the shell takes the terminal back.

    From :meth:`start` to :meth:`close` all signals are blocked, also in threads that are started in between.

    Attributes:
        began_ns: Time of the start, Unix ns.
    """

    def __init__(self) -> None:
        self._mask: set[int] = set()
        self._witness = Witness()
        self._child = 0
        self._start_time = ""
        self.began_ns = 0
        self._passes_on = not any(name.startswith("SLURM_JOB") for name in os.environ)  # it signals all processes
        self._passed_stop = False

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Start the command, and return its process id.

        Raises:
            CommandError: There is no such program, or it cannot be executed.
            OSError: The system has no resources for another process.
        """
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else the system discards the status of the command
        self._mask = {*signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)}
        try:
            with suppress(OSError):  # without the witness, signals to the group are passed on as well
                self._witness.start()  # before the command, whose first signal it must see
            self.began_ns = time.time_ns()
            self._child = start(command, environment, self._mask)
            self._start_time = start_time(self._child)
        except BaseException:
            self.close()
            raise
        return self._child

    def wait(self) -> Ended:
        """Wait until the command has ended."""
        while True:
            if (status := self._reap()) is not None:
                return Ended(self._child, self._start_time, status, self.began_ns, time.time_ns())
            received = signal.sigwaitinfo(WAITED)
            if received.si_signo != signal.SIGCHLD:
                self._take(received)

    def close(self) -> None:
        """End the witness, and restore the blocked signals. Signals that have arrived have no effect."""
        self._witness.stop()
        while signal.sigtimedwait(WAITED - self._mask, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _take(self, received: signal.struct_siginfo) -> None:
        """Pass a signal on if it was sent by a process, to this process alone, and not by the command itself."""
        number = received.si_signo
        to_group = self._is_to_group(number)
        if received.si_code <= 0 and received.si_pid != self._child and self._passes_on:
            if not to_group:
                time.sleep(_GRACE)  # noqa: TID251  no signal may end it
                to_group = self._is_to_group(number)
            if not to_group:
                self._passed_stop = number == signal.SIGTSTP
                with suppress(ProcessLookupError, PermissionError):  # PermissionError: it has another user id now
                    os.kill(self._child, number)

    def _is_to_group(self, number: int) -> bool:
        """Return True if a signal was sent to the group.

        The next one may have come before the answer, and is not seen apart from this one then: it is taken for one to
        the group as well.
        """
        to_group = self._witness.saw(number)
        while to_group and signal.sigtimedwait({number}, 0) is not None:
            self._witness.saw(number)
        return to_group

    def _reap(self) -> int | None:
        """Return the status of the command if it has ended. As process 1, take the status of orphans too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if pid != self._child:
                continue
            if not os.WIFSTOPPED(status):
                return status
            self._stop(os.WSTOPSIG(status))

    def _stop(self, number: int) -> None:
        """Stop as the command has stopped, until this process is continued."""
        if number not in _STOPS or not (self._passed_stop or _has_terminal()):
            return
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})  # it stops here
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


_WITNESS_PATIENCE = 2.0  # seconds in which the witness answers, on a machine that is overloaded


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
            while select.select([self._answers], [], [], _WITNESS_PATIENCE)[0]:
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
