"""Processes that have ended, as ``monitel run`` keeps them while it runs: one file of JSON in its folder for each.

A process writes the file itself at its end; for a killed one, the collector of its record does.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import fields, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from zlib import crc32

import monitel
from monitel.blackbox.activity import at_shutdown
from monitel.blackbox.death import Death, Deaths, death_of
from monitel.blackbox.discovery import records
from monitel.blackbox.folder import Folder, FolderError, box_root
from monitel.blackbox.forms import REPORTED, STAT, Definition
from monitel.blackbox.journal import Account
from monitel.blackbox.process import Owner, process_facts
from monitel.blackbox.reading import Record, Snapshot, read_record
from monitel.blackbox.record import JOURNALS
from monitel.blackbox.recovery import claim
from monitel.blackbox.settings import given_folder
from monitel.counter import plain_counters
from monitel.run_events import final_status, last_exception
from monitel.runs.history import RunTime
from monitel.runs.process import REPLACED, Process, State, dead, doing_at
from monitel.runs.stored import StoredError, dump, load
from monitel.training.counters import before
from monitel_run.folder import VARIABLE, is_running

if TYPE_CHECKING:
    from monitel.blackbox.recorder import Series

_log = logging.getLogger("monitel")

VERSION = 1
#: The token of the end of a process in the folder of its run, which has one end of each process.
ONLY = "0"
#: Functions that store the end of this process in the folder of a run, by this folder. The disk has so many seconds.
keepers: dict[Path, Callable[[Process, float], object]] = {}

_NAME = re.compile(r"report-\d+-\d+-[0-9a-f]+\.json")
_MOST = 10_000  # files that are read
_MOST_STAGES = 300
_LIVE = {
    *("box", "silence", "kernel", "record", "event", "events", "problem", "ranges", "earlier"),
    *("cpu", "memory", "gpu", "gpu_memory"),
}
_STORED = [each.name for each in fields(Process) if each.name not in _LIVE]


def store_end(
    attributes: Mapping[str, Any],
    series: Iterable[Series],
    accounts: Mapping[str, Account],
    run_time: RunTime | None,
    *,
    spool: os.PathLike[str],
    stored: bool,
    store: Path | None,
    timeout: float,
) -> bool:
    """Store the end of this process, with what it did before its shutdown, and with fields of :class:`Process`.

    It is stored for ``monitel run``, and in the folder of the run that :func:`monitel.start` has begun, ``store``. The
    disk of that folder may delay it by ``timeout`` seconds. Never raises, and takes no lock. Return False if ``monitel
    run`` has not started this process, or runs no more.
    """
    folder = os.environ.get(VARIABLE, "")
    has_parent, keep = is_running(folder), None if store is None else keepers.get(store)
    if not has_parent and keep is None:
        return False
    try:
        doing, time_ns = at_shutdown()
        names: list[Any] = [{**process_facts(), "attributes": dict(attributes), "store": str(store or "")}]
        totals = []
        for each in series:
            if (name := each.definition.name) in REPORTED:
                totals.append((len(names), each.count, each.sum, each.windows, each.largest))
                names.append(Definition(STAT, name, name, "", "", False, each.plain_attributes))
        counters = plain_counters(monitel.counters())
        values: dict[str, Any] = {"doing": doing, "totals": totals, "counters": counters, "before": before().plain}
        ending = final_status()
        values["exception"] = last_exception()
        record = Record(Path(os.path.abspath(spool)), names, Snapshot(time_ns, 0, [], values))  # noqa: PTH100  without looking at the disk
        book = before().ledger()
        ended = replace(
            doing_at(record, time_ns),
            state=State.ENDED,
            status=ending,
            started_ns=0 if book is None else book.start_ns,
            activities={} if book is None else book.activities,
            run_time=run_time,
            accounts=accounts,
            spool=str(record.path),
            stored=stored,
        )
        if has_parent:
            write_end(Path(folder), ended)
        if keep is not None:
            keep(ended, timeout)
    except Exception as error:
        _log.debug("the end of this process cannot be stored: %s", error)
        return False
    return has_parent


def store_death(record: Record, death: Death | None, spool: Path, *, is_logged: bool = True) -> bool:
    """Store the death of a process whose record is collected into a spool. Never raises. Idempotent.

    It is stored for ``monitel run``, and in the folder of its run. It has no death if it lives on with another program;
    the event of a death is an item if it ``is_logged``. Return False if no ``monitel run`` has started the process.
    """
    stores = record.store != "" and Path(record.store).is_dir()
    if not record.run and not stores:
        return False
    try:
        items = Counter(record.waiting)
        items["metrics"] += len(record.open_windows)
        items["logs"] += is_logged and death is not None
        token = str(record.identity["name"]).split("-")[3]
        ended = doing_at(record, record.time_ns).but(**REPLACED) if death is None else dead(record, death)
        ended = replace(
            ended,
            accounts={
                signal: Account(recorded=number, on_disk=number)
                for signal, number in items.items()
                if number and signal not in record.off
            },
            spool=str(spool),
            stored=not record.off.issuperset(JOURNALS),
        )
        if stores:
            write_end(Path(record.store), ended, ONLY)
        if record.run:
            write_end(Path(record.run), ended, token)
    except Exception as error:
        _log.debug("the death of a process cannot be stored: %s", error)
        return False
    return bool(record.run)


def store_deaths(folder: Path, deaths: Deaths) -> None:
    """Store the deaths of the processes of a run that no exporter has collected. Their records stay. Never raises."""
    root = box_root(given_folder("black_box_dir"))
    for path in () if root is None else [root / name for name in records(root)]:
        with suppress(Exception), closing(claim(path)) as dead:
            record = read_record(dead.box, dead.disk) if dead.box is not None else None
            if record is not None and record.run == str(folder) and not dead.has_ended:
                store_death(record, death_of(record, deaths), record.path)


def store_missing_ends(folder: Path, began_ns: int, deaths: Deaths, root: Path) -> None:
    """Store the ends of processes of a run that were killed after the end of their records, and before their reports.

    Their spools are in the folder ``root``, or beside those of other processes of the run. Never raises.
    """
    ends, _ = read_ends(folder)
    reported, first = {each.key for each in ends}, time.strftime("%Y%m%dT%H%M%S", time.gmtime(began_ns // 10**9))
    for parent in {root, *(Path(each.spool).parent for end in ends for each in end.reports if each.stored)}:
        for name in records(parent):
            if name >= first and "-".join(name.split("-")[1:3]) not in reported:
                with suppress(Exception), closing(claim(parent / name)) as dead:
                    record = read_record(dead.disk)
                    if record.run == str(folder):
                        store_death(record, death_of(record, deaths), record.path, is_logged=False)


def write_end(path: Path, process: Process, token: str = "") -> None:
    """Write a process that has ended into the folder of a run, in the place of the file with the same token."""
    if token == ONLY:  # the first processes of two containers may have the same id and start time
        token = f"{crc32('|'.join(process.owner or ()).encode('utf-8', 'surrogateescape')):08x}"
    with closing(Folder.open(path)) as folder:
        folder.replace(f"report-{process.key}-{token or token_hex(4)}.json", encode(process))


def count_ends(path: Path) -> int:
    """Return the number of processes in the folder of a run; 0 if it cannot be read."""
    with suppress(OSError, FolderError), closing(Folder.open(path)) as folder:
        return len([*filter(_NAME.fullmatch, folder.names())])
    return 0


def read_ends(path: Path) -> tuple[list[Process], list[str]]:
    """Return the processes in the folder of a run, the oldest first, and problems with its files. Never raises."""
    found: list[Process] = []
    problems: list[str] = []
    try:
        with closing(Folder.open(path)) as folder:
            for name in sorted(filter(_NAME.fullmatch, folder.names()))[:_MOST]:
                try:
                    found.append(load(Process, folder.read(name), VERSION))
                except OSError as error:
                    problems.append(f"the report {name} cannot be read: {error.strerror}")
                except StoredError as error:
                    problems.append(f"the report {name} {error}")
    except FolderError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"the reports in {str(path)!r} cannot be read: {error.strerror}")
    ends: dict[Owner | None, Process] = {}
    for each in sorted(found, key=lambda process: process.seen_ns):  # a process may have had several pipelines
        earlier = ends.pop(each.owner, None)
        ends[each.owner] = each if earlier is None else each.after(earlier)
    return [*ends.values()], problems


def encode(process: Process) -> bytes:
    """Return the content of a file."""
    values = {name: getattr(process, name) for name in _STORED}
    values["stages"] = [*process.stages.items()][:_MOST_STAGES]
    return dump({"version": VERSION, **values})
