"""The ends of processes whose boxes are dead or have vanished."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.blackbox.death import Deaths, death_of
from monitel.blackbox.discovery import has_called_exec
from monitel.console.autopsy.death_events import deaths_below, stored_end
from monitel.console.autopsy.findings import Wait
from monitel.console.summary.stored import read_reports
from monitel.console.top.rank import RankState
from monitel.console.top.row import Doing, End, doing_of, last_step, longest_first, seen_ns_of
from monitel.console.verdict.endings import EXITED
from monitel.run_folder import is_run_folder

if TYPE_CHECKING:
    from monitel.console.autopsy.findings import Findings
    from monitel.console.summary.report import Report
    from monitel.console.top.box_watch import BoxWatch

_NO_SHUTDOWN = "ended without a shutdown"  # the words for an unknown cause
EXEC = "replaced by exec"


def death_in(watch: BoxWatch) -> End:
    """Return the end of the process of a dead box.

    Raises:
        RecordError: The box is damaged.
        OSError: The box was removed meanwhile.
    """
    record = watch.read()
    death = death_of(record, Deaths())
    doing = Doing(
        death.step,
        _ns(death.step_age),
        death.activity,
        _ns(death.activity_age),
        longest_first(Wait(key, round(seconds * 1e9)) for key, seconds in death.waits),
        death.stage,
    )
    how = "" if death.end is None else death.how
    if has_called_exec(record.owner):
        return End(RankState.ENDED, EXEC, seen_ns=death.time_ns, doing=doing)
    return End(RankState.DEAD, how, seen_ns=death.time_ns, doing=doing)


class Departures:
    """The ends of processes whose boxes have vanished: they were collected, or the process has removed its box.

    ``monitel run`` keeps a report of each end while it runs. The telemetry of a dead process is in a spool until a
    backend has it, and so is the status of a process that has ended by itself. Without either, a process that was not
    seen dead has ended by itself.
    """

    def __init__(self) -> None:
        self._reports: dict[str, list[Report]] = {}  # by the folder of the run

    def begin(self) -> None:
        """Begin a look: the reports are read again."""
        self._reports.clear()

    def end_of(self, watch: BoxWatch, known: End | None) -> tuple[End, bool]:
        """Return the end of a process, and True if that is certain.

        Args:
            watch: The readings of its box before it vanished.
            known: The end that was known before; None if it was seen running.
        """
        report = self._report(watch)
        if report is not None:
            dead = bool(report.death) and not report.death.startswith(EXITED)
            state = RankState.DEAD if dead else RankState.ENDED
            how = report.death if report.death != _NO_SHUTDOWN else ""
            doing = known.doing if known is not None else _last(watch, report)
            return End(state, how, report.status, report.time_ns, doing), True
        if known is not None and known.how:
            return known, True
        collected = self._collected(watch)
        if collected is not None:
            doing = Doing(
                *(collected.step, collected.step_age_ns, collected.activity, collected.activity_age_ns),
                longest_first(collected.waits),
                collected.stage,
            )
            return End(RankState.DEAD, collected.death, seen_ns=collected.seen_ns, doing=doing), True
        if known is not None:
            return known, False
        for place in _places(watch):
            if (end := stored_end(place)) is not None:
                return End(RankState.ENDED, "", end.status, end.time_ns, Doing(last_step(watch))), True
        seen_ns = seen_ns_of(watch, time.time_ns(), time.monotonic_ns())
        return End(RankState.ENDED, seen_ns=seen_ns, doing=Doing(last_step(watch))), False

    def _report(self, watch: BoxWatch) -> Report | None:
        folder = watch.record.run
        if not folder or not is_run_folder(folder):
            return None
        if folder not in self._reports:
            self._reports[folder] = read_reports(Path(folder))[0]
        of_process = [each for each in self._reports[folder] if each.owner == watch.record.owner]
        return of_process[-1] if of_process else None

    @staticmethod
    def _collected(watch: BoxWatch) -> Findings | None:
        """Return the event about the death, which a collector has put into the box, or into the spool from it."""
        deaths = (death for place in _places(watch) for death in deaths_below(place, []))
        return next(deaths, None)


def _places(watch: BoxWatch) -> list[Path]:
    """Return the folders that the record of a process may be in after its end."""
    spool = watch.record.spool
    return [watch.path] if spool is None or not spool.is_absolute() else [watch.path, spool]


def _last(watch: BoxWatch, report: Report) -> Doing:
    if not report.death:
        return Doing(last_step(watch) if report.last_step is None else report.last_step)
    doing = doing_of(watch, report.time_ns, time.monotonic_ns() - max(time.time_ns() - report.time_ns, 0))
    return doing._replace(step=report.last_step, step_age_ns=report.step_age_ns)


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)
