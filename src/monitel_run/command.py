"""The command ``monitel run``. Until its command runs it loads only the standard library."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from monitel_run.arguments import parse
from monitel_run.folder import PROCESS, VARIABLE, is_running, make_run_folder, remove_abandoned, remove_run_folder
from monitel_run.parent import CommandError, Parent, exit_like, replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monitel_run.delivery import Delivery

#: The folder of the ``sitecustomize`` module for the processes of the command.
INJECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "injected")

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Interrupted(BaseException):
    """Raised by a second signal after the end of the command. The first one stops the delivery."""


def run(arguments: Sequence[str]) -> int:
    """Run a command with the arguments after ``run``, and end like it; return a status if it cannot be started."""
    command, environment = parse(arguments, os.environ)
    try:
        if is_running(os.environ.get(VARIABLE, "")):  # the outer run does the rest
            replace(command, {name: value for name, value in os.environ.items() if name != PROCESS})
        try:
            folder, announcements = make_run_folder()
        except OSError as error:
            _print(f"without telemetry, because there is no place for a folder: {error}")
            replace(command, environment)
        parent, began_ns = Parent(), time.time_ns()
        try:
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
    delivery = None
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() != "true":
        from monitel_run.delivery import Delivery  # late: the command runs at once

        try:
            delivery = Delivery(command, began_ns, folder, announcements)
        except RuntimeError as error:  # no thread can be started
            _print(f"without telemetry: {error}")
    return exit_like(_wait(parent, delivery, folder))


def _with_injection(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the variables of a command whose Python processes are recorded, and belong to this run."""
    found = {name: value for name, value in environment.items() if name != PROCESS}
    others = [path for path in found.get("PYTHONPATH", "").split(os.pathsep) if path != INJECTED]
    found["PYTHONPATH"] = os.pathsep.join([INJECTED, *others]) if others != [""] else INJECTED
    return {**found, VARIABLE: folder}


def _wait(parent: Parent, delivery: Delivery | None, folder: str) -> int:
    """Wait for the end of the command, finish, and return its status."""
    end = parent.wait()

    def interrupt(_number: int, _frame: object) -> None:
        if delivery is None or not delivery.stop():
            _ignore_ends()
            raise _Interrupted

    try:
        for number in _ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, interrupt)
        parent.close()
        if delivery is None or not delivery.finish(end):
            _print("nothing was recorded", "monitel run")
    except _Interrupted:
        _print("stopped; the summary is not complete")
    except Exception as error:
        _print(f"the telemetry of the command could not be finished: {error!r}")
    finally:
        _ignore_ends()
        remove_run_folder(folder)
        remove_abandoned(folder)
    assert end.status is not None
    return end.status


def _ignore_ends() -> None:
    for number in _ENDS:  # a further signal must not change the exit status
        signal.signal(number, signal.SIG_IGN)


def _print(message: str, program: str = "monitel") -> None:
    with suppress(Exception):  # stderr may be closed
        sys.stderr.write(f"{program}: {message}\n")
        sys.stderr.flush()
