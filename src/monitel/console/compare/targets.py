"""The runs that a user names: by a run id, a folder, or a process id."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from monitel.blackbox.discovery import find_boxes, find_spools, holds_boxes, is_box, process_of
from monitel.blackbox.folder import FolderError
from monitel.console.compare.assembly import assemble, is_complete, is_last_attempt
from monitel.console.compare.disks import Disks, HangingError
from monitel.console.compare.telemetry import Telemetry
from monitel.console.ledger.reading import read_stored
from monitel.console.text import Screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from monitel.console.compare.evidence import Process
    from monitel.console.compare.run import Run
    from monitel.console.ledger.reading import StoredRun

    _Group: TypeAlias = tuple[str, str]  # the name of a run, and the last attempt of a run without an id

_LISTED = 20


@dataclass(frozen=True)
class Places:
    """The folders of this machine in which runs are looked for.

    Attributes:
        roots: Folders that hold spool folders.
        boxes: The folder that holds black boxes; None for all folders in memory that jobs use by default.
        disks: Reads the files.
    """

    roots: Sequence[Path]
    boxes: Path | None = None
    disks: Disks = field(default_factory=Disks)


def find_run(target: str, places: Places, problems: list[str]) -> Run:
    """Return the run that a user names.

    Args:
        target: The id of a run, or its start as ``monitel ledger`` shows it; a folder that holds one run; or the id of
            a process with a black box.
        places: The folders of this machine.
        problems: Receives the description of each file that cannot be read.

    Raises:
        FolderError: There is no such run, or the folder holds several.
    """
    stored = _stored(places.roots, places, problems)
    if named := [each for each in stored if each.time.run == target]:
        return _complete(target, named[-1], places, problems)
    if named := [each for each in stored if label_of(each) == target]:
        return _complete(target, _only_start(target, named), places, problems)
    path = Path(target)
    if places.disks.read(path, lambda: os.path.lexists(path) and (path.is_dir() or os.sep in target)):
        return _in_folder(path, places, problems)
    processes = _telemetry(lambda each: each.run == target, places, problems)
    if not processes and target.isascii() and target.isdecimal():
        return _of_process(int(target), places, problems)
    if not processes:
        raise FolderError(_unknown(target, stored, places))
    return assemble(target, "telemetry that is not delivered", None, processes)


def label_of(stored: StoredRun) -> str:
    """Return the name of a run: its id, or for a run without id its start in local time."""
    with suppress(OverflowError, ValueError, OSError):
        start = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stored.time.start_ns / 1e9))
        return stored.time.run or start
    return stored.time.run


def _only_start(start: str, runs: Sequence[StoredRun]) -> StoredRun:
    """Return the only run without an id that has started at a time.

    Raises:
        FolderError: There are several.
    """
    if len(runs) > 1:
        raise FolderError(
            f"{len(runs):,} runs without an id have started at {start}: give the spool, the black box or the process "
            "id of one of them; set training.run.id to give runs a name"
        )
    return runs[0]


def _stored(roots: Iterable[Path], places: Places, problems: list[str]) -> list[StoredRun]:
    found = []
    for root in roots:
        try:
            runs, unreadable = places.disks.read(root, partial(read_stored, root))
        except HangingError as error:
            runs, unreadable = [], [str(error)]
        found += runs
        problems += unreadable
    return sorted(found, key=lambda each: each.time.last_ns)


def _complete(label: str, stored: StoredRun, places: Places, problems: list[str]) -> Run:
    """Return a run with ledger, and what its telemetry adds unless the run has completed."""
    if is_complete(stored):
        return assemble(label, "the ledger", stored, [])
    found = _telemetry(lambda each: _may_belong(each, stored), places, problems)
    processes = [each for each in found if _belongs(each, stored)]
    source = "the ledger and telemetry that is not delivered" if processes else "the ledger"
    return assemble(label, source, stored, processes)


def _belongs(process: Process, stored: StoredRun) -> bool:
    """Return True for a process of a run: by the run id, otherwise if the process is its last attempt."""
    return _may_belong(process, stored) and (bool(stored.time.run) or is_last_attempt(process, stored))


def _may_belong(process: Process, stored: StoredRun) -> bool:
    """Return True for a process that belongs to a run by its attributes, before its times are read."""
    if stored.time.run:
        return process.run == stored.time.run
    return not process.run and stored.last.name.endswith(f"-{process.pid}")


def _telemetry(wanted: Callable[[Process], bool], places: Places, problems: list[str]) -> list[Process]:
    """Return the processes whose black boxes are on this machine, or whose spools are below the roots."""
    boxes = find_boxes(places.boxes)
    found: list[Process] = []
    for rank_zero in (True, False):  # the others' metrics, which may be many, are needed only without rank zero
        telemetry = Telemetry(wanted, problems, places.disks, rank_zero=rank_zero)
        for path in boxes.readable:
            telemetry.add_box(path)
        for root in places.roots:
            try:
                folders = places.disks.read(root, partial(find_spools, root)).folders
            except HangingError as error:
                problems.append(str(error))
            except FolderError:
                continue  # there is none
            else:
                for folder in folders:
                    telemetry.add_spool(folder)
        found = telemetry.processes
        if not found or any(not each.rank for each in found):
            break
    return found


def _of_process(pid: int, places: Places, problems: list[str]) -> Run:
    own = [path for path in find_boxes(places.boxes).readable if process_of(path) == pid]
    if not own:
        raise FolderError(
            f"there is neither a run '{pid}' nor a black box of process {pid}: give a training.run.id, a folder, or "
            "the id of a process; monitel autopsy lists the processes with black boxes"
        )
    return _of_boxes(own[-1:], places, problems)  # a process that runs is the last one


def _of_boxes(boxes: Sequence[Path], places: Places, problems: list[str]) -> Run:
    """Return the run of black boxes."""
    found = Telemetry(lambda _: True, problems, places.disks)
    for path in boxes:
        found.add_box(path)
    beside = {each.spool_dir.parent for each in found.processes if each.spool_dir is not None}
    named = f"the black box {str(boxes[0])!r}"
    return _only_run(found.processes, [], _stored(sorted(beside), places, problems), named, problems)


def _in_folder(path: Path, places: Places, problems: list[str]) -> Run:
    if not path.is_dir():
        raise FolderError(f"{str(path)!r} is not a folder: give the folder that holds it")
    disks = places.disks
    names = disks.read(path, partial(os.listdir, path))
    if is_box(names):
        return _of_boxes([path], places, problems)
    found = Telemetry(lambda _: True, problems, disks)
    if disks.read(path, partial(holds_boxes, path)):
        boxes = disks.read(path, partial(find_boxes, path))
        problems += boxes.problems
        for box in boxes.readable:
            found.add_box(box)
    spools = disks.read(path, partial(find_spools, path))
    for folder in spools.folders:
        found.add_spool(folder)
    beside = _stored(sorted({folder.parent for folder in spools.folders} - {path}), places, problems)
    return _only_run(found.processes, _stored([path], places, problems), beside, repr(str(path)), problems)


def _only_run(
    processes: Sequence[Process],
    stored: Sequence[StoredRun],
    beside: Sequence[StoredRun],
    where: str,
    problems: Sequence[str],
) -> Run:
    """Return the only run of processes and ledgers.

    Args:
        processes: The processes.
        stored: Ledgers that belong to the folder.
        beside: Ledgers that may be those of the processes.
        where: The folder in words.
        problems: Descriptions of the files that cannot be read.

    Raises:
        FolderError: There is none, or there are several.
    """
    ledgers = [*beside, *stored]
    groups: dict[_Group, tuple[StoredRun | None, list[Process]]] = {_group_of(each): (each, []) for each in stored}
    others = []
    for process in processes:
        own = next((each for each in reversed(ledgers) if _belongs(process, each)), None)
        if own is None and not process.run and process.rank:
            others.append(process)  # another rank than zero, which has no ledger
        else:
            group = (_name(process), "") if own is None else _group_of(own)
            groups.setdefault(group, (own, []))[1].append(process)
    if others:
        only = next(iter(groups)) if len(groups) == 1 else (_name(others[0]), "")
        groups.setdefault(only, (None, []))[1].extend(others)
    if not groups:
        reason = "; ".join(problems) or "it holds no ledger, no spool and no black box"
        raise FolderError(f"nothing is known from {where}: {reason}")
    if len(groups) > 1:
        listed = [_printable(label) for label, _ in [*groups][:_LISTED]]
        more = [f"and {len(groups) - _LISTED:,} more"] if len(groups) > _LISTED else []
        raise FolderError(
            "\n  ".join([f"{where} holds {len(groups):,} runs; give one of them by its name:", *listed, *more])
        )
    (((label, _), (run, of_run)),) = groups.items()
    if run is None:
        return assemble(label, where, None, of_run)
    return assemble(label, f"the ledger and {where}" if of_run else "the ledger", run, of_run)


def _group_of(stored: StoredRun) -> _Group:
    """Return the group of a run with a ledger: several runs without an id may have started in the same second."""
    return label_of(stored), "" if stored.time.run else stored.last.name


def _name(process: Process) -> str:
    """Return the name of the run of a process without ledger."""
    return process.run or f"process {process.pid}"


def _unknown(target: str, stored: Sequence[StoredRun], places: Places) -> str:
    below = " and ".join(repr(str(root)) for root in places.roots)
    if not stored:
        return f"there is no run, folder or process {target!r}, and no ledger of a run below {below}: give --spool-dir"
    listed = [_printable(label_of(each)) for each in reversed(stored)][:_LISTED]
    more = [f"and {len(stored) - _LISTED:,} older ones"] if len(stored) > _LISTED else []
    return "\n  ".join([f"there is no run, folder or process {target!r}; the runs below {below} are", *listed, *more])


def _printable(name: str) -> str:
    return Screen.of(sys.stderr).printable(name)
