"""The attempt of a command of ``monitel run``: its events, and delivery of what its processes have left."""

from __future__ import annotations

import marshal
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from monitel.attributes import escape_surrogates
from monitel.blackbox.box import Box
from monitel.blackbox.death import Deaths, signal_name
from monitel.blackbox.folder import box_root
from monitel.blackbox.forms import LogRecord
from monitel.blackbox.record import EVENT
from monitel.blackbox.settings import given_folder, spool_root
from monitel.process.launcher import LAUNCHERS, sdk_is_disabled
from monitel.process.os_threads import Event
from monitel.run_events import git_commit
from monitel.runs.ended import read_ends, store_missing_ends
from monitel_otlp.config.resource import describe_process
from monitel_otlp.config.settings import resolve
from monitel_otlp.export.collector import collect
from monitel_otlp.export.records import deliver_marked
from monitel_otlp.messages.attributes import Plain
from monitel_otlp.messages.request import identity_of
from monitel_run.folder import CHILD
from monitel_run.parent import Ended

STARTED, ENDED = "attempt.started", "attempt.ended"

_INFO, _ERROR = 9, 17
_MODULE = re.compile(r"[A-Za-z_][\w.]*")
_TIMEOUT = 2.0  # seconds, for the disk


class CommandTelemetry:
    """Collects and delivers the telemetry of killed processes of a command, and logs its start and its end.

    ``deaths`` are the ends of processes that are observed; ``problems`` receives descriptions of failures.
    """

    def __init__(
        self, command: Sequence[str], began_ns: int, folder: Path, deaths: Deaths, problems: list[str]
    ) -> None:
        self._command = command
        self._began_ns = began_ns
        self._folder = folder
        self._deaths = deaths
        self._problems = problems
        self._root = box_root(given_folder("black_box_dir"))
        self._settings = resolve(spool_dir=spool_root())
        self._stopped = Event()
        self._start_logged = False

    def log_start(self) -> None:
        self._start_logged = True
        self._log_events(self._started())

    def collect(self, *, observed_only: bool = False) -> bool:
        """Collect the records of ended processes, and deliver them; return True if there were any.

        With ``observed_only`` those of processes whose end is not observed yet are left, so that it will be known.
        """
        given = (self._root, self._settings.spool_root, self._deaths, self._stopped, str(self._folder))
        collected = collect(*given, observed_only=observed_only, keep_unread=True)
        self._problems += collected.problems
        deliver_marked(collected.records, self._settings, self._root, self._stopped)
        return bool(collected.records)

    def finish(self, end: Ended, ends: Sequence[Ended], *, recorded: bool) -> None:
        """Collect and deliver everything that is left, on the disk or in the boxes, and log the end."""
        recorded = self.collect() or recorded
        store_missing_ends(self._folder, self._began_ns, self._deaths, self._settings.spool_root)
        reports = [report for process in read_ends(self._folder)[0] for report in process.reports]
        spools = [Path(each.spool) for each in reports if each.stored and each.spool]
        places = [[root / path.name for root in (path.parent, self._root) if root is not None] for path in spools]
        found = {path for tried in places for path in [each for each in tried if each.is_dir()][:1]}
        deliver_marked(found, self._settings, self._root, self._stopped)
        if recorded or self._settings.mark:
            self._log_events(*([] if self._start_logged else [self._started()]), self._ended(end, ends))

    def stop(self) -> None:
        self._stopped.set()

    def _started(self) -> LogRecord:
        attributes: dict[str, Plain] = {"run.command": program_and_script(self._command)}
        with suppress(OSError, ValueError):
            if (commit := git_commit()) is not None:
                attributes["run.git.commit"] = commit
        return LogRecord(self._began_ns, time.time_ns(), _INFO, STARTED, None, attributes)

    def _ended(self, end: Ended, ends: Sequence[Ended]) -> LogRecord:
        attributes: dict[str, Plain] = {"run.command": program_and_script(self._command)}
        signal, code = _signal_and_code(end)
        attributes |= {"process.exit.signal": signal} if signal else {"process.exit.code": code}
        attributes["run.duration"] = max(0, end.time_ns - self._began_ns) / 1e9
        for first in [each for each in ends if each.status and each.rank != CHILD][:1]:
            signal, code = _signal_and_code(first)
            attributes["attempt.first_death"] = f"killed by {signal}" if signal else f"exit status {code}"
            attributes["attempt.first_death.pid"] = first.pid
            if first.rank:
                attributes["attempt.first_death.rank"] = int(first.rank)
        return LogRecord(end.time_ns, time.time_ns(), _ERROR if end.status else _INFO, ENDED, None, attributes)

    def _log_events(self, *events: LogRecord) -> None:
        """Write events to a new record of an ended process, with the resource of this process, and deliver it."""
        if sdk_is_disabled() or "logs" in self._settings.off:
            return
        try:
            box = Box(self._settings.spool_root, None, identity_of(describe_process()), mark=self._settings.mark)
            for event in events:
                box.journals["logs"].append(EVENT, marshal.dumps(tuple(event), 2))
            if not box.close(_TIMEOUT):
                raise OSError(box.disk_problem)
            spool = self._settings.spool_root / box.name
            deliver_marked([spool], self._settings, self._root, self._stopped)
        except Exception as error:
            self._problems.append(f"the events of the attempt cannot be written: {error}")


def _signal_and_code(end: Ended) -> tuple[str, int]:
    status = end.status or 0
    return (signal_name(os.WTERMSIG(status)), 0) if os.WIFSIGNALED(status) else ("", os.WEXITSTATUS(status))


def program_and_script(command: Sequence[str]) -> str:
    """Return the program of a command, and its script or module. Other arguments may hold secrets."""
    shown = [Path(command[0]).name]
    runs_modules = shown[0].startswith("python") or shown[0] in LAUNCHERS
    for before, argument in pairwise(command):
        if runs_modules and before == "-m" and _MODULE.fullmatch(argument):
            shown += ["-m", argument]
            break
        if not argument.startswith("-") and os.path.isfile(argument):  # noqa: PTH113  Path's raises for a long text
            shown.append(argument)
            break
    return escape_surrogates(" ".join(shown))
