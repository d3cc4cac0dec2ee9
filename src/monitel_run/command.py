"""The command ``monitel run``. Until its command runs it loads only the standard library."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

from monitel_run.arguments import parse
from monitel_run.folder import PROCESS, VARIABLE, is_running, make_run_folder, remove_abandoned, remove_run_folder
from monitel_run.parent import CommandError, Parent, exit_like, replace
from monitel_run.processes import ProcessWatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from monitel_run.parent import Ended

#: The folder of the ``sitecustomize`` module for the processes of the command.
INJECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "injected")

_LONG = 5.0  # seconds after which the start of the command is logged before its end
_ENDING = 5.0  # seconds for collection and delivery
_SILENT = 1.0  # seconds of these before a message is printed
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Interrupted(BaseException):
    """Raised by a signal that ends the work after the end of the command."""


def run(arguments: Sequence[str]) -> int:
    """Run a command with the arguments after ``run``, and end like it.

    Returns:
        The exit status of a shell for a command that cannot be started.
    """
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
    work = None
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() != "true":
        try:
            work = _Work(command, began_ns, Path(folder), announcements, endpoint_given=endpoint_given)
        except RuntimeError as error:  # no thread can be started
            _print(f"without telemetry: {error}")
    return exit_like(_wait(parent, work, folder))


def _with_injection(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return environment variables for a command: its Python processes are recorded, and belong to this run."""
    found = {name: value for name, value in environment.items() if name != PROCESS}
    others = [path for path in found.get("PYTHONPATH", "").split(os.pathsep) if path != INJECTED]
    found["PYTHONPATH"] = os.pathsep.join([INJECTED, *others]) if others != [""] else INJECTED
    found[VARIABLE] = folder
    return found


def _wait(parent: Parent, work: _Work | None, folder: str) -> int:
    """Wait for the end of the command, finish, and return its status."""
    end = parent.wait()
    try:
        for number in _ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _interrupt)
        parent.close()
        if work is None or not work.finish(end):
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


class _Work:
    """The work besides waiting, in another thread, because it may take long: this process does not wait for its end."""

    def __init__(
        self, command: Sequence[str], began_ns: int, folder: Path, announcements: int, *, endpoint_given: bool
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor  # late, here and below: the command runs at once

        self._command, self._began_ns, self._folder = command, began_ns, folder
        self._endpoint_given = endpoint_given
        self._attempts: list[Any] | None = None  # one of each exporter
        self._problems: list[str] = []
        self._worker = ThreadPoolExecutor(1)
        self._watch = ProcessWatch(announcements, self._note)
        self._watch.start()
        self._timer = Timer(_LONG, self._submit, ["log_start"])
        self._timer.daemon = True
        self._timer.start()

    def _note(self, end: Ended) -> None:
        """Collect the black box of a process of the command that has not ended well, soon."""
        if end.status != 0:
            self._submit("collect", end, observed_only=True)

    def _submit(self, method: str, *ends: Ended, **given: object) -> Future[None]:
        """Let the thread note ends, and call a method of the attempt of each exporter."""
        return self._worker.submit(self._call, method, ends, given)

    def _call(self, method: str, ends: Sequence[Ended], given: Mapping[str, object]) -> None:
        try:
            if self._attempts is None:
                from monitel.blackbox.death import Deaths
                from monitel.console.exporters import load

                exporters, self._problems = load()
                self._deaths = Deaths()
                facts = (self._command, self._began_ns, self._folder, self._deaths, self._problems)
                self._attempts = [each.attempt(*facts) for each in exporters]
            for end in ends:
                self._deaths.observe(end)
            for attempt in self._attempts:
                getattr(attempt, method)(**given)
        except Exception as error:
            _print(f"the telemetry of the command could not be finished: {error!r}")

    def finish(self, end: Ended) -> bool:
        """Collect and deliver what is left, for some seconds at most, and print the summary; False without anything."""
        self._timer.cancel()
        self._watch.stop()
        sends = any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in os.environ)
        reports = len(os.listdir(self._folder)) > 1  # beside the FIFO
        if not (self._watch.announced or self._attempts or sends or reports):
            return False
        from concurrent.futures import wait

        ends, recorded = self._watch.ends, self._watch.announced > 0
        finished = [self._submit("finish", *ends, end, end=end, ends=ends, recorded=recorded)]
        try:
            if not wait(finished, _SILENT).done:
                _print("delivering the remaining telemetry; Ctrl-C stops the delivery, and the rest stays on disk")
                wait(finished, _ENDING - _SILENT)
        finally:
            for attempt in self._attempts or ():
                attempt.stop()
        for problem in self._problems:
            _print(problem)
        from monitel.console.exporters import report_deaths
        from monitel.console.summary import print_summary

        report_deaths(self._folder, self._deaths)
        print_summary(self._folder, cause=self._deaths.cause, endpoint_given=self._endpoint_given)
        if end.status and ends and all(each.status == 0 for each in ends):
            killed = f"signal {os.WTERMSIG(end.status)}" if os.WIFSIGNALED(end.status) else ""
            how = killed or f"exit status {os.WEXITSTATUS(end.status)}"
            _print(f"the command failed with {how}, although the processes that were recorded did not")
        return True


def _interrupt(_number: int, _frame: object) -> None:
    for number in _ENDS:  # a further signal must not change the exit status
        signal.signal(number, signal.SIG_IGN)
    raise _Interrupted


def _print(message: str, program: str = "monitel") -> None:
    with suppress(Exception):  # stderr may be closed
        sys.stderr.write(f"{program}: {message}\n")
        sys.stderr.flush()
