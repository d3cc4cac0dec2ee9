"""The stored form of a report: JSON, with a version, in the folder of a run."""

from __future__ import annotations

import json
import math
import re
from contextlib import closing
from dataclasses import fields
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from monitel.blackbox.account import Account
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.process import Owner
from monitel.blackbox.record import SIGNALS
from monitel.console.ledger.shares import RunTime
from monitel.console.stored_json import boolean, optional_whole, text, whole, wholes
from monitel.console.summary.report import LONGEST, MOST, JobName, Report, StageTotal, Total

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERSION = 1
LIMIT_BYTES = 1 << 20

_LONGEST_PATH = 1 << 15  # characters
_text = partial(text, longest=_LONGEST_PATH)
_NUMBERS = [field.name for field in fields(Account) if field.name != "dropped"]


class ReportError(ValueError):
    """Raised for content that is not a report of this version."""


def encode(report: Report) -> bytes:
    """Return the content of the file of a report."""
    run_time = report.run_time
    stored = {
        "version": VERSION,
        "owner": report.owner,
        "job": report.job,
        "attempt": report.attempt,
        "rank": report.rank,
        "world_size": report.world_size,
        "time_ns": report.time_ns,
        "first_step": report.first_step,
        "last_step": report.last_step,
        "steps": report.steps,
        "skipped": report.skipped,
        "step_time": report.step_time,
        "stages": report.stages,
        "activities": _shortened(report.activities),
        "run_time": None if run_time is None else run_time._replace(activities=_shortened(run_time.activities)),
        "accounts": {signal: _account(account) for signal, account in report.accounts.items()},
        "spool_dir": report.spool_dir,
        "offline": report.offline,
        "stored": report.stored,
        "status": report.status,
        "death": report.death,
        "step_ns": report.step_ns,
        "observed": report.observed,
        "recompilations": report.recompilations,
        "recompiling_ns": report.recompiling_ns,
    }
    return json.dumps(stored, separators=(",", ":")).encode()


def _shortened(activities: Mapping[str, int]) -> dict[str, int]:
    """Return activities with names of limited length, and beyond a number of them ``other``."""
    found: dict[str, int] = {}
    for name, time_ns in activities.items():
        short = name[:LONGEST] if len(found) < MOST - 1 or name[:LONGEST] in found else "other"
        found[short] = found.get(short, 0) + time_ns
    return found


def _account(account: Account) -> dict[str, Any]:
    return {name: getattr(account, name) for name in _NUMBERS} | {"dropped": dict(account.dropped)}


def decode(content: bytes) -> Report:
    """Return the report in a file.

    Raises:
        ReportError: The content is damaged, or has another version.
    """
    if len(content) > LIMIT_BYTES:
        raise ReportError(f"has more than {LIMIT_BYTES} bytes")
    try:
        stored = json.loads(content)
    except (ValueError, RecursionError):
        raise ReportError("is not JSON") from None
    try:
        if type(stored["version"]) is not int or stored["version"] != VERSION:
            raise ReportError("has another version")
        return _report(stored)
    except ReportError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise ReportError("is not a report") from None


def _report(stored: Any) -> Report:
    return Report(
        owner=Owner(*map(_text, stored["owner"])),
        job=JobName(*map(_text, stored["job"])),
        attempt=whole(stored["attempt"]),
        rank=optional_whole(stored["rank"]),
        world_size=optional_whole(stored["world_size"]),
        time_ns=whole(stored["time_ns"]),
        first_step=optional_whole(stored["first_step"]),
        last_step=optional_whole(stored["last_step"]),
        steps=whole(stored["steps"]),
        skipped=whole(stored["skipped"]),
        step_time=_total(stored["step_time"]),
        stages=tuple(_stage(*each) for each in _limited(stored["stages"])),
        activities=wholes(stored["activities"], MOST),
        run_time=None if stored["run_time"] is None else _run_time(stored["run_time"]),
        accounts={_signal(signal): _account_of(numbers) for signal, numbers in stored["accounts"].items()},
        spool_dir=_text(stored["spool_dir"]),
        offline=boolean(stored["offline"]),
        stored=boolean(stored["stored"]),
        status=_text(stored["status"]),
        death=_text(stored["death"]),
        step_ns=optional_whole(stored["step_ns"]),
        observed=boolean(stored["observed"]),
        recompilations=whole(stored["recompilations"]),
        recompiling_ns=whole(stored["recompiling_ns"]),
    )


def _run_time(stored: Any) -> RunTime:
    run, activities, *numbers, ended = stored
    elapsed_ns, attempts, start_ns, last_ns = map(whole, numbers)
    return RunTime(_text(run), wholes(activities, MOST), elapsed_ns, attempts, start_ns, last_ns, boolean(ended))


def _account_of(stored: Any) -> Account:
    numbers = {name: whole(stored[name]) for name in _NUMBERS}
    return Account(**numbers, dropped=wholes(stored["dropped"], MOST))


def _stage(stage: Any, group: Any, device: Any, total: Any) -> StageTotal:
    return StageTotal(_text(stage), _text(group), boolean(device), _total(total))


def _total(stored: Any) -> Total:
    count, total, windows, longest = stored
    if any(type(each) not in {int, float} or not math.isfinite(each) for each in (total, longest)):
        raise ReportError("is not a report")
    return Total(whole(count), float(total), whole(windows), float(longest))


def _limited(stored: Any) -> Any:
    if len(stored) > MOST:
        raise ReportError("is not a report")
    return stored


def _signal(stored: Any) -> str:
    if stored not in SIGNALS:
        raise ReportError("is not a report")
    return str(stored)


_REPORT_NAME = re.compile(r"report-\d+-\d+-[0-9a-f]+\.json")
_MOST_REPORTS = 10_000  # reports that are read


def write_report(path: Path, report: Report, token: str = "") -> None:
    """Write a report. A reader finds the complete file, or none.

    Args:
        path: The folder of the run.
        report: The report.
        token: Distinguishes reports of one process: a report of the same token is replaced. By default a new one.

    Raises:
        FolderError: The folder is missing, a link, or unsafe.
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
            for name in sorted(filter(_REPORT_NAME.fullmatch, folder.names()))[:_MOST_REPORTS]:
                try:
                    reports.append(decode(folder.read(name, LIMIT_BYTES + 1)))
                except ReportError as error:
                    problems.append(f"the report {name} {error}")
                except OSError as error:
                    problems.append(f"the report {name} cannot be read: {error.strerror}")
    except FolderError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"the reports in {str(path)!r} cannot be read: {error.strerror}")
    reports.sort(key=lambda report: report.time_ns)
    return reports, problems
