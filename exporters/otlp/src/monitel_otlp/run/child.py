"""The start of a command with everything that this process has inherited."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit statuses, as a shell has them

_SHELL = "/bin/sh"
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class CommandError(Exception):
    """Raised for a command that cannot be started.

    Attributes:
        status: The exit status of a shell for it.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def start(command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]) -> int:
    """Start a command in this process group, and return its process id.

    The command has the standard streams, open descriptors, working directory, limits and ignored signals of this
    process. This process must have a single thread.

    Args:
        command: The program, which is searched for in ``PATH``, and its arguments.
        environment: Its environment variables.
        mask: The signals that are blocked in it.

    Raises:
        CommandError: There is no such program, or it cannot be executed.
        OSError: The system has no resources for another process.
    """
    reading, writing = os.pipe()  # closed by a successful exec
    try:
        child = os.fork()
        if child == 0:
            _execute(command, environment, mask, writing)
        os.close(writing)
        writing = -1
        failure = b""
        while part := os.read(reading, 64):
            failure += part
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if not failure:
        return child
    os.waitpid(child, 0)
    raise failed(command[0], int(failure))


def replace(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Execute a command in the place of this process.

    Raises:
        CommandError: There is no such program, or it cannot be executed.
    """
    _restore_dispositions()
    raise failed(command[0], _try(command, environment))


def failed(program: str, number: int) -> CommandError:
    """Return the error of a program that cannot be started.

    Args:
        program: The name as given.
        number: The error number of the system.
    """
    if number in {errno.ENOENT, errno.ENOTDIR}:
        return CommandError(f"{program!r}: command not found", NOT_FOUND)
    return CommandError(f"{program!r} cannot be executed: {os.strerror(number)}", NOT_EXECUTABLE)


def _execute(command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int], failure: int) -> NoReturn:
    """Execute the command in the new process, and report an error number to the parent."""
    number = errno.EIO
    try:
        _restore_dispositions()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        number = _try(command, environment)
    finally:
        os.write(failure, b"%d" % number)
        os._exit(NOT_EXECUTABLE)


def _restore_dispositions() -> None:
    """Restore the effect of signals that Python ignores."""
    for name in ("SIGPIPE", "SIGXFSZ", "SIGXFZ"):
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, signal.SIG_DFL)


def _try(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Execute a command, as a shell does it, and return the error number if that fails."""
    found = errno.ENOENT
    for path in _candidates(command[0], environment):
        if environment.get("_") in {sys.argv[0], sys.executable}:  # a shell has set it to this program
            environment = {**environment, "_": path}
        try:
            os.execve(path, [*command], environment)
        except OSError as error:
            number = error.errno or errno.EIO
        except ValueError:  # a null character, in the name or in an argument
            number = errno.EINVAL
        if number == errno.ENOEXEC:  # a script without #!
            try:
                os.execve(_SHELL, [_SHELL, path, *command[1:]], environment)
            except OSError as error:
                number = error.errno or errno.EIO
        if number not in {errno.ENOENT, errno.ENOTDIR}:
            found = number
            if number != errno.EACCES:  # the next folder of PATH may hold another program
                break
    return found


def _candidates(program: str, environment: Mapping[str, str]) -> list[str]:
    if os.sep in program:
        return [program]
    if not program:
        return []
    return [os.path.join(folder, program) for folder in environment.get("PATH", _DEFAULT_PATH).split(os.pathsep)]
