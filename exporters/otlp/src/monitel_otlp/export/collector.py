"""The collector: it ends the records of killed processes, and moves them to the spool folders.

Collectors in several threads and processes share the records, see :mod:`monitel.blackbox.recovery`. A record of a
process that ``monitel run`` has started is left to it while it runs, because it observes how the process ends.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monitel.blackbox.death import Death, Deaths, death_of
from monitel.blackbox.discovery import SILENT_NS, pid_of, records
from monitel.blackbox.folder import Folder, FolderError, MissingFolderError
from monitel.blackbox.process import this_process
from monitel.blackbox.reading import Record, names_of, page_of, read_record
from monitel.blackbox.record import ENDED, EVENT, READING, WINDOW
from monitel.blackbox.recovery import Dead, InUseError, claim, forget_unread, mark_corrupt, sweep
from monitel.process.os_threads import Event, start_thread
from monitel.runs.ended import store_death
from monitel_otlp._compat import suppress_instrumentation
from monitel_otlp.config.settings import Settings
from monitel_otlp.export.records import add_settled, deliver_marked, unsettled
from monitel_run.folder import is_running

_log = logging.getLogger("monitel.otlp")

_LOOK_S = 0.5  # after which a process that only looks at a record, to remove the rest of one, has left it


@dataclass
class Collector:
    """One collection: its arguments are those of :func:`collect`, the other fields are its outcome."""

    observed: Deaths
    run: str
    observed_only: bool
    keep_unread: bool
    boxes: int = 0
    items: int = 0
    records: list[Path] = field(default_factory=list)  # where they are now
    deaths: list[Death] = field(default_factory=list)
    in_use: list[Path] = field(default_factory=list)  # by another collector, or by one that only looks
    problems: list[str] = field(default_factory=list)

    def take(self, path: Path, spool_root: Path | None) -> None:
        """Collect a record, if it is one of a killed process. Never raises."""
        dead = None
        if self._is_left(path):
            return
        try:
            dead = claim(path, spool_root)
            self._collect(dead)
        except InUseError:
            if pid_of(path) != os.getpid():  # else it is the box of this process
                self.in_use.append(path)
        except MissingFolderError:
            return
        except Exception as error:
            _log.debug("the black box %s cannot be collected", path, exc_info=True)
            if dead is not None and not isinstance(error, (OSError, FolderError)):
                error = mark_corrupt(dead.folders, error)
            text = str(error) if isinstance(error, (OSError, FolderError)) else repr(error)
            self.problems.append(f"the black box {str(path)!r} cannot be collected: {text}")
        finally:
            if dead is not None:
                dead.close()

    def _collect(self, dead: Dead) -> None:
        box = dead.box
        if box is None:
            return
        path = box.path
        is_kept = self.keep_unread and dead.record.is_unread
        if is_kept and not dead.record.run:
            return
        if not dead.has_ended:
            record = read_record(box, dead.disk)
            death = None if record.owner.lives_on else death_of(record, self.observed)
            last = {} if record.is_unread else _last_entries(dead, record, death)
            left = path if is_kept else (dead.spool_root or path.parent) / path.name
            store_death(record, death, left)  # first: nobody does it after the commit
            if is_kept:
                return
            dead.end(last)
            if death is not None:
                self.deaths.append(death)
        self.boxes += 1
        self.items += unsettled(dead)
        if dead.is_delivered:
            dead.remove()
            return
        try:
            add_settled(dead)
            dead.move()
        except (OSError, FolderError) as error:
            _log.debug("the black box %s stays, because its spool folder cannot be written: %s", path, error)
        self.records.append(path if dead.disk is None or dead.box is not None else dead.disk.path)

    def _is_left(self, path: Path) -> bool:
        """Return True if a process runs, or its end is still to be observed, by this caller or by ``monitel run``.

        It is asked without the lock, because whoever is to collect the record would find that taken.
        """
        with suppress(Exception), closing(Folder.open(path, probe=False)) as folder:
            record = Record(path, names_of(folder))
            if folder.has(ENDED):
                return False
            if record.owner.lives_on:  # with another program, or it removes its box itself, whose lock it has lost
                beat_ns = page_of(folder).heartbeat_ns or 0
                return record.owner != this_process() and time.monotonic_ns() - beat_ns < SILENT_NS
            if self.observed_only and self.observed.of(record.owner) is None:
                return True
            return record.run != self.run and is_running(record.run)
        return False


def collect(
    root: Path | None,
    spool_root: Path | None,
    deaths: Deaths | None = None,
    stopped: Event | None = None,
    run: str = "",
    *,
    observed_only: bool = False,
    keep_unread: bool = False,
) -> Collector:
    """End the records of killed processes of this user on this machine, and move them to their spool folders.

    Nothing of running processes and of other users is touched. Where a spool folder cannot be written, the record stays
    in the box, and is delivered from there. Thread-safe. Never raises.

    ``spool_root`` is for processes whose own folder does not exist for this one. ``deaths`` are the ends that the
    caller has observed; with ``observed_only`` the records of other processes are left. ``run`` is the folder of a
    ``monitel run`` that calls this: the records of its processes are its own, those of another that runs are left to
    that one. With ``keep_unread`` the newest boxes that hold nothing to deliver are left to ``monitel autopsy``.
    """
    found = Collector(deaths or Deaths(), run, observed_only, keep_unread)
    if root is None:
        return found
    sweep(root, spool_root)
    for name in records(root):
        if stopped is not None and stopped.is_set():
            return found
        found.take(root / name, spool_root)
    if found.in_use and not (stopped or Event()).wait(_LOOK_S):
        for path in [*found.in_use]:
            found.take(path, spool_root)
    forget_unread(root)
    return found


def _last_entries(dead: Dead, record: Record, death: Death | None) -> dict[str, list[tuple[int, Any]]]:
    """Return what is missing at the end of the journals: open windows, the last reading, and the death."""
    following, readings = record.pending
    if dead.journals["readings"].next > following:
        readings = []  # the counters would fall
    found: dict[str, list[tuple[int, Any]]] = {
        "metrics": [(WINDOW, (each.number, each.content)) for each in record.open_windows],
        "readings": [(READING, each) for each in readings],
        "logs": [] if death is None else [(EVENT, tuple(death.event()))],
    }
    return {name: values for name, values in found.items() if name not in record.off}


def deliver_leftovers(settings: Settings, own_name: str, accepted: Event, stopped: Event, *, earlier: bool) -> None:
    """Collect the records of killed processes, and then deliver them, oldest first, in a background thread.

    With ``earlier`` those of all processes that have ended, which costs a look at each spool. Delivered are those with
    the mark of the endpoints of this pipeline, after its backend has ``accepted`` a request. A record that is in use,
    that cannot be read or that is not accepted at the first attempt stays. The items are not part of the account of
    this process.

    To stop it after the box or the request that is being processed, set ``stopped``, and then ``accepted``.
    """
    spool_root, root = settings.spool_root, settings.box.root

    def run() -> None:
        suppress_instrumentation()
        collected = collect(root, spool_root, stopped=stopped, keep_unread=True)
        for problem in collected.problems:
            _log.warning("%s", problem)
        for death in collected.deaths:
            _log.info("%s", death)
        for path in collected.records:
            _log.info("what a killed process has left is now in %s", path)
        if settings.mark and (earlier or collected.records):
            accepted.wait()
            found = {each.name: each for each in collected.records}
            if earlier:
                found = {name: folder / name for folder in filter(None, (root, spool_root)) for name in records(folder)}
            found.pop(own_name, None)  # a record with a spool folder is found there
            deliver_marked(found.values(), settings, root, stopped)

    if root or settings.mark:
        start_thread(run, "monitel-otlp-leftovers")
