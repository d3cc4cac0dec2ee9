"""Recovery: the records of ended processes, each taken by one collector, ended, delivered or moved, and removed.

The record of a killed process becomes one that can be delivered, once, however often its collectors are killed:

1. Take the lock: the process has ended, and no other collector is here.
2. Append what the snapshot has and the journals have not, such as open windows, and the death: one file for each
   journal, under a name that nobody reads. Another collector writes these files anew.
3. Rename ``state`` to ``ended``: this commits the files, and from now on nothing is appended.
4. Deliver in place, or move to the spool folder; remove.
"""

from __future__ import annotations

import marshal
import os
import re
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitel.blackbox import disk as on_disk
from monitel.blackbox.box import is_mine, pack_position
from monitel.blackbox.folder import Folder, FolderError, Lock, make_shown
from monitel.blackbox.journal import Journal, Room
from monitel.blackbox.process import process_facts, process_start
from monitel.blackbox.reading import Record, names_of, read_record
from monitel.blackbox.record import (
    CORRUPT,
    ENDED,
    JOURNALS,
    NAMES,
    POSITION,
    REJECTED,
    SENDING,
    STATE,
    TOTALS,
    WINDOW,
    Item,
    SlotFile,
    pack_file,
    read_names,
)
from monitel.stats.window import key, split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Start, process id, its start time, random digits, and perhaps the mark of the endpoints.
NAME = re.compile(r"\d{8}T\d{6}-(\d+)-(\d+)-[0-9a-f]{6}(?:-[0-9a-f]{8})?")
_KEPT = 16  # records that stay, whoever reads them
_ALL = (*JOURNALS, REJECTED)
_DELIVERED = {"lock", NAMES, POSITION, TOTALS}  # the entries of a spool folder without a journal


def entries(folder: Path | None) -> list[str]:
    """Return the names of all entries of a folder; none if it cannot be read."""
    with suppress(OSError):
        return [] if folder is None else os.listdir(folder)  # noqa: PTH208  names are needed, often
    return []


def processes(root: Path | None, spool: Path | None) -> list[str]:
    """Return the names of all records in a folder of boxes and one of spools, oldest first. Nothing is changed."""
    return sorted({name for folder in (root, spool) for name in entries(folder) if NAME.fullmatch(name)})


def sweep(root: Path | None, spool: Path | None) -> None:
    """Remove the rest of records whose making or removal was interrupted by a kill. Never raises.

    It has a hidden name, or is a spool folder without a journal: all of it was delivered.
    """
    for parent in (root, spool):
        for name in entries(parent):
            if parent is None or NAME.fullmatch(name.removeprefix(".")) is None:
                continue
            if not name.startswith(".") and (parent != spool or not _DELIVERED.issuperset(entries(parent / name))):
                continue
            with suppress(OSError, FolderError), closing(Folder.open(parent / name, probe=False)) as folder:
                if not is_alive(folder) and (lock := Lock.take(folder)) is not None:
                    folder.remove()
                    lock.close()


def is_alive(folder: Folder) -> bool:
    """Return True if the process of a box or spool folder runs: it holds the lock, or has lost it.

    The application may have closed the descriptor of the lock. Then the process id and start time in the name decide,
    unless the process has ended its record, or has replaced itself by calling exec and is this one now.
    """
    if Lock.is_held(folder):
        return True
    name = folder.path.name.lstrip(".")
    match = NAME.fullmatch(name)
    if match is None or folder.has(ENDED):
        return False
    if int(match[1]) == os.getpid():
        return is_mine(name)
    names, facts = read_names(folder)[0], process_facts()
    if names and any(names[0].get(key) != facts[key] for key in ("boot", "namespace")):
        return False  # its process id means another process here
    return process_start(int(match[1])) == match[2]


