"""The lines of the summary: a block for each job, and the outcome of the items of all processes."""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING

from monitel_otlp.ledger.screen import wrapped
from monitel_otlp.summary.job_text import header, rows
from monitel_otlp.summary.jobs import jobs_of
from monitel_otlp.summary.outcome import outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monitel_otlp.ledger.screen import Screen
    from monitel_otlp.summary.report import Report

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
        endpoint_given: See :func:`monitel_otlp.summary.outcome.outcome`.
    """
    jobs = [job for job in jobs_of(reports) if job.last or job.deaths or job.unfinished]
    items = list(outcome(reports, screen, endpoint_given=endpoint_given))
    width = screen.width - len(_INDENT) - _LABEL
    if jobs:
        lines: list[str] = []
        for job in jobs[:_JOBS]:
            lines += wrapped([f"{'' if lines else _START}{header(job, screen)}"], screen.width)
            for label, row in rows(job, screen, width):
                lines += _row(label, row)
        if len(jobs) > _JOBS:
            lines.append(f"and {len(jobs) - _JOBS:,} more jobs")
    else:
        lines = [f"{_START}{'no training steps' if items else 'nothing was recorded'}"]
    for label, text in items:
        lines += _row(label, wrapped([text], width))
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        lines += _row("missing", wrapped([f"{screen.printable(problems[0])}{more}"], width))
    return lines


def _row(label: str, lines: Iterable[str]) -> list[str]:
    labels = chain([label], repeat(""))
    return [f"{_INDENT}{left:<{_LABEL}}{right}" for left, right in zip(labels, lines, strict=False)]
