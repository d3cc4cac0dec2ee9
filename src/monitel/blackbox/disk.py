"""The disk of a journal: its segments are moved there, and loaded again for the sender. These functions may hang.

Only one thread calls them for a journal. On the disk, segments are appended to files whose names have the number of
their first item. They raise an OSError if the disk cannot be read or written now: nothing is lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from monitel.blackbox.folder import Folder, FolderError, write_at
from monitel.blackbox.journal import BOX, DISK, Journal, Segment
from monitel.blackbox.record import HEAD, MAGIC, files_of, first_of, scan

_LARGEST = 4 << 20  # bytes of a file: it is loaded as a whole
_SOON_S = 1.0  # after which a segment that no sender reads ends


def seal(journal: Journal, older_than_s: float = 0.0) -> None:
    """Let the next entry begin a segment, if the active one has unsettled items and is as old as that."""
    with journal.lock:
        active = journal._active
        if active is None or active.next <= max(active.first, journal.settled + 1):
            return
        if journal.reader == "disk" or journal.is_refused:  # not at once: each segment costs who appends next, and
            older_than_s = min(older_than_s, _SOON_S)  # wakes this thread
        if time.monotonic() - active.begun_s >= older_than_s:
            journal._active = None


def move(journal: Journal, open_disk: Callable[[], Folder], older_than_s: float = 0.0) -> None:
    """Move segments to the disk, oldest first: those that are as old as that, or all of them if memory is short."""
    seal(journal, older_than_s)
    while journal.reader != "nobody":
        with journal.lock:
            waiting = (each for each, _ in journal.unsettled() if each.where != DISK and each is not journal._active)
            if (segment := next(waiting, None)) is None:
                break
            is_due = journal.reader == "disk" or journal.is_refused or segment.asked_s or journal.room.is_short
            if not is_due and time.monotonic() - segment.begun_s < older_than_s:
                break
            journal._moving = segment
            data = bytes(segment.buffer[HEAD.size : segment.end])
        try:
            journal.disk = open_disk()
            _append(journal, journal.disk, segment, data)
        except (OSError, FolderError):
            journal.stop_waiting()
            raise
        finally:
            journal._moving = None


def _append(journal: Journal, disk: Folder, segment: Segment, data: bytes) -> None:
    tail = journal._tail
    is_new = tail is None or tail.next != segment.first or tail.end + len(data) > _LARGEST
    if tail is None or is_new:
        tail = Segment(f"{journal.name}-{segment.first:015}.log", DISK, first=segment.first)
    descriptor = disk.open_file(tail.name, os.O_WRONLY | os.O_CREAT)
    try:
        if is_new:
            os.ftruncate(descriptor, 0)
            write_at(descriptor, HEAD.pack(MAGIC, tail.first), 0)
        write_at(descriptor, data, tail.end)
    except OSError:
        journal._tail = None
        with suppress(OSError):
            os.ftruncate(descriptor, 0 if is_new else tail.end)
        raise
    finally:
        os.close(descriptor)
    with journal.lock:
        if segment not in journal.segments:  # all of it was settled meanwhile
            journal._tail = None
            if is_new:
                disk.unlink(tail.name)
            return
        at = journal.segments.index(segment)
        tail.next, tail.end = segment.next, tail.end + len(data)
        if is_new:
            tail.begun_s = segment.begun_s
            journal.segments.insert(at, tail)
        journal.segments.remove(segment)
        journal._tail = tail if journal.loading is not tail and tail.buffer is None else None
    journal._discard(segment)


def load(journal: Journal) -> bool:
    """Load the segment that a sender waits for; return True if there is one. The file does not grow any more."""
    segment = journal.loading
    if segment is None or journal.disk is None:
        return False
    journal.load(segment)
    journal.loading = None
    return True


def remove_settled(journal: Journal) -> None:
    """Forget the content of segments on the disk whose items are settled, and remove their files."""
    with journal.lock:
        for each in journal.segments:
            if each.where == DISK and each.next <= journal.settled + 1:
                each.buffer = None
    with suppress(OSError):  # a full box does not take the totals, and the files stay for now
        journal.truncate(disk=True)


def size_on_disk(journal: Journal) -> int:
    with journal.lock:
        return sum(each.end for each in journal.segments if each.where == DISK)


def adopt(journal: Journal, settled: int, holes: Iterable[tuple[int, int]] = (), following: int = 0) -> None:
    """Find the segments of a process that has ended, in its box (``room.box``) and on the disk (``journal.disk``).

    The account begins with what is neither settled nor dropped (``holes``, which may be there several times).
    ``following`` is the number after the last item, if something else than the segments shows it.
    """
    found = [*_on_disk(journal), *_in_box(journal)]
    dropped: list[tuple[int, int]] = []
    for first, end in sorted((max(first, settled + 1), end) for first, end in holes if end > settled + 1):
        if dropped and first <= dropped[-1][1]:
            dropped[-1] = dropped[-1][0], max(end, dropped[-1][1])
        else:
            dropped.append((first, end))
    ends = [settled + 1, following, *(each.next for each in found), *(end for _, end in dropped)]
    with journal.lock:
        journal.segments, journal._holes, reached = [], dropped, 0
        for each in sorted(found, key=lambda each: (each.first, -each.next)):
            for first, end in dropped:
                if each.first < end and each.next > first:
                    each.next = max(first, each.first)
            if each.next > max(each.first, reached):  # else it is a part of the one before
                journal.segments.append(each)
                reached = each.next
        journal.settled, journal.next = settled, max(ends)
        journal._uncounted = settled + sum(end - first for first, end in dropped)


def _on_disk(journal: Journal) -> list[Segment]:
    if (disk := journal.disk) is None:
        return []
    found, start = [], len(journal.name) + 1
    firsts = sorted((int(name[start:].partition(".")[0]), name) for name in files_of(disk, journal.name))
    for at, (first, name) in enumerate(firsts):
        segment = Segment(name, DISK, first=first)
        if at + 1 < len(firsts):
            segment.next, segment.end = firsts[at + 1][0], disk.status(name).st_size
        else:
            _find_end(segment, disk.read(name))
        found.append(segment)
    return found


def _in_box(journal: Journal) -> list[Segment]:
    found = []
    if (box := journal.room.box) is not None:
        for name in files_of(box, journal.name):
            if first := first_of(content := box.read(name)):
                segment = Segment(name, BOX, first=first)
                segment.buffer = content
                _find_end(segment, content)
                found.append(segment)
    return found


def _find_end(segment: Segment, content: bytes) -> None:
    for part in scan(content, HEAD.size, len(content), segment.first):
        segment.next, segment.end = part.number + part.items, part.end