def claim(root: Path | None, spool: Path | None, name: str) -> Dead | None:
    """Take the record of an ended process, in a folder of boxes, in that of its spool, which the box names, or in both.

    Args:
        root: Folder of the boxes; None for none.
        spool: Folder of the spools, unless the one that the box names exists; None for none.
        name: The name of the record.

    Returns:
        None if there is none, the process runs, or another collector has it.

    Raises:
        OSError, FolderError: It cannot be read, or is of another version. What is senseless gets another name, so that
            it is reported once.
    """
    if NAME.fullmatch(name) is None:
        return None
    box = disk = None
    with ExitStack() as held:
        try:
            if (box := _take(root, name, held)) is not None:
                spool = spool_of(read_names(box)[0], spool)
            disk = _take(spool, name, held)
            dead = None if box is disk is None else Dead(box, disk, spool)
        except (BlockingIOError, FileNotFoundError):
            return None
        except (OSError, FolderError):
            raise
        except Exception as error:
            raise set_aside([each for each in (box, disk) if each is not None], error) from error
        if dead is not None:
            dead.held = held.pop_all()
    return dead


def set_aside(folders: Iterable[Folder], error: Exception) -> FolderError:
    """Give the folders of a senseless record another name, so that it is reported once; return the error to raise."""
    for folder in folders:
        with suppress(OSError):
            folder.path.rename(folder.path.with_name(folder.path.name + CORRUPT))
    return FolderError(f"it is senseless, and set aside with the suffix {CORRUPT}: {error!r:.300}")


def forget_unread(root: Path) -> None:
    """Remove the records of killed processes that nobody reads, but for the newest in a folder. Never raises."""
    for name in processes(root, None)[:-_KEPT]:
        with suppress(Exception):
            with closing(Folder.open(root / name, probe=False)) as folder:
                unread = Record(folder.path, names_of(folder)[0]).is_unread
            if unread and (dead := claim(root, None, name)) is not None:
                with closing(dead):
                    dead.remove()


def spool_of(names: list[Any], given: Path | None = None) -> Path | None:
    """Return the folder of the spools of a process, from its names, if its parent exists here; else the given one."""
    recorded = names[0].get("spool") if names else None
    return Path(recorded) if recorded and Path(recorded).parent.is_dir() else given


def _take(parent: Path | None, name: str, held: ExitStack) -> Folder | None:
    """Open and lock a folder of a record; return None if there is none.

    Raises:
        BlockingIOError: A process has it.
    """
    if parent is None or not (parent / name).is_dir():
        return None
    folder = Folder.open(parent / name)
    held.callback(folder.close)
    if is_alive(folder) or (lock := Lock.take(folder)) is None:
        raise BlockingIOError
    held.callback(lock.close)
    return folder


