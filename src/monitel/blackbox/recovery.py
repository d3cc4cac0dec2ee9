"""Records of ended processes: each taken by one collector, ended, delivered or moved, and removed.

The record of a killed process becomes one that can be delivered, once, however often its collectors are killed:

1. Take the lock: the process has ended, and no other collector is here (:func:`claim`).
2. Append what the snapshot has and the journals have not, such as open windows, and the death: one file for each
   journal, under a name that nobody reads. Another collector writes these files anew (:meth:`Dead.end`, with what
   ``_last_entries`` of ``monitel_otlp.export.collector`` returns).
3. Rename ``state`` to ``ended``: this commits the files, and from now on nothing is appended (``mark_ended``).
4. Deliver in place (``Delivery`` of ``monitel_otlp.export.records``), or move to the spool folder (:meth:`Dead.move`);
   remove.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from monitel.blackbox import disk as on_disk
from monitel.blackbox.discovery import NAME, entries, is_box, pid_of, records
from monitel.blackbox.folder import Folder, FolderError, MissingFolderError, make_shown
from monitel.blackbox.journal import Journal, Room
from monitel.blackbox.reading import Record, names_of, read_record
from monitel.blackbox.record import (
    CORRUPT,
    ENDED,
    JOURNALS,
    NAMES,
    POSITION,
    REJECTED,
    SENDING,
    TOTALS,
    Item,
    Settled,
    mark_ended,
    pack_file,
    read_names,
)

_MAKING_S = 60.0  # within which a folder without content may be in the making
_KEPT = 16  # records that stay, whoever reads them
_DELIVERED = {"lock", NAMES, POSITION, TOTALS}  # the entries of a spool folder without a journal


class InUseError(FolderError):
    """Raised for a record whose process runs, or that another collector has."""


def sweep(*parents: Path | None) -> None:
    """Remove the rest of records whose making or removal was interrupted by a kill. Never raises.

    It has a hidden name, or is a spool folder without a journal: all of it was delivered. A box has a page.
    """
    for parent in filter(None, parents):
        for name in entries(parent):
            is_hidden = name.startswith(".")
            if NAME.fullmatch(name.removeprefix(".")) is None:
                continue
            if not is_hidden and not _DELIVERED.issuperset(entries(parent / name)):
                continue
            with suppress(OSError, FolderError), closing(Folder.open(parent / name, probe=False)) as folder:
                is_young = time.time() - os.fstat(folder.descriptor).st_mtime < _MAKING_S
                if is_young and {*folder.names()} <= {"lock"}:  # its maker is about to lock it
                    continue
                # Until it has the lock, somebody else may have moved journals there.
                if folder.lock() and (is_hidden or _DELIVERED.issuperset(folder.names())):
                    folder.remove()


def claim(path: Path, spool_root: Path | None = None, *, root: Path | None = None) -> Dead:
    """Take the record of an ended process: its box, its spool folder, or both, whichever is given.

    The spool folder of a box is in the folder that its process has used, if that exists here, else in ``spool_root``;
    the box of a spool folder is in ``root``. What is senseless gets another name, so that it is reported once.

    Raises an :class:`InUseError` if its process runs or somebody else has it, a ``MissingFolderError`` if there is no
    such folder any more, another FolderError if it cannot be used, and an OSError if it cannot be read now.
    """
    taken: list[Folder] = []

    def take(path: Path) -> Folder:
        folder = Folder.open(path)
        opened.callback(folder.close)
        taken.append(folder)
        if not folder.lock():
            if not folder.is_there():
                raise MissingFolderError(f"another process has removed {str(path)!r}")
            raise InUseError(f"{str(path)!r} is in use by another process, such as {pid_of(path)} that has made it")
        return folder

    def take_other(parent: Path | None) -> Folder | None:
        return take(parent / path.name) if parent is not None and (parent / path.name).is_dir() else None

    with ExitStack() as opened:
        try:
            given = take(path)
            if is_box(given.names()):
                spool_root = spool_root_of(names_of(given), spool_root)
                dead = Dead(given, take_other(spool_root), spool_root)
            else:
                dead = Dead(take_other(root), given)
        except (OSError, FolderError):
            raise
        except Exception as error:
            raise mark_corrupt(taken, error) from error
        opened.pop_all()
        return dead


def mark_corrupt(folders: Iterable[Folder], error: Exception) -> FolderError:
    """Give the folders of a senseless record another name, so that it is reported once; return the error to raise."""
    for folder in folders:
        with suppress(OSError):
            folder.path.rename(folder.path.with_name(folder.path.name + CORRUPT))
    return FolderError(f"it is senseless, and set aside with the suffix {CORRUPT}: {error!r:.300}")


def forget_unread(root: Path) -> None:
    """Remove the records of killed processes that nobody reads, but for the newest in a folder. Never raises."""
    for name in records(root)[:-_KEPT]:
        with suppress(Exception):
            with closing(Folder.open(root / name, probe=False)) as folder:
                unread = Record(folder.path, names_of(folder)).is_unread
            if unread:
                with closing(claim(root / name)) as dead:
                    dead.remove()


def spool_root_of(names: Sequence[Any], given: Path | None = None) -> Path | None:
    """Return the folder of the spools of a process, from its names, if its parent exists here; else the given one."""
    recorded = names[0].get("spool") if names else None
    return Path(recorded) if recorded and Path(recorded).parent.is_dir() else given


class Dead:
    """The record of an ended process, in its box, its spool folder, or both.

    Whoever has it from :func:`claim` is the only one until it is closed; without the locks it may only be read.
    Its journals are readable like those of this process; those without a reader have nothing to send. ``record`` is
    without items. :meth:`move` makes the spool folder in ``spool_root``.
    """

    def __init__(self, box: Folder | None, disk: Folder | None, spool_root: Path | None = None) -> None:
        self.record = record = read_record(box, disk, journals=())
        self.box, self.disk, self.spool_root = box, disk, spool_root
        self._room = Room()
        self._room.box = box
        self.journals: dict[str, Journal] = {}
        for name in (*JOURNALS, REJECTED):
            journal = self.journals[name] = Journal(name, self._room)
            journal.disk, journal.before_remove = disk, self._note_removal
            self._adopt(name, record.settled.get(name, 0), record.holes.get(name, []))
        self.journals["metrics"].sending = record.settled.get(SENDING, 0)
        self._settled = Settled(self.folders[0], self.journals, record.totals)

    def _adopt(self, name: str, settled: int, holes: list[tuple[int, int]]) -> None:
        journal = self.journals[name]
        # Items before the snapshot may be in no file: their numbers are not used again.
        snapshot = self.record.snapshot if name == "metrics" else None
        following = 0 if snapshot is None else snapshot.position
        on_disk.adopt(journal, settled, holes, following)
        if name in self.record.off:
            journal.reader, journal.settled = "nobody", journal.next - 1

    @property
    def folders(self) -> list[Folder]:
        """Return its box and its spool folder, or one of them."""
        return [each for each in (self.box, self.disk) if each is not None]

    @property
    def has_ended(self) -> bool:
        return self.box is None or self.box.has(ENDED)

    @property
    def is_delivered(self) -> bool:
        return all(journal.is_empty for journal in self.journals.values())

    def items(self, name: str, first: int = 1) -> Iterator[Item]:
        """Yield the items of a journal from a number on that are in its files, settled or not."""
        journal = self.journals[name]
        for segment in [each for each in journal.segments if each.next > first]:
            is_loaded = segment.buffer is not None
            for item in journal.items(segment, first):
                first = item.last + 1
                yield item
            if not is_loaded:
                segment.buffer = None

    def end(self, last: dict[str, list[tuple[int, Any]]]) -> None:
        """Append the last entries of the process, each of one item, all of them or none, and never again."""
        assert self.box is not None
        for name in self.box.names():
            if name.endswith(".end"):  # of a collector that was killed
                self.box.unlink(name)
        for name, values in last.items():
            if values:
                first = self.journals[name].next
                content = pack_file(first, ((kind, value, 1) for kind, value in values))
                self.box.write(f"{name}-{first:015}.end", content, 0)
        mark_ended(self.box)
        for name in last:
            self._adopt(name, self.journals[name].settled, self.journals[name].holes())

    def note_position(self) -> None:
        """Write which items are settled or being sent. To be called before and after each request.

        On a full disk it is not written: if the delivery is interrupted, the next one repeats what was settled.
        """
        with suppress(OSError):
            self._settled.note_position()

    def _note_removal(self) -> None:
        self._settled.note_totals()
        self.note_position()

    def tend(self) -> None:
        """Remove what is settled, unless the totals cannot be written, and load what senders wait for."""
        for journal in self.journals.values():
            with suppress(OSError):
                journal.truncate(disk=True)
                journal.truncate(disk=False)
        for journal in self.journals.values():
            on_disk.load(journal)

    def move(self) -> None:
        """Move the box to its spool folder, to be delivered later.

        If that cannot be written, an OSError or FolderError is raised; what was not moved stays in the box.
        """
        if self.box is None:
            return
        _, names = read_names(self.box, self.disk)
        if self.disk is None:
            if self.spool_root is None:
                raise FolderError("there is no spool folder")
            self.disk = make_shown(self.spool_root / self.box.path.name, lambda folder: folder.write(NAMES, names, 0))
        else:  # the process has made it before its last definitions
            self.disk.write(NAMES, names, 0)
        disk = self.disk
        self._settled = Settled(disk, self.journals, self.record.totals)
        self._note_removal()
        for journal in self.journals.values():
            on_disk.move(journal, lambda: disk)
        self.box.remove()
        self.box.close()
        self.box = self._room.box = None

    def remove(self) -> None:
        """Remove the record: everything is delivered, or is not needed any more. :func:`sweep` removes a rest."""
        for folder in reversed(self.folders):  # the first one has the position
            folder.remove()
        self.close()
        self.box = self.disk = None

    def close(self) -> None:
        for folder in self.folders:
            folder.close()
