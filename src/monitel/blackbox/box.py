"""The record of this process, and the two threads that keep it.

    /dev/shm/monitel-UID/NAME/   lock names state|ended page position totals JOURNAL-SERIAL.log
    SPOOL/NAME/                  lock names             position totals JOURNAL-NUMBER.log    if something was moved

Any thread appends to the journals. The writer, each second, appends what was collected, and writes the snapshot: open
windows and everything else that is not in the journals. The disk thread moves journals to the spool folder. A disk may
delay it for any time, so nothing waits for it without a deadline.

The snapshot is the file ``state`` until nothing can be added to the journals any more. Then it is renamed to ``ended``:
by the process at its exit, or by the collector that has ended the record of a killed process.
"""

from __future__ import annotations

import logging
import marshal
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from monitel.blackbox import context_page
from monitel.blackbox import disk as on_disk
from monitel.blackbox.folder import Folder, FolderError, keep_mappings, make_shown, open_root
from monitel.blackbox.journal import DISK, Journal, Room
from monitel.blackbox.process import process_facts
from monitel.blackbox.record import (
    JOURNALS,
    REJECTED,
    STACKS,
    STACKS_NOW,
    STACKS_WANTED,
    STATE,
    VERSION,
    Names,
    Settled,
    SlotFile,
    mark_ended,
)
from monitel.blackbox.settings import BOX_SIZE
from monitel.process import crash_stacks
from monitel.process.failures import warn_once
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import Event, Lock
from monitel.process.worker import Worker, yield_gil

SNAPSHOT_S = 1.0  # between two snapshots, and two rounds of the disk thread, at most
DISK_BYTES = 1 << 30  # of items that a sender reads
DISK_AFTER_S = 60.0  # items are moved to the disk
_RETRY_S = 60.0  # between two attempts to make a box
_log = logging.getLogger("monitel")
_live: dict[str, Box] = {}  # boxes of this process, by name