class Dead:
    """The record of an ended process, in its box, its spool folder, or both. Nobody else has it until it is closed.

    Attributes:
        spool: The folder in which :meth:`move` makes the spool folder; None for none.
        journals: Readable like those of this process; those that the process had no reader for have nothing to send.
        held: The locks, which :meth:`close` releases. Without them the record is only read.

    Raises:
        FolderError: The record is of another version.
        RecordError: Its values are senseless.
    """

    def __init__(self, box: Folder | None, disk: Folder | None, spool: Path | None = None) -> None:
        self._record = record = read_record(box, disk, journals=())
        self.box, self.disk, self.spool, self.held = box, disk, spool, ExitStack()
        self.name, self.names = record.path.name, record.names
        self.snapshot, self.totals = record.snapshot, record.totals
        first = disk if box is None else box
        assert first is not None
        self._slots = {name: SlotFile(first, name) for name in (POSITION, TOTALS)}
        self._room = Room()
        self._room.box = box
        self.journals: dict[str, Journal] = {}
        for name in _ALL:
            journal = self.journals[name] = Journal(name, self._room)
            journal.disk, journal.before_remove = disk, self._note_removal
            self._adopt(name, record.settled.get(name, 0), record.holes.get(name, []))
        self.journals["metrics"].sending = record.settled.get(SENDING, 0)

    def _adopt(self, name: str, settled: int, holes: list[tuple[int, int]]) -> None:
        journal = self.journals[name]
        # Items before the snapshot may be in no file: their numbers are not used again.
        following = self.snapshot.position if self.snapshot is not None and name == "metrics" else 0
        on_disk.adopt(journal, settled, holes, following)
        if name in self._record.off:
            journal.reader, journal.settled = "nobody", journal.next - 1

    @property
    def is_unread(self) -> bool:
        """See :attr:`monitel.blackbox.reading.Record.is_unread`."""
        return self._record.is_unread

    @property
    def has_ended(self) -> bool:
        """True if nothing is to be appended."""
        return self.box is None or self.box.has(ENDED)

    @property
    def is_delivered(self) -> bool:
        """True if every item is settled."""
        return all(journal.settled >= journal.next - 1 for journal in self.journals.values())

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

    def has_grown(self, name: str) -> bool:
        """Return True if something was appended to a journal after the snapshot, even if it is delivered and removed.

        A reading of the counters in the snapshot is not needed then: counters would fall. Call it before :meth:`end`.
        """
        return self.snapshot is None or self.journals[name].next > self.snapshot.values["next"][name]

    def open_windows(self) -> Iterator[tuple[int, bytes]]:
        """Yield the open windows of the snapshot that are not in the journal, as values of records of kind WINDOW."""
        if self.snapshot is not None:
            later = self.items("metrics", self.snapshot.position)
            closed = {key(item.value[1]) for item in later if item.kind == WINDOW}
            for name, (each, content) in zip(self.snapshot.window_names, split(self.snapshot.windows), strict=True):
                if name >= 0 and each not in closed:  # else its definition is not known
                    yield name, content

    def end(self, records: dict[str, list[tuple[int, Any]]]) -> None:
        """Append the last records of the process, each of one item, all of them or none, and never again."""
        assert self.box is not None
        for name in self.box.names():
            if name.endswith(".end"):  # of a collector that was killed
                self.box.unlink(name)
        for name, values in records.items():
            if values:
                first = self.journals[name].next
                content = pack_file(first, ((kind, value, 1) for kind, value in values))
                self.box.write(f"{name}-{first:015}.end", content, 0)
        if self.box.has(STATE):
            self.box.rename(STATE, ENDED)
        else:
            self.box.write(ENDED, b"", 0)
        for name in records:
            self._adopt(name, self.journals[name].settled, self.journals[name].holes())

    def note_position(self) -> None:
        """Write which items are settled or being sent. To be called before and after each request.

        On a full disk it is not written: if the delivery is interrupted, the next one repeats what was settled.
        """
        with suppress(OSError):
            self._slots[POSITION].write(pack_position(self.journals))

    def _note_removal(self) -> None:
        fold = self.journals["metrics"].fold
        holes = {name: journal.holes() for name, journal in self.journals.items()}
        self._slots[TOTALS].write(marshal.dumps((*(self.totals if fold is None else fold.plain()), holes), 2))
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

        Raises:
            OSError, FolderError: The spool folder cannot be written. What was not moved stays in the box.
        """
        if self.box is None:
            return
        _, names = read_names(self.box, self.disk)
        if self.disk is None:
            if self.spool is None:
                raise FolderError("there is no spool folder")
            self.disk, lock = make_shown(self.spool / self.name, lambda folder: folder.write(NAMES, names, 0))
            self.held.callback(lock.close)
        else:  # the process has made it before its last definitions
            self.disk.write(NAMES, names, 0)
        disk = self.disk
        self._slots = {name: SlotFile(disk, name) for name in (POSITION, TOTALS)}
        self._note_removal()
        for journal in self.journals.values():
            on_disk.move(journal, lambda: disk)
        self.box.remove()
        self.box.close()
        self.box = self._room.box = None

    def remove(self) -> None:
        """Remove the record: everything is delivered, or is not needed any more. :func:`sweep` removes a rest."""
        for folder in (self.disk, self.box):
            if folder is not None:
                folder.remove()
                folder.close()
        self.box = self.disk = None

    def close(self) -> None:
        """Release the record: others may claim it."""
        self.held.close()
        for folder in (self.box, self.disk):
            if folder is not None:
                folder.close()
