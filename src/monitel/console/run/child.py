"""The start of a command with everything that this process has inherited, and with the variables of telemetry."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

from monitel.run_folder import PROCESS, VARIABLE

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


#: The folder of the ``sitecustomize`` module for the processes of the command.
INJECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "injected")

_SIGNALS = ("METRICS", "LOGS", "TRACES")
_OTLP = "OTEL_EXPORTER_OTLP_"


def with_options(
    environment: Mapping[str, str],
    *,
    endpoint: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    protocol: str | None = None,
    service_name: str | None = None,
) -> dict[str, str]:
    """Return environment variables with those that stand for options of ``monitel run``.

    An endpoint or protocol replaces the variables of single signals, too. Headers are added.
    """
    found = dict(environment)
    for name, value in (("ENDPOINT", endpoint), ("PROTOCOL", protocol)):
        if value is not None:
            for signal in _SIGNALS:
                found.pop(f"{_OTLP}{signal}_{name}", None)
            found[f"{_OTLP}{name}"] = value
    if headers:
        more = ",".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in headers)
        names = [name for signal in _SIGNALS if (name := f"{_OTLP}{signal}_HEADERS") in found]
        for name in (f"{_OTLP}HEADERS", *names):
            found[name] = f"{found[name]},{more}" if found.get(name, "").strip() else more
    if service_name is not None:
        found["OTEL_SERVICE_NAME"] = service_name
    return found


def with_injection(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return environment variables for a command: its Python processes are recorded, and belong to this run.

    Args:
        environment: The variables.
        folder: The folder of the run.
    """
    found = without_process(environment)
    others = [path for path in found.get("PYTHONPATH", "").split(os.pathsep) if path != INJECTED]
    found["PYTHONPATH"] = os.pathsep.join([INJECTED, *others]) if others != [""] else INJECTED
    found[VARIABLE] = folder
    return found


def without_process(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a process that is recorded even if a recorded process has started it."""
    return {name: value for name, value in environment.items() if name != PROCESS}
