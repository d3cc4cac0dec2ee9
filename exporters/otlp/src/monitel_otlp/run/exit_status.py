"""The end of this process, like that of its command."""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from typing import NoReturn

_SIGNAL = 128  # a shell adds it to the number of a signal
_SET_DUMPABLE = 4  # PR_SET_DUMPABLE


def exit_like(status: int) -> NoReturn:
    """End this process as another process has ended: by the same signal, without a core file, or with its exit code.

    Process 1 cannot be ended by a signal that it sends to itself: its exit code is then that of a shell.

    Args:
        status: Status of the other process, as ``os.waitpid`` returns it.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or nobody reads it
            stream.flush()
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if os.getpid() != 1:
        _prevent_core()
        with suppress(OSError, ValueError):  # SIGKILL has no other effect
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(_SIGNAL + number)


def _prevent_core() -> None:
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(Exception):
        import ctypes  # late: it is needed only here

        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)  # the limit does not apply to a program that takes cores
