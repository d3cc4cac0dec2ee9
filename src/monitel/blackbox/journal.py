"""A journal: the append-only sequence of what a process records for one signal, which is also the queue to its sender.

It consists of segments. Those in the box are mapped files, which outlive the process; where the box has no room they
are anonymous memory, until a thread has moved them to the disk (:mod:`monitel.blackbox.disk`). What does not fit in the
memory is dropped, the oldest segment first, and counted.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any, Protocol
from zlib import crc32

from monitel.blackbox.folder import Folder, map_file
from monitel.blackbox.record import BODY, CORRUPT, FRAME, HEAD, MAGIC, MASK, Item, Part, load, scan
from monitel.blackbox.settings import BOX_SIZE
from monitel.process.os_threads import RLock

_log = logging.getLogger("monitel")

MEMORY, BOX, DISK = "memory", "box", "disk"

MEMORY_BYTES = 64 << 20  # of items in anonymous memory, beyond which the oldest are dropped as ``queue_full``
_SMALL, _LARGE = 1 << 16, 1 << 18  # bytes of the first segment, and of the others
_KEPT = 1 << 18  # bytes of a journal that nobody reads
_PATIENCE_S = 5.0  # with the disk
_PART = 100  # a box takes one part in so many of the free space
_RETRY_S = 1.0  # after a failure in the box
_HEAD_AT = slice(0, HEAD.size)
_FRAME, _pack_frame = FRAME.size, FRAME.pack
_SINGLE = [BODY.pack(kind, 1) for kind in range(64)]


@dataclass(frozen=True, slots=True)
class Account:
    """The items of one signal, by outcome. Items are windows and logged numbers, log records, or spans.

    ``recorded == delivered + on_disk + folded + sum(dropped.values()) + waiting`` holds in every account.

    Attributes:
        recorded: Items that the application has recorded. A range that is not sampled is not recorded.
        delivered: Items that a backend has acknowledged.
        on_disk: Items in the spool; after the end also items that are left in the black box.
        folded: Ranges beyond the span budget that are part of a complete folded span (one per step).
        waiting: Items in memory.
        dropped: Lost items by reason. ``partial_success`` of metrics is an estimate, because backends count points.
        synthetic: Delivered spans that the pipeline has made itself. They are not items.

    Example:
        >>> from monitel_otlp import Account
        >>> Account(recorded=3, delivered=2, dropped={"queue_full": 1}).waiting
        0
    """

    recorded: int = 0
    delivered: int = 0
    on_disk: int = 0
    folded: int = 0
    waiting: int = 0
    dropped: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    synthetic: int = 0

    @property
    def lost(self) -> int:
        """The number of dropped items, for any reason."""
        return sum(self.dropped.values())


class Room:
    """Counts the bytes of segments, in the box, which takes 1 % of its file system, and in anonymous memory."""

    def __init__(self, box_bytes: int = BOX_SIZE) -> None:
        self.box: Folder | None = None
        self.used = self.memory = 0  # bytes in the box, and in anonymous memory
        self.problem = ""  # why the last segment was not made in the box; empty if it was
        self._limit = self._box_bytes = box_bytes
        self._not_before_s = 0.0
        self._lock = RLock()

    def claim(self, size: int) -> bool:
        """Return True if the box may grow by so many bytes, which count from now on; a smaller size may be granted."""
        with self._lock:
            if self.box is None or time.monotonic() < self._not_before_s:
                return False
            try:
                space = self.box.space()
            except OSError as error:
                self.refuse(error)
                return False
            self._limit = min(self._box_bytes, (space.f_bavail * space.f_frsize + self.used) // _PART)
            self.problem = ""
            if self.used + size > self._limit:
                why = "MONITEL_BLACK_BOX_SIZE" if self._limit == self._box_bytes else "1 % of what is free there"
                self.problem = f"it is full, with {self._limit:,} bytes ({why})"
                return False
            self.used += size
            return True

    def change(self, used: int = 0, memory: int = 0) -> None:
        with self._lock:
            self.used += used
            self.memory += memory

    def refuse(self, error: Exception) -> None:
        """Refuse the box for a second, because a file could not be made or written."""
        self.problem = str(error)
        self._not_before_s = time.monotonic() + _RETRY_S

    @property
    def is_large(self) -> bool:
        """True if each journal may have large segments; else a spare one would take the room of another journal."""
        return self._limit >= 16 * _LARGE

    @property
    def is_short(self) -> bool:
        """True if segments should be moved to the disk at once."""
        return self.memory > 0 or self.used > self._limit // 2

    @property
    def is_exceeded(self) -> bool:
        return self.memory > MEMORY_BYTES


class Fold(Protocol):
    """The state that an exporter keeps of all earlier items, such as the running totals of cumulative series."""

    def drop(self, first: int, end: int, items: Iterable[Item]) -> None:
        """Take in the items from ``first`` to before ``end``, which are dropped unsent. The lock is held."""

    def plain(self) -> tuple[int, Any]:
        """Return the number of the last item that is taken in, and the state, as plain values. The lock is held."""


class Segment:
    """A file of a journal, or as much anonymous memory."""

    def __init__(self, name: str, where: str, size: int = 0, first: int = 0) -> None:
        self.name, self.where = name, where
        self.size = size  # bytes in the box or in anonymous memory
        self.first = self.next = first  # number of its first item, and after its last one
        self.buffer: Any = None  # its bytes; None on the disk, unless they are loaded
        self.end = HEAD.size  # offset after its last entry
        self.begun_s = time.monotonic()
        self.asked_s = 0.0  # monotonic time since which a sender waits for it to be moved to the disk; 0 for none
        self.is_damaged = False  # an entry was missing or senseless


class Journal:
    """Written by any thread, read by one sender.

    :meth:`append` may be called in a signal handler or a destructor that interrupts any method. ``wake`` is called,
    also there, when a thread should call :meth:`prepare`, or work on the disk.
    """

    def __init__(self, name: str, room: Room, wake: Callable[[], object] = lambda: None) -> None:
        self.name, self.room, self.wake = name, room, wake
        self.lock = RLock()
        #: Or "disk", without an endpoint: everything goes there soon. Or "nobody": the last 256 KiB are kept for an
        #: autopsy, are not counted, and do not go to the disk.
        self.reader = "sender"
        self.next = 1  # number of the next item
        self.settled = 0  # all items up to this one are delivered, dropped or set aside
        #: The last item of the latest request, or of the whole of which that is a half: whoever sends its first items
        #: again sends no later ones with them, so that their points are the same.
        self.sending = 0
        self.keep_from = sys.maxsize  # no segment with this item or a later one is removed: the snapshot refers to it
        self.fold: Fold | None = None  # is changed together with `settled`, under the lock
        self.before_remove: Callable[[], object] = lambda: None  # writes fold and position
        self.segments: list[Segment] = []
        self.disk: Folder | None = None
        self.loading: Segment | None = None  # the segment on the disk that a sender waits for
        self.is_refused = False  # the backend refuses the items: they go to the disk soon
        self._end_reason = ""
        self._delivered = 0
        self._uncounted = 0  # items with a number that are not in the account, less those in it that have none
        self._dropped: Counter[str] = Counter()
        self._holes: list[tuple[int, int]] = []  # items that are counted as dropped, and not settled
        self._active: Segment | None = None
        self._spare: Segment | None = None
        self._serials = count(1)
        self._is_rolling = self._is_excessive = False
        self._pinned = 0  # the last item that is being sent: no segment up to it is dropped
        self._moving: Segment | None = None  # is written to the disk, and not dropped either
        self._tail: Segment | None = None  # the file on the disk that still grows
        self._cursor: tuple[Segment, int, int] | None = None

    # ---- writing

    def append(self, kind: int, payload: bytes, items: int = 1) -> int:
        """Append an entry with a value in marshal format 2, and return the number of its last item. Never raises.

        Any thread, signal handler or destructor may call it.
        """
        body = (_SINGLE[kind] if items == 1 else BODY.pack(kind, items)) + payload
        length = len(body)
        with self.lock:
            while True:
                segment, number = self._active, self.next
                if segment is None or (end := (offset := segment.end) + _FRAME + length) > segment.size:
                    self._roll(_FRAME + length)
                    continue
                entry, following = _pack_frame(length, crc32(body, number & MASK)) + body, number + items
                place = slice(offset, end)
                if self.next == number and self._active is segment:
                    # From the check on nothing is called, and no object is made that the garbage collector tracks: no
                    # signal handler and no destructor can interrupt.
                    segment.buffer[place] = entry  # a copy within memory: no system call, the GIL is kept
                    segment.end = end
                    segment.next = self.next = following
                    break
        if self._is_excessive:
            self._drop_excess()
        return number + items - 1

    def _roll(self, length: int) -> None:
        """Begin a segment with room for an entry. The caller holds the lock, and looks again what is active."""
        first, full, spare = self.next, self._active, self._spare
        new = spare if spare is not None and spare.size >= HEAD.size + length else self._make(HEAD.size + length)
        segments, head, kept = [*self.segments, new], HEAD.pack(MAGIC, first), None if new is spare else spare
        now = time.monotonic()
        if self.next == first and self._active is full and self._spare is spare:
            new.buffer[_HEAD_AT] = head  # again without interruption
            new.first = new.next = first
            new.begun_s = now
            self.segments = segments
            self._spare = kept
            self._active = new
        elif new is not spare:  # a signal handler has appended
            self._discard(new)
        total = sum(each.size for each in self.segments)
        self._is_excessive = self.room.is_exceeded or (self.reader == "nobody" and total > _KEPT)
        self.wake()

    def _make(self, least: int) -> Segment:
        nested, self._is_rolling = self._is_rolling, True
        try:
            # Handlers that follow each other faster than a file is made would never end.
            if not nested and (new := self._make_in_box(least)) is not None:
                return new
        finally:
            self._is_rolling = nested
        new = Segment("", MEMORY, max(_SMALL, least))
        new.buffer = memoryview(bytearray(new.size))  # bytes put into a bytearray make tracked objects, in append()
        self.room.change(memory=new.size)
        return new

    def _make_in_box(self, least: int = 0) -> Segment | None:
        is_large = self.segments and self.reader != "nobody" and self.room.is_large
        box, usual = self.room.box, _LARGE if is_large else _SMALL
        size = next((each for each in (max(usual, least), max(_SMALL, least)) if self.room.claim(each)), 0)
        if box is None or not size:
            return None
        new = Segment(f"{self.name}-{next(self._serials)}.log", BOX, size)  # a handler gets another number
        try:
            descriptor = box.open_file(new.name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                os.posix_fallocate(descriptor, 0, size)
                new.buffer = map_file(descriptor, size)
            finally:
                os.close(descriptor)
        except Exception as error:  # a defect, too: an item is recorded in here, and memory will do
            self.room.refuse(error)
        finally:
            if new.buffer is None:
                self.room.change(-size)
                box.unlink(new.name)
        return new if new.buffer is not None else None

    def prepare(self) -> None:
        """Do ahead what :meth:`append` need not do then. Called by one thread, after each wake-up."""
        if self._is_excessive:  # append() was called with the lock held
            self._drop_excess()
        if self._spare is None and self._active is not None:
            spare = self._make_in_box()
            with self.lock:
                self._spare = spare

    def enter_box(self) -> None:
        """Let the next entry begin a segment in the box, which was just made."""
        with self.lock:
            if self._active is not None and self._active.where == MEMORY:
                self._active = None

    def leave_box(self) -> None:
        """Keep in anonymous memory what is in the box, and not settled: ``room.box`` is None, or another one."""
        with self.lock:
            if self._spare is not None:
                self.room.change(-self._spare.size)
            self._spare = self._active = self._cursor = None
            for each in [*self.segments]:
                if each.where == BOX:
                    each.where = MEMORY
                    self.room.change(-each.size, each.size)
                    if self.reader == "nobody" or each.next <= self.settled + 1:
                        self.segments.remove(each)
                        self._discard(each)

    def abandon(self) -> None:
        """Leave everything to the parent, in a forked child. What it appends is for nobody.

        The fork may have interrupted append(): the lock may be held, and the active segment is another one from now on.
        """
        vars(self).update(vars(Journal(self.name, Room())), reader="nobody", _active=Segment("", MEMORY))

    # ---- reading and settling

    def read(self, most: int = 500, most_bytes: int = 1 << 20) -> list[Item]:
        """Return the oldest items that are not settled, for one request: so many entries and bytes, or one entry.

        They stay until :meth:`settle` or :meth:`give_back`. There are none, too, if they must be loaded from the disk,
        or moved to it, first.
        """
        while True:
            with self.lock:
                segment, number = self._pass_holes(), self.settled + 1
                limit = 0 if segment is None else self._readable(segment)
                if segment is None or limit <= number:
                    return []
                begin, first, end = HEAD.size, segment.first, segment.end
                if self._cursor is not None and self._cursor[0] is segment and self._cursor[2] == number:
                    _, begin, first = self._cursor
                self._pinned = number  # wherever that item is moved meanwhile
                buffer, found, size = segment.buffer, list[Item](), 0
            for item, part in _items(buffer, begin, end, first, number=number, limit=limit):
                size += part.end - part.begin
                if found and (len(found) >= most or size > most_bytes):
                    break
                found.append(item)
                begin = part.end
            with self.lock:
                if found:
                    self._pinned = found[-1].last
                    self._cursor = segment, begin, self._pinned + 1
                    return found
                self._pinned = 0
                # If the file has no entry here, and nothing after its last one, the items were never in it.
                parts = [*scan(buffer, begin, end, first)]
                begin = parts[-1].end if parts else begin
                segment.is_damaged = any(part.number >= number for part in parts) or any(buffer[begin:end])
                segment.next = min(segment.next, number)
                if segment is self._active:
                    self._active = None

    def _readable(self, segment: Segment) -> int:
        """Return the number before which the items of a segment can be sent now. The caller holds the lock."""
        if segment.buffer is None:
            self.loading = segment
            self.wake()
            return 0
        if segment.where != MEMORY or self.room.box is None:
            return segment.next
        # After a kill these items would not be found: their numbers would be used again, and totals would be lower than
        # those sent. So they are moved to the disk; if it does not take them, those before the snapshot are sent.
        segment.asked_s = segment.asked_s or time.monotonic()
        if segment is self._active:
            self._active = None
        self.wake()
        has_waited = time.monotonic() - segment.asked_s >= _PATIENCE_S
        return min(segment.next, self.keep_from) if has_waited else 0

    def stop_waiting(self, timeout: float = 0.0) -> None:
        """Let what is in memory be sent after so many seconds, although the disk has not taken it."""
        with self.lock:
            for each in self.segments:
                each.asked_s = time.monotonic() - _PATIENCE_S + timeout

    def _pass_holes(self) -> Segment | None:
        """Settle the items that are in no segment, and return the segment of the next item."""
        number = self.settled + 1
        segment = next((each for each in self.segments if each.next > number), None)
        until = self.next if segment is None else max(segment.first, number)
        known = sum(max(0, min(end, until) - max(first, number)) for first, end in self._holes)
        if until - number > known:
            self._dropped["unreadable"] += until - number - known
        self._holes = [(first, end) for first, end in self._holes if end > until]
        self.settled = until - 1
        return segment

    def settle(self, last: int, delivered: int = 0, **dropped: int) -> None:
        """Note, in one step, how many items up to a number were delivered, and dropped, by reason."""
        with self.lock:
            self.settled = max(self.settled, last)
            self._delivered += delivered
            self._dropped.update(dropped)
            if last >= self._pinned:
                self._pinned = 0

    @property
    def is_empty(self) -> bool:
        """True if all items are settled."""
        return self.settled >= self.next - 1

    def lose(self, reason: str, items: int = 1) -> None:
        """Count items that were recorded, and cannot be appended."""
        with self.lock:
            self._uncounted -= items
            self._dropped[reason] += items

    def give_back(self) -> None:
        """Note that the items of :meth:`read` are not being sent any more. The next call returns them again."""
        self._pinned = 0

    def holes(self) -> list[tuple[int, int]]:
        """Return the items that were dropped and are not settled: the first ones, and the numbers after the last.

        No lock is taken: a thread that has the lock of another journal may call it.
        """
        return list(self._holes)

    def account(self) -> Account:
        with self.lock:
            if self.reader == "nobody":
                return Account()
            left, dropped = Counter[str](), self._dropped.copy()
            for each, items in self.unsettled():
                left[each.where] += items
            disk = left[DISK]
            if self._end_reason:
                disk += left[BOX]
                dropped[self._end_reason] += left[MEMORY]
            lost = MappingProxyType({reason: items for reason, items in dropped.items() if items})
            recorded = self.next - 1 - self._uncounted
            waiting = recorded - self._delivered - disk - sum(lost.values())
            return Account(recorded, self._delivered, disk, waiting=waiting, dropped=lost)

    def end(self, reason: str) -> bool:
        """Count what is in memory as dropped from now on, what is in the box as on the disk; True if there is any."""
        self._end_reason = reason
        return self.is_in_memory(self.next)

    def is_in_memory(self, end: int) -> bool:
        """Return True if unsettled items before a number are not on the disk, and belong there."""
        with self.lock:
            left = any(each.where != DISK and each.first < end for each, _ in self.unsettled())
        return left and self.reader != "nobody"

    @property
    def is_on_disk(self) -> bool:
        """True if unsettled items are on the disk."""
        with self.lock:
            return any(each.where == DISK for each, _ in self.unsettled())

    def unsettled(self) -> Iterator[tuple[Segment, int]]:
        """Yield the segments with unsettled items, and their numbers. The caller holds the lock."""
        number = self.settled + 1
        for each in self.segments:
            if each.next > number:
                yield each, each.next - max(each.first, number)
                number = each.next

    # ---- limits

    def truncate(self, *, disk: bool) -> None:
        """Remove the segments whose items are all settled: those on the disk, or the others.

        An OSError is raised if what must be written before cannot be written; then nothing is removed.
        """
        with self.lock:
            end = min(self.settled + 1, self.keep_from)
            gone = [each for each in self.segments if each.next <= end and (each.where == DISK) is disk]
            gone = [each for each in gone if each is not self._active]
        if gone:
            self.before_remove()
            with self.lock:
                gone = [each for each in gone if each in self.segments]
                for each in gone:
                    self.segments.remove(each)
            for each in gone:
                self._discard(each)

    def drop_oldest(self, reason: str, where: tuple[str, ...] = (MEMORY, BOX)) -> bool:
        """Drop the oldest segment in some places that nobody uses; return False if there is none.

        None that is written, sent or moved, or that the snapshot needs, is dropped: later there will be one.
        """
        while True:
            with self.lock:
                found = next((each for each in self.segments if each.where in where and self._is_free(each)), None)
                if found is not None and (found.buffer is not None or self.fold is None):
                    self._drop(found, reason)
                    break
            if found is None:
                return False
            try:
                self.load(found)
            except OSError:  # the limit holds nevertheless, without the totals of these items
                found.buffer, found.end = b"", 0
        if self.fold is not None:
            with suppress(OSError):  # the file is removed because there is no room
                self.before_remove()
        self._discard(found)
        return True

    def lose_disk(self) -> None:
        """Drop what was on the disk, whose folder was removed."""
        self._tail = None
        while self.drop_oldest("disk", (DISK,)):
            pass

    def _is_free(self, segment: Segment) -> bool:
        if segment in {self._active, self._moving}:
            return False
        is_sent = segment.first <= self._pinned  # it, or one before it in the same request
        return self.reader == "nobody" or (not is_sent and segment.next <= self.keep_from)

    def _drop(self, found: Segment, reason: str) -> None:
        first = max(found.first, self.settled + 1)
        if found.next > first and self.reader != "nobody":
            if self.fold is not None:
                self.fold.drop(first, found.next, self.items(found, first))
            self._dropped[reason] += found.next - first
            if self._holes and self._holes[-1][1] == first:
                self._holes[-1] = self._holes[-1][0], found.next
            else:
                self._holes.append((first, found.next))
        self.segments.remove(found)

    def load(self, segment: Segment) -> None:
        """Load a segment on the disk, which may hang. Its file grows no more; one that is missing is a hole."""
        with self.lock:
            if segment is self._tail:
                self._tail = None
        content = b""
        with suppress(FileNotFoundError):
            content = self.disk.read(segment.name) if self.disk is not None else b""
        with self.lock:
            segment.buffer, segment.end = content, len(content)

    def _drop_excess(self) -> None:
        """Drop what does not fit, unless this thread has the lock: then the fold may be in the middle of a change."""
        if self.lock._is_owned():  # type: ignore[attr-defined]
            return
        self._is_excessive = False
        while self.room.is_exceeded and self.drop_oldest("queue_full"):
            pass
        while self.reader == "nobody" and sum(each.size for each in self.segments) > _KEPT:
            if not self.drop_oldest(""):
                break

    def items(self, segment: Segment, number: int = 1) -> Iterator[Item]:
        """Yield the entries of a segment from an item on, as far as they are sound."""
        if segment.buffer is None:
            self.load(segment)
        read = _items(segment.buffer, HEAD.size, segment.end, segment.first, number=number, limit=segment.next)
        yield from (item for item, _ in read)

    def _discard(self, segment: Segment) -> None:
        """Remove the file of a segment, or free its memory. A damaged file is set aside."""
        if segment.where == MEMORY:
            self.room.change(memory=-segment.size)
            return
        folder = self.disk if segment.where == DISK else self.room.box
        if segment.where == BOX:
            self.room.change(-segment.size)
        if segment is self._tail:
            self._tail = None
        if folder is not None and segment.is_damaged:
            with suppress(OSError):
                folder.rename(segment.name, segment.name + CORRUPT)
                _log.warning("%s is damaged: set aside as %s", folder.path / segment.name, segment.name + CORRUPT)
        elif folder is not None:
            folder.unlink(segment.name)


def _items(buffer: Any, begin: int, end: int, first: int, *, number: int, limit: int) -> Iterator[tuple[Item, Part]]:
    """Yield the items from a number to a limit, with their places, as far as they are sound, like :func:`scan`."""
    with suppress(ValueError, TypeError, IndexError):  # senseless: the rest is a hole
        for part in scan(buffer, begin, end, first):
            if part.number >= limit:
                return
            if part.number + part.items > number:
                item = Item(part.number, part.items, part.kind, load(buffer[part.begin : part.end]))
                yield (item if part.number >= number else item.split(number - part.number)[1]), part
