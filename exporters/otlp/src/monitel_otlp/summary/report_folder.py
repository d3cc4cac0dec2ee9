"""The folder of a run, in which each process writes its report, and from which ``monitel run`` reads all of them."""

from __future__ import annotations

import re
from contextlib import closing
from secrets import token_hex
from typing import TYPE_CHECKING

from monitel_otlp.spool.folder import Folder, SpoolError
from monitel_otlp.summary.stored import LIMIT_BYTES, ReportError, decode, encode

if TYPE_CHECKING:
    from pathlib import Path

    from monitel_otlp.summary.report import Report

_NAME = re.compile(r"report-\d+-\d+-[0-9a-f]+\.json")
_MOST = 10_000  # reports that are read


def write_report(path: Path, report: Report, token: str = "") -> None:
    """Write a report. A reader finds the complete file, or none.

    Args:
        path: The folder of the run.
        report: The report.
        token: Distinguishes reports of one process: a report of the same token is replaced. By default a new one.

    Raises:
        SpoolError: The folder is missing, a link, or unsafe.
        OSError: The file cannot be written.
    """
    content = encode(report)
    name = f"report-{report.owner.pid}-{report.owner.start}-{token or token_hex(4)}.json"
    unfinished = f".{token_hex(4)}-{name}"
    with closing(Folder.open(path)) as folder:
        folder.write_new(unfinished, content)
        try:
            folder.rename(unfinished, name)
        except BaseException:
            folder.unlink(unfinished)
            raise


def read_reports(path: Path) -> tuple[list[Report], list[str]]:
    """Read the reports in a folder. Never raises.

    Returns:
        The reports, the oldest first, and a message for each file that cannot be read.
    """
    reports: list[Report] = []
    problems: list[str] = []
    try:
        with closing(Folder.open(path)) as folder:
            for name in sorted(filter(_NAME.fullmatch, folder.names()))[:_MOST]:
                try:
                    reports.append(decode(folder.read(name, LIMIT_BYTES + 1)))
                except ReportError as error:
                    problems.append(f"the report {name} {error}")
                except OSError as error:
                    problems.append(f"the report {name} cannot be read: {error.strerror}")
    except SpoolError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"the reports in {str(path)!r} cannot be read: {error.strerror}")
    reports.sort(key=lambda report: report.time_ns)
    return reports, problems
