"""The records of ended processes: those of killed ones are ended by a collector, and moved to the spool folders.

Collectors in several threads and processes share the records, see :mod:`monitel.blackbox.recovery`. A record of a
process that ``monitel run`` has started is left to it while it runs, because it observes how the process ends.
"""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel.blackbox.box import VERSION
from monitel.blackbox.disk import adopt
from monitel.blackbox.folder import Folder, FolderError, Lock, automatic_roots
from monitel.blackbox.journal import DISK
from monitel.blackbox.names import read_names
from monitel.blackbox.record import EVENT, HEAD, READING, WINDOW
from monitel.blackbox.recovery import Dead, claim, is_alive, processes, sweep
from monitel_otlp.config.run_folder import is_running
from monitel_otlp.discovery import REJECTED, has_called_exec, is_box, process_of
from monitel_otlp.export.death import Deaths, death_of
from monitel_otlp.export.totals import Definitions, Totals
from monitel_otlp.export.windows import Mapping
from monitel_otlp.messages.request import write_scope
from monitel_otlp.metrics.rising_sums import RisingSums, Sent, Total
from monitel_otlp.record import files_of, read_record
from monitel_otlp.summary.box_report import report_death

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from monitel.os_threads import Event
    from monitel_otlp.export.death import Death
    from monitel_otlp.metrics.readings import PlainCounter
    from monitel_otlp.record import Record

_log = logging.getLogger("monitel.otlp")

_COUNTERS_PER_READING = 500


@dataclass
class Collected:
    """The outcome of a collection.

    Attributes:
        boxes: Number of boxes that are collected.
        items: Number of items in them.
        records: The records, in the spool folders, or where these cannot be written in the boxes.
        deaths: The deaths.
        problems: Descriptions of boxes that could not be collected.
    """

    boxes: int = 0
    items: int = 0
    records: list[Path] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def roots_of(given: Path | None) -> list[Path]:
    """Return the folders that may hold boxes: the given one, or those in which boxes of this user are made."""
    return automatic_roots() if given is None else [given]


def collect(
    roots: Sequence[Path],
    spool: Path | None,
    deaths: Deaths | None = None,
    stopped: Event | None = None,
    run: str = "",
    *,
    observed_only: bool = False,
) -> Collected:
    """End the records of killed processes of this user on this machine, and move them to their spool folders.

    Nothing of running processes and of other users is touched. Where a spool folder cannot be written, the record stays
    in the box, and is delivered from there. Thread-safe.

    Args:
        roots: Folders of boxes.
        spool: The folder for spools of processes whose own folder does not exist for this process.
        deaths: The ends of processes that the caller has observed.
        stopped: When it is set, the collection ends after the current box.
        run: The folder of the run, if the caller is ``monitel run``.
        observed_only: Leave boxes of processes whose end the caller has not observed yet.

    Returns:
        The outcome. Never raises.
    """
    outcome = Collected()
    leave = partial(_is_left, deaths=deaths or Deaths(), run=run, observed_only=observed_only)
    for root in roots:
        sweep(root, None)
        for name in processes(root, None):
            if stopped is not None and stopped.is_set():
                return outcome
            dead = claim(root, spool, name)
            if dead is None:
                continue
            try:
                _collect(dead, spool, deaths or Deaths(), outcome, leave)
            except Exception as error:
                _log.debug("the black box %s cannot be collected", root / name, exc_info=True)
                text = str(error) if isinstance(error, (OSError, FolderError)) else repr(error)
                outcome.problems.append(f"the black box {str(root / name)!r} cannot be collected: {text}")
            finally:
                dead.close()
    return outcome


def _is_left(record: Record, *, deaths: Deaths, run: str, observed_only: bool) -> bool:
    """Return True if the end of a process is still to be observed, by this caller or by ``monitel run``."""
    if has_called_exec(record.owner):
        return False
    if observed_only and deaths.of(record.owner) is None:
        return True
    return record.run != run and is_running(record.run)


