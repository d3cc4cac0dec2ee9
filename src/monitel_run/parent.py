"""The command of ``monitel run``: it is started in this process group, waited for as a shell does, and ended like."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from monitel_run.folder import start_time

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # exit statuses, as a shell has them
_SIGNAL = 128  # a shell adds it to the number of a signal
#: Signals of the terminal that stop a job.
_STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
#: The others cannot be blocked, or are caused by this process.
_WAITED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}
_WAITED -= {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
_SET_DUMPABLE = 4  # PR_SET_DUMPABLE


class CommandError(Exception):
    """Raised for a command that cannot be started, with the exit status of a shell for it."""

    def __init__(self, program: str, number: int) -> None:
        missing = number in {errno.ENOENT, errno.ENOTDIR}
        reason = ": command not found" if missing else f" cannot be executed: {os.strerror(number)}"
        super().__init__(f"{program!r}{reason}")
        self.status = _NOT_FOUND if missing else _NOT_EXECUTABLE


class Ended(NamedTuple):
    """The end of the command, or of one of its processes."""

    pid: int
    start: str  # in ticks since the boot: an earlier process may have had the same id
    status: int | None  # as ``os.waitpid`` returns it; None if it is unknown
    time_ns: int  # Unix ns
    rank: str = ""  # as the launcher has set it; ``child`` of one that another recorded process has started


class Parent:
    """Starts a command, and waits for it.

    The command is in the process group of this process, so the keys of a terminal reach it without help. A signal that
    another process has sent is passed on: one that was sent to the group may reach the command twice, because a
    receiver cannot see whether a signal was sent to it or to its group. If the command is stopped by the terminal, this
    process stops as well, so that the shell takes the terminal back.

    From :meth:`start` to :meth:`close` all signals are blocked, also in threads that are started in between.
    """

    def __init__(self) -> None:
        self._mask: set[int] = set()
        self._passes_on = not any(name.startswith("SLURM_JOB") for name in os.environ)  # it signals all processes

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the command; raises CommandError, or OSError if the system has no resources for another process.

        This process must have a single thread.
        """
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else the system discards the status of the command
        self._mask = {*signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)}

        def restore() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

        def begin(words: list[str]) -> subprocess.Popen[bytes]:
            return subprocess.Popen(words, env=environment, close_fds=False, preexec_fn=restore)  # noqa: S603, PLW1509

        try:  # the object is kept: its destructor would take the status of the command
            self._process = _begin(begin, command)
        except BaseException:
            self.close()
            raise
        self._start_time = start_time(self._process.pid)

    def wait(self) -> Ended:
        """Wait until the command has ended. Process 1 takes the status of orphans, too."""
        child = self._process.pid
        while True:
            pid, status = os.waitpid(-1 if os.getpid() == 1 else child, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                self._pass_on(signal.sigwaitinfo(_WAITED))
            elif pid == child and os.WIFSTOPPED(status):
                _stop(os.WSTOPSIG(status))
            elif pid == child:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                return Ended(pid, self._start_time, status, time.time_ns())

    def _pass_on(self, received: signal.struct_siginfo) -> None:
        """Pass a signal on, unless it came from the command itself, or from the kernel, which signals the group."""
        others = received.si_code <= 0 and received.si_pid != self._process.pid
        if received.si_signo != signal.SIGCHLD and others and self._passes_on:
            with suppress(ProcessLookupError, PermissionError):  # PermissionError: it has another user id now
                os.kill(self._process.pid, received.si_signo)

    def close(self) -> None:
        """Restore the blocked signals. Signals that have arrived have no effect."""
        while signal.sigtimedwait(_WAITED - self._mask, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def replace(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Execute a command in the place of this process; raises CommandError if that is not possible."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    _begin(lambda words: os.execvpe(words[0], words, environment), command)  # noqa: S606
    raise AssertionError


def _begin(begin: Callable[[list[str]], Any], command: Sequence[str]) -> Any:
    """Call a function with a command; raises CommandError if it cannot be executed."""
    try:
        return begin([*command])
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.ENOMEM}:
            raise
        raise CommandError(command[0], error.errno or errno.EIO) from None


def _stop(number: int) -> None:
    """Stop as the command has stopped, until this process is continued. Without a terminal nobody would do that."""
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
        if number in _STOPS:
            os.kill(os.getpid(), number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})  # it stops here
            signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def exit_like(status: int) -> NoReturn:
    """End this process like one with this status of ``os.waitpid``: by its signal, without a core, or with its code.

    Process 1 cannot be ended by a signal that it sends to itself: its exit code is then that of a shell.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or nobody reads it
            stream.flush()
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if os.getpid() != 1:
        with suppress(Exception):
            import ctypes  # late: it is needed only here

            ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
        with suppress(OSError, ValueError):  # SIGKILL has no other effect
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(_SIGNAL + number)
