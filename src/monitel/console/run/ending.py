"""Work after the end of a command: collection, delivery, and the event of its end."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.blackbox.death import Deaths, End
from monitel.console.ended import read_ends
from monitel.console.run import attempt
from monitel.os_threads import Event
from monitel.variables import read_variables
from monitel_otlp.choices import CHOICES
from monitel_otlp.config.environment import sdk_is_disabled
from monitel_otlp.config.settings import resolve
from monitel_otlp.export.dead import collect, roots_of
from monitel_otlp.export.ended_records import oldest_first, take
from monitel_otlp.export.replay import deliver
from monitel_otlp.transport.factory import make_transports

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monitel.blackbox.forms import LogRecord
    from monitel.console.run.parent import Ended
    from monitel.console.run.process_watch import ProcessEnd

_log = logging.getLogger("monitel.otlp")


class Ending:
    """Collects and delivers the telemetry of killed processes of a command, and logs its start and its end.

    Args:
        command: The command.
        folder: The folder of the run.

    Attributes:
        problems: Descriptions of failures.
        deaths: The ends of the processes of the command.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._stopped = Event()
        self._roots = roots_of(read_variables(_ROOT, dict.fromkeys(_ROOT)).get("black_box_dir"))
        self._repository: dict[str, str | bool] | None = None
        self._start_logged = False
        self.problems: list[str] = []
        self.deaths = Deaths()

    def log_start(self, began_ns: int) -> None:
        """Log the start now, because the command may run for long, and deliver the event."""
        self._repository = describe_repository()
        self._log_events([attempt.started(self._command, began_ns, self._repository)])
        self._start_logged = True

    def observe(self, ends: Iterable[ProcessEnd]) -> None:
        """Take the ends of processes, for the events of their deaths."""
        for each in ends:
            self.deaths.add(each.process.pid, _end(each.status, each.time_ns), each.process.start)

    def collect(self, *, observed_only: bool = False) -> bool:
        """Collect the black boxes of ended processes, and deliver them; return True if there were any.

        Args:
            observed_only: Leave those of processes whose end has not been observed yet, so that it will be known.
        """
        settings = resolve(None, **read_variables(_CHOICES, dict.fromkeys(_CHOICES)))
        collected = collect(
            self._roots,
            settings.spool_root,
            self.deaths,
            self._stopped,
            str(self._folder),
            observed_only=observed_only,
            keep_unread=True,
        )
        self.problems += collected.problems
        self._deliver(collected.records)
        return bool(collected.records)

    def finish(self, end: Ended, ends: Sequence[ProcessEnd], *, recorded: bool) -> None:
        """Collect and deliver everything that is left, and log the end.

        Args:
            end: The end of the command.
            ends: The ends of its processes.
            recorded: A process of the command was recorded.
        """
        self.observe(ends)
        self.deaths.add(end.pid, _end(end.status, end.ended_ns), end.start)
        recorded = self.collect() or recorded
        self._deliver(self._left_by_processes())
        if recorded or resolve().mark:
            events = [attempt.ended(self._command, end, ends)]
            if not self._start_logged:
                described = self._repository if self._repository is not None else describe_repository()
                events.insert(0, attempt.started(self._command, end.began_ns, described))
            self._log_events(events)

    def stop(self) -> None:
        """Stop soon; the rest stays on disk."""
        self._stopped.set()

    def _left_by_processes(self) -> set[Path]:
        """Return the records that processes of the run have not emptied before their end, on the disk or in the box."""
        ends, _ = read_ends(self._folder)
        spooled = [Path(each.spool) for each in ends if each.stored and each.spool]
        places = [[path, *(root / path.name for root in self._roots)] for path in spooled]
        return {path for tried in places for path in [each for each in tried if each.is_dir()][:1]}

    def _log_events(self, events: Sequence[LogRecord]) -> None:
        settings = resolve(None, **read_variables(_CHOICES, dict.fromkeys(_CHOICES)))
        if sdk_is_disabled() or "logs" in settings.off:
            return
        try:
            record = attempt.write_events(events, settings.spool_root, settings.mark)
        except Exception as error:
            self.problems.append(f"the events of the attempt cannot be written: {error}")
            return
        self._deliver([record])

    def _deliver(self, folders: Iterable[Path]) -> None:
        """Deliver the records that have the endpoints of the variables, until one cannot be delivered."""
        mark, transports = resolve().mark, None
        records = [each for each in folders if mark and each.name.endswith(f"-{mark}")]
        for path in oldest_first(records):
            if self._stopped.is_set():
                break
            if transports is None:
                transports = make_transports(resolve())
            try:
                with closing(take(path, self._roots)) as dead:
                    outcome = deliver(dead, transports, pauses=(), stopped=self._stopped)
            except Exception as error:
                _log.debug("%s was not delivered: %s", path, error)
                continue
            if outcome.troubles:
                break  # the next one would take as long
        for transport in (transports or {}).values():
            transport.close()


_CHOICES = {"spool_dir": CHOICES["spool_dir"]}
_ROOT = {"black_box_dir": CHOICES["black_box_dir"]}


def _end(status: int | None, time_ns: int) -> End:
    if status is None:
        return End(time_ns=time_ns)
    if os.WIFSIGNALED(status):
        return End(signal=os.WTERMSIG(status), time_ns=time_ns)
    return End(code=os.WEXITSTATUS(status), time_ns=time_ns)


_GIT_TIMEOUT = 2.0  # seconds
_COMMIT = re.compile(r"^# branch\.oid ([0-9a-f]{40,64})$", re.MULTILINE)
_COMMAND = (
    *("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules"),
)


def describe_repository() -> dict[str, str | bool]:
    """Return the commit of the repository of the working directory, and whether tracked files differ from it.

    It is empty without git, without a commit, or if git takes more than two seconds. No hook of the repository is run,
    and nothing is written.
    """
    try:
        ended = subprocess.run(  # noqa: S603  a fixed command
            _COMMAND,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_GIT_TIMEOUT,
            check=False,
            start_new_session=True,  # else signals of the terminal reach it
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    if (commit := _COMMIT.search(ended.stdout)) is None:
        return {}
    changed = any(not line.startswith("#") for line in ended.stdout.splitlines())
    return {"run.git.commit": commit[1], "run.git.dirty": changed}
