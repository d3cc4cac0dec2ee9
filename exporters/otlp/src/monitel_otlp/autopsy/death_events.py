"""Facts about processes that have ended, from the events in their spools: deaths, and the status of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel_otlp.autopsy.findings import Findings, OpenRange, PastEvent, State, Undelivered, Wait
from monitel_otlp.autopsy.records import attributes_of, identity_of, records_of, whole
from monitel_otlp.black_box.activity import Stage
from monitel_otlp.collection.death import NAME
from monitel_otlp.spool.discovery import find_spools
from monitel_otlp.spool.folder import SpoolError
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monitel_otlp.black_box.contents import Header
    from monitel_otlp.messages.request import FrozenRequest

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
    except SpoolError:
        return []
    except OSError as error:
        problems.append(f"{str(root)!r} cannot be searched: {error.strerror}")
        return []
    problems += found.problems
    deaths = []
    for folder in found.folders:
        counted: dict[str, int] = {}
        of_folder: list[Findings] = []
        try:
            for request in Spool(folder).peek():
                counted["requests"] = counted.get("requests", 0) + 1
                counted["items"] = counted.get("items", 0) + request.items
                if request.signal == "logs" and NAME.encode() in request.body:
                    of_folder += _deaths_in(request, folder)
        except Exception as error:  # the spool may be damaged in any way
            known = isinstance(error, SpoolError | OSError)
            problems.append(str(error) if known else f"{str(folder)!r} cannot be read: {error!r}")
        for death in of_folder:
            death.undelivered = Undelivered(**counted)
        deaths += of_folder
    return deaths


def _deaths_in(request: FrozenRequest, folder: Path) -> Iterator[Findings]:
    for resource, record in records_of(request):
        if record.event_name == NAME:
            yield _findings(resource, attributes_of(record.attributes), record, folder)


def _findings(resource: Mapping[str, Any], death: Mapping[str, Any], record: Any, folder: Path) -> Findings:
    identity = identity_of(resource)
    pid = whole(death.get("process.pid"))
    stacks = str(death.get("code.stacktrace", ""))
    shown = {name: each for name, each in death.items() if name != "code.stacktrace"}
    return Findings(
        source=folder,
        state=State.DEAD,
        identity=identity if pid is None else identity._replace(pid=pid),
        seen_ns=record.time_unix_nano,
        death=cause_of(death),
        step=whole(death.get("training.step")),
        step_age_ns=_ns(death.get("training.step.age")),
        activity=str(death.get("training.activity", "")),
        activity_age_ns=_ns(death.get("training.activity.duration")),
        stage=_stage(death),
        waits=[Wait(key, age_ns) for key, age_ns in _pairs(death, "wait.keys", "wait.durations")],
        ranges=[OpenRange(name, age_ns) for name, age_ns in _pairs(death, "range.names", "range.durations")],
        events=[PastEvent(record.time_unix_nano, record.severity_number, NAME, shown)],
        stacks=stacks,
        collected_in=folder,
    )


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


def stored_end(header: Header, pid: int | None) -> StoredEnd | None:
    """Return the end of a process; None if its spool does not have it, because a backend does, or is too large.

    Args:
        header: The header of the box that the process had.
        pid: The process id in the attributes of its resource.

    Raises:
        SpoolError: The spool is unsafe.
        OSError: The spool cannot be read.
    """
    folder = Path(header.spool_dir)
    if not folder.is_absolute() or not folder.is_dir() or _size(folder) > _LARGEST_BYTES:
        return None
    found = None
    for request in Spool(folder).peek(["logs"]):
        if _ENDED.encode() not in request.body:
            continue
        for resource, record in records_of(request):
            names = identity_of(resource)
            if record.event_name != _ENDED or names.pid != pid or record.time_unix_nano < header.created_ns:
                continue
            status = str(attributes_of(record.attributes).get("run.status", ""))
            if status in _STATUSES:
                found = StoredEnd(status, record.time_unix_nano)
    return found


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