def _collect(dead: Dead, spool: Path | None, deaths: Deaths, outcome: Collected, leave: Any) -> None:
    box = dead.box
    if box is None or not dead.names:
        return
    if (version := dead.names[0]["version"]) != VERSION:
        raise FolderError(f"expected version {VERSION} of the layout, got {version!r}: use another version of monitel")
    path = box.path
    if not dead.has_ended:
        record = read_record(box, dead.disk)
        if leave(record):
            return
        death = None if has_called_exec(record.owner) else death_of(record, deaths)
        records = last_records(dead, record, death)
        report_death(record, death, _place(dead, record, spool))  # first: nobody does it after the commit
        dead.end(records)
        outcome.problems += [f"the black box {str(path)!r}: {each}" for each in record.problems]
        if death is not None:
            outcome.deaths.append(death)
    _skip_dropped(dead)
    outcome.boxes += 1
    outcome.items += unsettled(dead)
    if dead.is_delivered and not box.has(REJECTED):
        dead.remove()
        return
    try:
        if not box.has(REJECTED):  # else the spool folder could not be written before
            add_settled(dead)
            dead.move()
    except (OSError, FolderError) as error:
        _log.debug("the black box %s stays, because its spool folder cannot be written: %s", path, error)
    outcome.records.append(path if dead.disk is None or dead.box is not None else dead.disk.path)


def _place(dead: Dead, record: Record, spool: Path | None) -> Path:
    return Path(record.spool or (spool or record.path.parent) / dead.name)


def unsettled(dead: Dead) -> int:
    """Return the number of items that no backend has acknowledged."""
    found = [dead.journals[name].account() for name in ("metrics", "logs", "traces")]
    return sum(each.waiting + each.on_disk for each in found)


def last_records(dead: Dead, record: Record, death: Death | None) -> dict[str, list[tuple[int, Any]]]:
    """Return what is missing at the end of the journals: open windows, a reading of the counters, and the death."""
    found: dict[str, list[tuple[int, Any]]] = {
        "metrics": [(WINDOW, value) for value in dead.open_windows()],
        "readings": [(READING, value) for value in _readings(dead, record)],
        "logs": [] if death is None else [(EVENT, tuple(death.event()))],
    }
    off = record.identity.get("off", ())
    return {name: values for name, values in found.items() if name not in off}


def _readings(dead: Dead, record: Record) -> Iterator[tuple[bytes, int]]:
    """Yield readings of the counters that have changed since their last point, unless the journal has a newer one."""
    snapshot = record.snapshot
    if snapshot is None or dead.journals["readings"].next > snapshot.values.get("readings", sys.maxsize):
        return
    earlier: dict[tuple[Hashable, int], Sent] = {}
    changed = []
    for number, counter in enumerate(record.counters):
        *_, total, start_ns, sent = counter
        if sent is not None:
            earlier[number, start_ns] = Sent(*sent)
        if sent is None or total != sent[2]:
            changed.append((number, counter))
    sums = RisingSums(delta=mapping_of(record.identity).delta, earlier=earlier)
    for begin in range(0, len(changed), _COUNTERS_PER_READING):
        yield _reading(record, sums, changed[begin : begin + _COUNTERS_PER_READING])


def _reading(record: Record, sums: RisingSums, counters: list[tuple[int, PlainCounter]]) -> tuple[bytes, int]:
    message = ResourceMetrics()
    scope = message.scope_metrics.add()
    write_scope(scope, tuple(record.identity["scope"]))
    points: dict[str, Any] = {}

    def points_of(name: str, unit: str, description: str) -> Any:
        if name not in points:
            points[name] = sums.add_metric(scope.metrics, name, unit, description)
        return points[name]

    for number, (*described, attributes, total, start_ns, _) in counters:
        pairs = [KeyValue.FromString(each) for each in attributes]
        sums.write(number, pairs, [Total(number, total, start_ns)], record.time_ns, partial(points_of, *described))
    return message.SerializeToString(), sum(len(each) for each in points.values())


def mapping_of(identity: dict[str, Any]) -> Mapping:
    """Return how the windows of a process become points."""
    return Mapping(*(identity.get("mapping") or ("cumulative", identity["created_ns"], "percentiles")))


def _skip_dropped(dead: Dead) -> None:
    """Pass the items before the oldest file of a journal, which the process has dropped, and counted."""
    for name, journal in dead.journals.items():
        first = journal.segments[0].first if journal.segments else 0
        if name != "metrics" and journal.reader != "nobody" and first > journal.settled + 1:
            adopt(journal, first - 1)


def oldest_first(paths: Iterable[Path]) -> list[Path]:
    """Return records in the order in which their processes began them; those that cannot be read come first."""
    return sorted(paths, key=lambda path: (_created_ns(path), path))


def _created_ns(path: Path) -> int:
    try:
        with closing(Folder.open(path, foreign=True, probe=False)) as folder:
            return int(read_names(folder)[0][0]["created_ns"])
    except Exception:  # whoever uses the record reports it
        return 0