class Box:
    """Keeps the record of this process, which is left if it is killed: journals, snapshot and page.

    Without a folder in memory everything works in anonymous memory, which does not survive a kill. A folder that could
    not be made, or was removed, is made again each minute. After the constructor nothing raises. A forked child leaves
    the box to its parent, and may make another one.

    What memory cannot hold, and what is left at the exit, goes to a folder in ``spool_root``, of which the oldest items
    are dropped as ``spool_full`` beyond its limit. ``identity`` describes the process; the journals in its ``off`` have
    no reader. ``mark`` stands for the endpoints, at the end of the name.
    """

    def __init__(
        self,
        spool_root: Path | None,
        root: Path | None,
        identity: dict[str, Any],
        *,
        interval_s: float = math.inf,
        box_bytes: int = BOX_SIZE,
        mark: str = "",
    ) -> None:
        facts = process_facts()
        parts = [time.strftime("%Y%m%dT%H%M%S", time.gmtime()), str(facts["pid"]), facts["start"] or "0"]
        self.name = "-".join([*parts, os.urandom(3).hex(), *[mark] * bool(mark)])
        self.spool_root = None if spool_root is None else Path(os.path.abspath(spool_root))  # noqa: PTH100  no link is resolved: that waits for the disk
        self._root = None if root is None else Path(os.path.abspath(root))  # noqa: PTH100
        self._interval_s = interval_s = min(interval_s, SNAPSHOT_S)
        place = {"name": self.name, "spool": str(self.spool_root or "")}
        self.names = Names({**identity, **facts, **place})
        self.room = Room(box_bytes)
        self._writer = Worker("monitel", self._write, interval_s)
        self._mover = Worker("monitel-disk", self._move, interval_s)
        self.journals = {name: Journal(name, self.room, self._wake) for name in (*JOURNALS, REJECTED)}
        self.journals[REJECTED].reader = "disk"
        for name, journal in self.journals.items():
            journal.before_remove = self._note_removal
            if name in identity.get("off", ()):
                journal.reader = "nobody"
        #: Parts of the snapshot, as plain values.
        self.sources: dict[str, Callable[[], Any]] = {"stack": crash_stacks.main_stack}
        #: Returns all open windows. It is called with the lock of the journal of metrics held, so that each window is
        #: either open or in the journal. The second function makes them values of entries of kind WINDOW.
        self.open_windows: Callable[[], list[Any]] = list
        self.numbered: Callable[[list[Any]], list[tuple[int, bytes]]] = list
        self.flushes: list[Callable[[], object]] = [self._keep_stacks]  # append what was collected, before a snapshot
        self.disk_problem = ""  # why nothing is moved to the spool folder
        self.folder: Folder | None = None  # the box, and its files
        self._state: SlotFile | None = None
        self._settled: Settled | None = None
        self.disk: Folder | None = None  # the same of the spool folder
        self._disk_settled: Settled | None = None
        self._snapshotting, self._opening = Lock(), Lock()
        self._has_snapshot = False
        self._stopping = False  # no box is made any more, and no stacks are written
        self._is_over = False  # everything is recorded: snapshot and position stay as they are
        self._closes = False  # the next round of the disk thread is the last one, and moves everything
        self._next_round = Event()  # to be set after the next round of the disk thread
        self._snapshot_at_s, self._retry_at_s = time.monotonic() + interval_s, math.inf
        self._keep_stacks()  # in the thread that configures, so that an overflow of its stack is recorded
        _live[self.name] = self

    @property
    def bytes_on_disk(self) -> int:
        return sum(on_disk.size_on_disk(self.journals[name]) for name in JOURNALS)

    def start(self) -> None:
        self._writer.start()
        if self.spool_root is not None:
            self._mover.start()

    @contextmanager
    def unlocked(self) -> Iterator[None]:
        """Let other threads use the journals during the block: for a signal handler, which may have interrupted one."""
        locks: list[Any] = [journal.lock for journal in self.journals.values()]
        held = [(lock, lock._release_save()) for lock in locks if lock._is_owned()]
        try:
            yield
        finally:
            for lock, state in held:
                lock._acquire_restore(state)

    def _report(self, place: str, error: object) -> None:
        if place == "box":
            noun, effect = f"the box of {self.name}", "what is recorded now does not survive a kill of this process"
        else:
            self.disk_problem = str(error)
            noun, effect = f"the spool in {self.spool_root}", "what memory cannot hold is dropped"
        warn_once(_log, "%s cannot be used, so %s: %s", noun, effect, error, key=(self.name, place))

    def _try(self, part: str, step: Callable[[], Any]) -> Any:
        """Return what a part of the writer's work returns; None if it fails: the others do not depend on it."""
        try:
            return step()
        except Exception as error:  # a defect; the next round may succeed
            words = "the black box is not complete, because of its %s: %r"
            warn_once(_log, words, part, error, key=(self.name, part))
            return None

    # ---- the box in memory

    def open(self) -> None:
        """Make the box, before the first item: a process that records nothing has none."""
        self._retry_at_s = 0.0
        self._try_to_open()
        self._keep_stacks()

    def _try_to_open(self) -> None:
        """Make the box, unless there is one, or the last attempt was less than a minute ago."""
        if not self._opening.acquire(blocking=False):
            return  # another thread makes it
        try:
            is_due = time.monotonic() >= self._retry_at_s
            if self._stopping or self._root is None or self.folder is not None or not is_due:
                return
            self._retry_at_s = time.monotonic() + _RETRY_S
            open_root(self._root).close()
            self.folder = made = make_shown(self._root / self.name, self._fill)
        except Exception as error:  # a defect, too: the first item is recorded in here
            if self.names.folder is not None:
                context_page.close_page(self.names.folder)
            self._forget_files()
            self._report("box", error)
            return
        finally:
            self._opening.release()
        self._has_snapshot = False
        self._try("position", self.note_position)
        self.room.box = made
        for journal in self.journals.values():
            journal.enter_box()

    def _fill(self, folder: Folder) -> None:
        self.names.folder = folder
        self.names.copy(folder)
        self._state = SlotFile(folder, STATE, mapped=True)
        self._settled = Settled(folder, self.journals, mapped=True)
        self._settled.note_totals()
        context_page.open_page(folder)  # it shows that this is a box, even if the process is killed before a snapshot

    def _check_box(self) -> None:
        if (folder := self.folder) is None:
            return
        if folder.is_held():
            try:
                self.names.copy(folder)  # there was no room when they were defined
            except OSError as error:
                self._report("box", error)
            if self.room.memory and self.room.problem:  # without one, the memory is older than the box
                self._report("box", self.room.problem)
            return
        # Continue in anonymous memory.
        keep_mappings()
        self._report("box", "its folder was removed, or the application has closed its descriptors")
        self.folder, self._has_snapshot = None, False
        self._leave_box()
        folder.close()
        with suppress(OSError, FolderError), closing(Folder.open(folder.path)) as left:
            left.remove()  # nobody delivers again what is sent from memory

    def _forget_files(self) -> None:
        self.names.folder = self._state = self._settled = None

    def _leave_box(self) -> None:
        self.room.box = None
        self._forget_files()
        for journal in self.journals.values():
            journal.leave_box()

    @property
    def _stacks(self) -> Path:
        return Path(os.devnull) if self.folder is None else self.folder.path / STACKS

    def _keep_stacks(self) -> None:
        """Have a crash write its stacks into the box, and write the present stacks if they are wanted."""
        if self._stopping:
            return
        with suppress(OSError):
            crash_stacks.write_to(self._stacks)
        folder = self.folder
        if folder is not None and folder.has(STACKS_WANTED):
            folder.unlink(STACKS_NOW)
            folder.write_new(STACKS_NOW, crash_stacks.stacks_now().encode("utf-8", "replace"))
            folder.unlink(STACKS_WANTED)

    # ---- the writer

    def _wake(self) -> None:
        """Have segments made ahead, moved or loaded soon. Called by any thread, also in signal handlers."""
        self._mover.wake()
        self._writer.wake()

    def _write(self) -> float:
        for journal in self.journals.values():
            self._try("journals", journal.prepare)
        if time.monotonic() >= self._snapshot_at_s:
            self._snapshot_at_s = time.monotonic() + self._interval_s
            self._try("folder", self._try_to_open)
            self.snapshot()
        return self._snapshot_at_s - time.monotonic()

    def snapshot(self, timeout: float = 1.0) -> None:
        """Append what was collected, and write the snapshot, as the writer does each second. Any thread may call it."""
        if not self._snapshotting.acquire(timeout=timeout):
            return  # another thread writes one; an older snapshot must not replace a newer one
        try:
            if not self._is_over:
                self._try("snapshot", self._snapshot)
        finally:
            self._snapshotting.release()

    def _snapshot(self) -> None:
        for flush in [*self.flushes]:
            self._try(f"flush {flush!r}", flush)
        self._check_box()
        metrics = self.journals["metrics"]
        with metrics.lock:  # each window is open, in a thread that waits here to append it, or in the journal
            position, opened = metrics.next, self.open_windows()
            metrics.keep_from = min(metrics.keep_from, position)
        yield_gil()  # none of these parts holds it for long
        windows = self.numbered(opened)
        yield_gil()
        found = {name: self._try(name, source) for name, source in [*self.sources.items()]}
        values = {name: value for name, value in found.items() if value is not None}
        head = (VERSION, time.time_ns(), position)
        # Without room for it one without content is written, because older items are removed only up to its position.
        if self._write_state((*head, windows, values)) or self._write_state((*head, [], {})):
            metrics.keep_from, self._has_snapshot = position, True
        elif not self._has_snapshot:
            metrics.keep_from = sys.maxsize
        with suppress(OSError):
            for journal in self.journals.values():
                journal.truncate(disk=False)
        context_page.beat()

    def _write_state(self, value: tuple[Any, ...]) -> bool:
        if (state := self._state) is None:
            return False
        try:
            content = marshal.dumps(value, 2)
        except ValueError:  # leave out what is not a plain value
            parts = value[-1].items()
            plain = {name: part for name, part in parts if self._try(name, partial(marshal.dumps, part, 2))}
            content = marshal.dumps((*value[:-1], plain), 2)
        try:
            state.write(content)
        except OSError as error:
            self._report("box", error)
            return False
        return True

    def note_position(self) -> None:
        """Write which items are settled or being sent. To be called around each request, in its sender's thread."""
        settled = self._settled
        if settled is None and self.disk is not None:  # a collector finds it there, at most a request behind
            self._mover.wake()
        if settled is not None and not self._is_over:
            with suppress(OSError):
                settled.note_position()
                if self.room.memory:  # a collector could not add items that were in anonymous memory to the totals
                    settled.note_totals()

    def _note_removal(self) -> None:
        """Write what makes files unnecessary, before they are removed."""
        if (settled := self._settled) is not None:
            settled.note_totals()
        self.note_position()

    # ---- the disk thread

    def _move(self) -> float:
        done, self._next_round = self._next_round, Event()
        is_last = self._closes
        self.tend_disk(0.0 if is_last else DISK_AFTER_S)
        if is_last:
            self._mover.stop()
            with suppress(OSError):
                if self.disk is not None and all(each.is_empty for each in self.journals.values()):
                    self.disk.remove()
        done.set()
        return self._interval_s

    def tend_disk(self, after_s: float) -> None:
        """Move, load and remove what is in the spool folder. The disk may delay it for any time.

        Items are moved after so many seconds, those without a sender soon.
        """
        if self.spool_root is None:
            return
        journals = [*self.journals.values()]
        done = [self.disk is None or self._try_disk(self._open_disk)]
        done += [self._try_disk(on_disk.load, each) for each in journals]
        done += [self._try_disk(on_disk.move, each, self._open_disk, after_s) for each in journals]
        if self.disk is not None:
            is_noted = self._try_disk(self._note_disk, self.disk)
            if is_noted or self.folder is not None:  # else a collector would deliver again what is removed
                done += [self._try_disk(on_disk.remove_settled, each) for each in journals]
            done += [is_noted, self._try_disk(self._limit_disk, self.disk)]
        if all(done):
            self.disk_problem = ""

    def _try_disk(self, step: Callable[..., object], *arguments: object) -> bool:
        """Do a step of the disk thread; return False if it fails. The others do not depend on it."""
        try:
            step(*arguments)
        except (OSError, FolderError) as error:
            self._report("disk", error)
        except Exception as error:  # a defect; the next round may succeed
            warn_once(_log, "the spool folder is not complete: %r", error, key=self.name)
        else:
            return True
        return False

    def _open_disk(self) -> Folder:
        assert self.spool_root is not None
        if self.disk is None or not self.disk.is_held():
            self.disk = make_shown(self.spool_root / self.name, self._fill_disk)
            for journal in self.journals.values():  # what was in a folder that was removed is lost
                journal.lose_disk()
        return self.disk

    def _fill_disk(self, folder: Folder) -> None:
        self._disk_settled = Settled(folder, self.journals)
        self._note_disk(folder)

    def _note_disk(self, folder: Folder) -> None:
        self.names.copy(folder)
        if self._disk_settled is not None:
            self._disk_settled.note_position()
            self._disk_settled.note_totals()

    def _limit_disk(self, folder: Folder) -> None:
        sent = [journal for journal in self.journals.values() if journal.reader == "sender"]
        while sum(map(on_disk.size_on_disk, sent)) > DISK_BYTES:
            if not max(sent, key=on_disk.size_on_disk).drop_oldest("spool_full", (DISK,)):
                break
            self._note_disk(folder)

    def spill(self, timeout: float) -> bool:
        """Have what no sender reads moved to the spool folder; return True if that is done in so many seconds."""
        kept = [(journal, journal.next) for journal in self.journals.values() if journal.reader == "disk"]
        if not any(journal.is_in_memory(end) for journal, end in kept):
            return True  # the disk, which may hang, is not needed
        for journal, _ in kept:
            on_disk.seal(journal)
        done = self._next_round
        self._mover.run_now()
        if not done.wait(timeout):
            return False
        return not any(journal.is_in_memory(end) for journal, end in kept)

    # ---- the end

    def close(self, timeout: float) -> bool:
        """Move what is left to the spool folder, and remove the box, in so many seconds, when nothing is appended.

        False is returned if something stays in the box, because the disk is full or hangs: a collector will deliver it.
        """
        deadline = time.monotonic() + timeout
        if self._is_over:
            return True
        self._stopping = True
        with suppress(OSError):
            crash_stacks.stop(self._stacks)
        self._writer.stop()
        self._writer.join(time.monotonic() + timeout / 2)
        self.snapshot(max(0.0, deadline - time.monotonic()))
        self._is_over = True
        with suppress(OSError):
            if self.folder is not None:
                mark_ended(self.folder)  # from now on this is not the box of a killed process
        for journal in self.journals.values():
            journal.keep_from = sys.maxsize
        self._closes = True
        self._mover.run_now()
        moves = not self._mover.join(deadline)
        _live.pop(self.name, None)
        reason = "disk" if self.disk_problem else "exit"
        left = True in [journal.end(reason) for journal in self.journals.values()]
        if self.folder is not None:
            context_page.close_page(self.folder)
            with suppress(OSError):
                if not left and not moves:
                    self.folder.remove()
                    self._leave_box()  # a program may disable the garbage collector, and end a thousand runs
        if not moves:
            self._close_folders()
        return not left and not moves

    def abandon(self) -> None:
        """Leave everything to the parent. Called in a forked child."""
        self._is_over = self._stopping = True
        self._close_folders()
        self.folder = self.disk = self._disk_settled = None
        self._forget_files()
        self._snapshotting, self._opening = Lock(), Lock()  # perhaps held
        self.names.renew()
        for journal in self.journals.values():
            journal.abandon()

    def _close_folders(self) -> None:
        for folder in (self.folder, self.disk):
            if folder is not None:
                folder.close()


def has_box() -> bool:
    return bool(_live)


def _abandon_all() -> None:
    boxes = [*_live.values()]
    _live.clear()
    for box in boxes:
        box.abandon()


register_at_fork(after_in_child=_abandon_all)
