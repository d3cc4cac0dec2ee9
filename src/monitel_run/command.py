"""The command ``monitel run``. Until its command runs it loads only the standard library."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from monitel_run.arguments import parse
from monitel_run.folder import PROCESS, VARIABLE, is_running, make_run_folder, remove_abandoned, remove_run_folder
from monitel_run.parent import CommandError, Parent, exit_like, replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monitel_otlp.attempts import Attempt
    from monitel_run.parent import Ended

#: The folder of the ``sitecustomize`` module for the processes of the command.
INJECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "injected")

_LONG = 5.0  # seconds after which the start of the command is logged before its end
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Interrupted(BaseException):
    """Raised by a signal that ends the work after the end of the command."""


def run(arguments: Sequence[str]) -> int:
    """Run a command with the arguments after ``run``, and end like it; return a status if it cannot be started."""
    command, environment, endpoint_given = parse(arguments, os.environ)
    parent = Parent()
    try:
        if is_running(environment.get(VARIABLE, "")):
            environment.pop(PROCESS, None)
            replace(command, environment)  # the outer run does the rest
        try:
            folder, announcements = make_run_folder()
        except OSError as error:
            _print(f"without telemetry, because there is no place for a folder: {error}")
            replace(command, environment)
        try:
            began_ns = time.time_ns()
            parent.start(command, _with_injection(environment, folder))
        except BaseException:
            remove_run_folder(folder)
            raise
    except CommandError as error:
        _print(str(error))
        return error.status
    except OSError as error:
        _print(f"the command cannot be started: {error}")
        return 126
    os.environ.clear()
    os.environ.update(environment)
    worker = None
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() != "true":
        try:
            worker = Worker(command, began_ns, Path(folder), announcements)
        except RuntimeError as error:  # no thread can be started
            _print(f"without telemetry: {error}")
    return exit_like(_wait(parent, worker, folder, endpoint_given=endpoint_given))


def _with_injection(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return environment variables for a command: its Python processes are recorded, and belong to this run."""
    found = {name: value for name, value in environment.items() if name != PROCESS}
    others = [path for path in found.get("PYTHONPATH", "").split(os.pathsep) if path != INJECTED]
    found["PYTHONPATH"] = os.pathsep.join([INJECTED, *others]) if others != [""] else INJECTED
    found[VARIABLE] = folder
    return found


def _wait(parent: Parent, worker: Worker | None, folder: str, *, endpoint_given: bool) -> int:
    """Wait for the end of the command, finish, and return its status."""
    end = parent.wait()
    try:
        for number in _ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _interrupt)
        parent.close()
        if worker is None or not worker.finish(end, endpoint_given=endpoint_given):
            _print("nothing was recorded", "monitel run")
    except _Interrupted:
        _print("stopped; telemetry that is not delivered stays on disk")
    except Exception as error:
        _print(f"the telemetry of the command could not be finished: {error!r}")
    finally:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        remove_run_folder(folder)
        remove_abandoned(folder)
    assert end.status is not None
    return end.status


class Worker(Thread):
    """Does the work besides waiting, which may take long or fail. The main thread prints the summary in any case."""

    def __init__(self, command: Sequence[str], began_ns: int, folder: Path, announcements: int) -> None:
        from monitel_run.processes import ProcessWatch  # late, here and below: the command runs at once

        super().__init__(name="monitel-run", daemon=True)
        self.folder, self.facts = folder, (command, began_ns, folder)
        self.long = time.monotonic() + _LONG  # when the start of the command is logged
        self.end: Ended | None = None
        self.attempts: list[Attempt] = []  # one of each exporter
        self.problems: list[str] = []
        self.watch = ProcessWatch(announcements)
        self.watch.start()
        self.start()

    def run(self) -> None:
        """Deliver, once a process has announced itself, the command takes long, or it has ended."""
        self.watch.begun.wait(_LONG)
        with suppress(Exception):  # that of an import: the main thread prints it
            from monitel.console.run import deliver

            deliver(self)

    def finish(self, end: Ended, *, endpoint_given: bool) -> bool:
        """Deliver what is left, and print the summary; return False without anything."""
        self.watch.stop()
        sends = any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in os.environ)
        reports = len(os.listdir(self.folder)) > 1  # beside the FIFO
        if not (self.watch.announced or self.watch.children or self.attempts or sends or reports):
            return False
        from monitel.console.run import finish

        self.watch.begun.set()
        finish(self, end, endpoint_given=endpoint_given)
        return True


def _interrupt(_number: int, _frame: object) -> None:
    for number in _ENDS:  # a further signal must not change the exit status
        signal.signal(number, signal.SIG_IGN)
    raise _Interrupted


def _print(message: str, program: str = "monitel") -> None:
    with suppress(Exception):  # stderr may be closed
        sys.stderr.write(f"{program}: {message}\n")
        sys.stderr.flush()