def damaged_ends(dead: Dead) -> int:
    """Return the number of files on the disk with something behind the last whole record of their journal.

    Nobody knows how many items it was. After a kill in the middle of a write the items are in the box, too.
    """
    found = 0
    for name, journal in dead.journals.items() if dead.disk is not None else ():
        segments = {each.name: each for each in journal.segments if each.where == DISK}
        for file in files_of(dead.disk, name):  # type: ignore[arg-type]  # there is one
            segment = segments.get(file)
            following = int(file[len(name) + 1 :].partition(".")[0]) if segment is None else segment.next
            whole = HEAD.size if segment is None else segment.end
            if following >= journal.next and dead.disk.status(file).st_size > whole:  # type: ignore[union-attr]
                found += 1
                if segment is not None:
                    segment.is_damaged = True
    return found


def add_settled(dead: Dead) -> Totals:
    """Return the running totals of a process, with the items that it has settled after it has stored them.

    To be called before such items are removed.
    """
    journal, mapping = dead.journals["metrics"], mapping_of(dead.names[0])
    if isinstance(journal.fold, Totals):
        return journal.fold
    definitions, stored = Definitions(dead.names.__getitem__), dead.totals[:2]
    totals = Totals(definitions, histograms=mapping.totals_of_histograms, after_ns=mapping.after_ns, stored=stored)
    for item in dead.items("metrics", totals.number + 1):
        if item.number > journal.settled:
            break
        if item.last > journal.settled:
            item, _ = item.split(journal.settled + 1 - item.number)  # noqa: PLW2901  the rest is sent
        if item.number <= totals.number < item.last:
            _, item = item.split(totals.number + 1 - item.number)  # noqa: PLW2901
        if item.number > totals.number:
            totals.pass_dropped(item.number)
            totals.add([item], item.last)
    journal.fold = totals
    return totals


def take(path: Path, roots: Sequence[Path], *, foreign: bool = False) -> Dead:
    """Take the record of an ended process to deliver it.

    Args:
        path: Its box or its spool folder. If it has both, both are taken.
        roots: Folders of boxes.
        foreign: Use the folder even if it belongs to another user, or others can write to it.

    Raises:
        FolderError: Its process runs, another process delivers it, it is not ended, or a folder is unsafe.
        OSError: A folder cannot be read.
        ValueError, TypeError: Its values are senseless.
    """
    folders, locks = list[Folder](), list[Lock]()

    def add(path: Path) -> Folder:
        folder = Folder.open(path, foreign=foreign)
        folders.append(folder)
        if is_alive(folder) or (lock := Lock.take(folder)) is None:
            raise FolderError(
                f"{str(path)!r} is in use by another process, such as {process_of(path)} that has made it"
            )
        locks.append(lock)
        return folder

    try:
        given = add(path)
        names, _ = read_names(given)
        if not names:
            raise FolderError(f"{str(path)!r} has no file that describes its process: it cannot be used")
        box, disk = (given, None) if is_box(given.names()) else (None, given)
        spool = Path(names[0]["spool"]) if names[0]["spool"] else None
        others = roots if disk is not None else [spool] if spool is not None else []
        for other in [each / path.name for each in others if (each / path.name).is_dir()][:1]:
            box, disk = (box, add(other)) if disk is None else (add(other), disk)
        dead = Dead(box, disk, locks, spool)
        _skip_dropped(dead)
        if not dead.has_ended:
            raise FolderError(f"{str(path)!r} is left to the monitel run that observes its process")
    except BaseException:
        for lock in locks:
            lock.close()
        for folder in folders:
            folder.close()
        raise
    return dead


def peek(path: Path, *, foreign: bool = False) -> Dead:
    """Return a record for reading. Nothing is locked or changed, and its process may run.

    Raises:
        FolderError: The folder is unsafe, or is not a record.
        OSError: It cannot be read, or its process has changed it meanwhile.
        ValueError, TypeError: Its values are senseless.
    """
    folder = Folder.open(path, foreign=foreign, probe=False)
    try:
        if not read_names(folder)[0]:
            raise FolderError(f"{str(path)!r} has no file that describes its process: it cannot be used")
        box = is_box(folder.names())
        dead = Dead(folder if box else None, None if box else folder, [], None)
        _skip_dropped(dead)
        return dead
    except BaseException:
        folder.close()
        raise
