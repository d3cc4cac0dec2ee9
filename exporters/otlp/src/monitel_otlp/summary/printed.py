"""The summary that ``monitel run`` prints at its end."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from monitel_otlp.ledger.screen import Screen
from monitel_otlp.summary.lines import summary_lines
from monitel_otlp.summary.report_folder import read_reports

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TextIO

    from monitel_otlp.spool.lock import Owner
    from monitel_otlp.summary.report import Report


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
