"""Facts about processes that have ended, from the events in their spools: deaths, and the status of a run."""

from __future__ import annotations

import math
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.blackbox.activity import Stage
from monitel.blackbox.death import NAME
from monitel.blackbox.discovery import find_spools
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.reading import RecordError, read_record
from monitel.console.autopsy.findings import Findings, OpenRange, PastEvent, State, Undelivered, Wait
from monitel.console.autopsy.records import identity_of, whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from monitel.blackbox.forms import LogRecord
    from monitel.blackbox.reading import Record

_ENDED = "run.ended"
_STATUSES = {"completed", "failed", "interrupted", "preempted"}
_LARGEST_BYTES = 32 << 20  # of a spool that is searched for an end


def deaths_below(root: Path, problems: list[str]) -> list[Findings]:
    """Return the findings of all deaths in the spools below a folder, in the order of their folders.

    Args:
        root: A spool, or a folder that holds spools. It may be missing.
        problems: Receives the description of each folder that cannot be read.
    """
    try:
        found = find_spools(root)
    except FolderError:
        return []
    except OSError as error:
        problems.append(f"{str(root)!r} cannot be searched: {error.strerror}")
        return []
    problems += found.problems
    deaths = []
    for path in found.folders:
        try:
            with closing(Folder.open(path)) as folder:
                record = read_record(folder)
            of_folder = [_findings(record, event) for event in record.events if event.name == NAME]
            for death in of_folder:
                death.undelivered = Undelivered(items=sum(record.waiting.values()))
            deaths += of_folder
        except Exception as error:  # the spool may be damaged in any way
            known = isinstance(error, FolderError)
            problems.append(str(error) if known else f"{str(path)!r} cannot be read: {_reason(error)}")
    return deaths


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, RecordError) else repr(error)


def _findings(record: Record, event: LogRecord) -> Findings:
    identity, death = identity_of(record.attributes), event.attributes
    pid = whole(death.get("process.pid"))
    shown = {name: each for name, each in death.items() if name != "code.stacktrace"}
    return Findings(
        source=record.path,
        state=State.DEAD,
        identity=identity if pid is None else identity._replace(pid=pid),
        seen_ns=event.time_ns,
        death=cause_of(death),
        step=whole(death.get("training.step")),
        step_age_ns=_ns(death.get("training.step.age")),
        activity=str(death.get("training.activity", "")),
        activity_age_ns=_ns(death.get("training.activity.duration")),
        stage=_stage(death),
        waits=[Wait(key, age_ns) for key, age_ns in _pairs(death, "wait.keys", "wait.durations")],
        ranges=[OpenRange(name, age_ns) for name, age_ns in _pairs(death, "range.names", "range.durations")],
        events=[PastEvent(event.time_ns, event.severity, NAME, shown)],
        stacks=str(death.get("code.stacktrace", "")),
        collected_in=record.path,
        exception=_exception(death),
    )


def _exception(death: Mapping[str, Any]) -> tuple[str, str, str] | None:
    if (kind := death.get("exception.type")) is None:
        return None
    file, line = death.get("code.file.path", ""), death.get("code.line.number", "")
    return str(kind), str(death.get("exception.message", "")), f"{file}:{line}" if file else ""


def _stage(death: Mapping[str, Any]) -> Stage | None:
    name, age_ns = death.get("training.stage"), _ns(death.get("training.stage.age"))
    return None if name is None or age_ns is None else Stage(str(name), bool(death.get("training.stage.waits")), age_ns)


def cause_of(death: Mapping[str, Any]) -> str:
    """Return the cause of a death in words, from the attributes of its event; empty if it is unknown."""
    memory = ", because the memory was exhausted" if death.get("process.exit.reason") == "out_of_memory" else ""
    if (signal := death.get("process.exit.signal")) is not None:
        return f"killed by {signal}{memory}"
    if (code := death.get("process.exit.code")) is not None:
        return f"ended with exit code {code} without a shutdown"
    return ""


def _pairs(death: Mapping[str, Any], names: str, durations: str) -> list[tuple[str, int]]:
    keys, seconds = death.get(names), death.get(durations)
    if not (isinstance(keys, list) and isinstance(seconds, list)):
        return []
    return [(str(key), _ns(each) or 0) for key, each in zip(keys, seconds, strict=False)]


def _ns(seconds: object) -> int | None:
    if isinstance(seconds, int | float) and math.isfinite(seconds):
        return round(seconds * 1e9)
    return None


class StoredEnd(NamedTuple):
    """The end of a process.

    Attributes:
        status: ``completed``, ``failed``, ``interrupted`` or ``preempted``.
        time_ns: Time of the event, Unix ns.
    """

    status: str
    time_ns: int


def stored_end(path: Path) -> StoredEnd | None:
    """Return the end of a process; None if its spool does not have it, because a backend does, or is too large.

    Args:
        path: The spool folder of the process, or its box.

    Raises:
        FolderError: The folder is unsafe.
        RecordError: It is damaged.
        OSError: It cannot be read.
    """
    if not path.is_absolute() or not path.is_dir() or _size(path) > _LARGEST_BYTES:
        return None
    with closing(Folder.open(path, probe=False)) as folder:
        events = read_record(folder, journals=["logs"]).events
    ends = [(str(each.attributes.get("run.status", "")), each.time_ns) for each in events if each.name == _ENDED]
    return next((StoredEnd(*each) for each in reversed(ends) if each[0] in _STATUSES), None)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
