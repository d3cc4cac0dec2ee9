"""The lines of the summary: a block for each job, and the outcome of the items of all processes."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.console.summary.job_text import header, rows
from monitel.console.summary.jobs import jobs_of
from monitel.console.summary.stored import read_reports
from monitel.console.text import Screen, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TextIO

    from monitel.blackbox.process import Owner
    from monitel.console.summary.report import Report

_START = "monitel run: "
_INDENT = "  "
_LABEL = len("exported") + 2  # columns of a label
_JOBS = 5  # at most


def summary_lines(
    reports: Sequence[Report], problems: Sequence[str], screen: Screen, *, endpoint_given: bool = False
) -> list[str]:
    """Return the lines of the summary.

    Args:
        reports: The reports of all processes.
        problems: Messages about reports that cannot be read.
        screen: The stream that the lines are printed to.
        endpoint_given: See :func:`monitel.console.summary.lines.outcome`.
    """
    jobs = [job for job in jobs_of(reports) if job.last or job.deaths or job.unfinished]
    items = list(outcome(reports, screen, endpoint_given=endpoint_given))
    width = screen.width - len(_INDENT) - _LABEL
    if jobs:
        lines: list[str] = []
        for job in jobs[:_JOBS]:
            lines += wrapped(f"{'' if lines else _START}{header(job, screen)}", screen.width, whole=True)
            for label, row in rows(job, screen, width):
                lines += _row(label, row)
        if len(jobs) > _JOBS:
            lines.append(f"and {len(jobs) - _JOBS:,} more jobs")
    else:
        lines = [f"{_START}{'no training steps' if items else 'nothing was recorded'}"]
    for label, text in items:
        lines += _row(label, wrapped(text, width, whole=True))
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        lines += _row("missing", wrapped(f"{screen.printable(problems[0])}{more}", width, whole=True))
    return lines


def _row(label: str, lines: Iterable[str]) -> list[str]:
    labels = chain([label], repeat(""))
    return [f"{_INDENT}{left:<{_LABEL}}{right}" for left, right in zip(labels, lines, strict=False)]


def outcome(reports: Sequence[Report], screen: Screen, *, endpoint_given: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each row; none if nothing was recorded.

    A spool that does not exist any more was delivered after its process had ended.

    Args:
        reports: The reports.
        screen: The terminal.
        endpoint_given: The endpoint was an option, so that a command without it does not find it.
    """
    delivered: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    on_disk = 0
    spools = []
    for report in reports:
        stored = report.stored or any(each.on_disk for each in report.accounts.values())
        stored = stored and os.path.lexists(report.spool_dir)  # else it was delivered after the report
        if stored:
            spools.append(report)
        for signal, account in report.accounts.items():
            delivered[signal] += account.delivered + (0 if stored else account.on_disk)
            on_disk += account.on_disk if stored else 0
            dropped.update(account.dropped)
    if sum(delivered.values()):
        spans = f", {delivered['traces']:,} spans" if delivered["traces"] else ""
        yield "exported", f"{delivered['metrics']:,} windows and numbers, {delivered['logs']:,} events{spans}"
    if spools:
        what = f"{on_disk:,} item{'' if on_disk == 1 else 's'}" if on_disk else "values of instruments"
        unknown = endpoint_given or all(report.offline for report in spools)
        endpoint = " --endpoint http://HOST:4318" if unknown else ""
        # The folder that holds the spools: in further spools there is what the processes had on disk before.
        folders = sorted({str(Path(report.spool_dir).parent) for report in spools})
        commands = [f"monitel replay {shlex.quote(screen.printable(folder))}{endpoint}" for folder in folders]
        yield "on disk", f"{what}, deliver with: {'; '.join(commands)}"
    if lost := sum(dropped.values()):
        reasons = ", ".join(f"{screen.printable(reason)} {items:,}" for reason, items in sorted(dropped.items()))
        yield "lost", f"{lost:,} item{'' if lost == 1 else 's'} ({reasons})"


def print_summary(
    folder: Path,
    stream: TextIO | None = None,
    *,
    cause: Callable[[Owner], tuple[str, int] | None] = lambda _owner: None,
    endpoint_given: bool = False,
) -> None:
    """Print the summary of all processes that have left a report. Never raises.

    Args:
        folder: The folder of the run, which ``MONITEL_RUN_FOLDER`` names in its processes.
        stream: The output; stderr by default, so that the job's output stays as it is.
        cause: Returns how a process died, in words, and when, Unix ns; None if the caller does not know that.
        endpoint_given: The endpoint was an option of the command, and not in the user's variables.
    """
    stream = sys.stderr if stream is None else stream
    with suppress(Exception):  # the stream may be closed
        reports, problems = read_reports(folder)
        reports = [_with_cause(each, cause(each.owner)) if each.death else each for each in reports]
        text = "\n".join(summary_lines(reports, problems, Screen.of(stream), endpoint_given=endpoint_given))
        stream.write(f"{text}\n")
        stream.flush()


def _with_cause(report: Report, cause: tuple[str, int] | None) -> Report:
    if cause is None:
        return report
    how, time_ns = cause
    return replace(report, death=how, time_ns=time_ns, observed=True)
