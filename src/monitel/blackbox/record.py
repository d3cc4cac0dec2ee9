"""The form of the files of a record: journals, slots and names. All of them are read while they are written.

    journal  magic, number of the first item (u64), entries, zeros
    entry    length and CRC-32 of the body (u32 each), body
    body     kind (u16), items (u32), value in marshal format 2
    slots    two versions of a value, written in turn: whenever the process is killed, one of them is whole
    names    definitions, appended, to which entries and the snapshot refer by number

Items are numbered from 1 in each journal. The checksum is seeded with the number of the entry's first item, so an
entry counts at its place only: files may be moved, torn at the end, or there twice.
"""

from __future__ import annotations

import marshal
import os
import re
import struct
import zlib
from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from monitel.blackbox.folder import Folder, map_file, write_at
from monitel.process.os_threads import RLock

if TYPE_CHECKING:
    from monitel.blackbox.journal import Journal

#: The version of these forms, and the files beside the journals: the snapshot, under two names, the page, what is
#: settled, the running totals, the definitions, the stacks of a crash, those of a process that runs, and the request
#: for these.
VERSION = 1
STATE, ENDED, POSITION, TOTALS, NAMES = "state", "ended", "position", "totals", "names"
STACKS, STACKS_NOW, STACKS_WANTED = "stacks", "stacks-now", "stacks-wanted"
SENDING = "sending"  # in the position: `Journal.sending` of the metrics
CORRUPT = ".corrupt"  # suffix of what is set aside

#: The signals, in the order in which they are delivered: the journals whose items count.
SIGNALS = ("metrics", "logs", "traces")
#: Also those of what monitel makes itself, which is in no account: readings of counters, waits and metrics of the
#: pipeline; spans of steps and folded spans.
JOURNALS = (*SIGNALS, "readings", "steps")
#: The journal of the requests that a backend has rejected: nobody sends them unless somebody asks for it.
REJECTED = "rejected"

EVENT, WINDOW, NUMBERS, RANGES, READING, SPANS, REQUEST = range(1, 8)

MAGIC = b"mtjrn\x00\x00\x01"
HEAD = struct.Struct("<8sQ")  # of a file: magic, number of the first item
FRAME = struct.Struct("<II")  # of an entry: length and CRC-32 of the body
BODY = struct.Struct("<HI")  # kind, items
OVERHEAD = FRAME.size + BODY.size
MASK = 0xFFFFFFFF

_SLOT = struct.Struct("<4sQII")  # magic, number of the version, length, CRC-32
_SLOT_MAGIC = b"mtsl"
_SLOT_BYTES = 4096


class Item(NamedTuple):
    """An entry, or the part of it that is not settled: the number of its first item, and of how many it consists.

    If there are several items, the value is a list with an element for each.
    """

    number: int
    items: int
    kind: int
    value: Any

    @property
    def last(self) -> int:
        return self.number + self.items - 1

    def split(self, items: int) -> tuple[Item, Item]:
        rest = Item(self.number + items, self.items - items, self.kind, self.value[items:])
        return Item(self.number, items, self.kind, self.value[:items]), rest


class Part(NamedTuple):
    """The place of an entry in a file."""

    number: int
    items: int
    kind: int
    begin: int  # of the value
    end: int


def scan(buffer: Any, begin: int, end: int, number: int) -> Iterator[Part]:
    """Yield the whole entries from offset ``begin``, with the first item ``number``, to the first damaged one."""
    while begin + OVERHEAD <= end:
        length, crc = FRAME.unpack_from(buffer, begin)
        stop = begin + FRAME.size + length
        if length < BODY.size or stop > end:
            return
        body = buffer[begin + FRAME.size : stop]
        if zlib.crc32(body, number & MASK) != crc:
            return
        kind, items = BODY.unpack_from(body)
        yield Part(number, items, kind, begin + OVERHEAD, stop)
        number, begin = number + items, stop


def load(content: Any) -> Any:
    """Return a value whose checksum is right; a ValueError is raised if it is not a value."""
    try:
        return marshal.loads(content)  # noqa: S302  only this user can write the files, and the checksum is right
    except Exception as error:
        raise ValueError(f"the checksum is right, and the content is not a value: {error}") from error


def first_of(content: bytes) -> int:
    """Return the number of the first item of a file; 0 if the bytes are not those of a journal's file."""
    return int(HEAD.unpack_from(content)[1]) if len(content) >= HEAD.size and content.startswith(MAGIC) else 0


def files_of(folder: Folder, journal: str) -> list[str]:
    ends = "log|end" if folder.has(ENDED) else "log"
    return [name for name in folder.names() if re.fullmatch(rf"{journal}-\d+\.({ends})", name)]


def mark_ended(folder: Folder) -> None:
    """Let nothing be added to a record any more, whether it has a snapshot or had no room for one."""
    if folder.has(STATE):
        folder.rename(STATE, ENDED)
    else:
        folder.write(ENDED, b"", 0)


def pack_file(first: int, entries: Iterable[tuple[int, Any, int]]) -> bytes:
    """Return a file with entries, each as kind, value and number of items, from an item on."""
    content, number = bytearray(HEAD.pack(MAGIC, first)), first
    for kind, value, items in entries:
        body = BODY.pack(kind, items) + marshal.dumps(value, 2)
        content += FRAME.pack(len(body), zlib.crc32(body, number & MASK)) + body
        number += items
    return bytes(content)


# ---- slots


class SlotFile:
    """Writes a value in marshal format again and again, in one thread at a time; in memory (``mapped``) as memory.

    A value that is larger than a slot makes a new file.
    """

    def __init__(self, folder: Folder, name: str, *, mapped: bool = False) -> None:
        self._folder, self._name, self._mapped, self._size = folder, name, mapped, _SLOT_BYTES
        self._map: Any = None
        self._number = -1
        self._content: bytes | None = None

    def write(self, content: bytes) -> None:
        """Write a value, unless it is equal to the last one. If there is no room, the previous version stays valid."""
        if content == self._content:
            return
        if self._number < 0:
            self._number = read_slots(self._folder, self._name)[0]
        number = self._number + 1
        slot = _SLOT.pack(_SLOT_MAGIC, number, len(content), zlib.crc32(content, number & MASK)) + content
        if self._map is not None and len(slot) <= self._size:
            at = number % 2 * self._size
            self._map[at : at + len(slot)] = slot
        else:
            self._replace(slot, number)
        self._number, self._content = number, content

    def _replace(self, slot: bytes, number: int) -> None:
        """Make a file with reserved space for two slots, and give it the name."""
        size, new = max(self._size, len(slot) + len(slot) // 4), f"{self._name}.new"
        self._folder.unlink(new)
        descriptor = self._folder.open_file(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(descriptor, 0, 2 * size)
            write_at(descriptor, slot, number % 2 * size)
            mapping = map_file(descriptor, 2 * size) if self._mapped else None
            self._folder.rename(new, self._name)
        except BaseException:
            self._folder.unlink(new)
            raise
        finally:
            os.close(descriptor)
        self._size, self._map = size, mapping


def read_slots(folder: Folder, name: str) -> tuple[int, Any]:
    """Return the number and the value of the newest whole version; (0, None) if there is none."""
    newest, best, content = 0, b"", b""
    with suppress(FileNotFoundError):
        content = folder.read(name)
    for at in (0, len(content) // 2):
        if len(content) - at >= _SLOT.size:
            magic, number, length, crc = _SLOT.unpack_from(content, at)
            body = content[at + _SLOT.size : at + _SLOT.size + length]
            is_whole = magic == _SLOT_MAGIC and len(body) == length and zlib.crc32(body, number & MASK) == crc
            if is_whole and number > newest:
                newest, best = number, body
    return newest, load(best) if newest else None


# ---- what is settled


class Settled:
    """The files ``position``, what is settled, and ``totals``, the exporter's totals of that, in one folder.

    Without a :class:`monitel.blackbox.journal.Fold` the totals are the ``known`` ones, if there are any.
    """

    def __init__(
        self,
        folder: Folder,
        journals: dict[str, Journal],
        known: tuple[int, Any] | None = None,
        *,
        mapped: bool = False,
    ) -> None:
        self._position, self._totals = (SlotFile(folder, name, mapped=mapped) for name in (POSITION, TOTALS))
        self._journals, self._known, self._mapped = journals, known, mapped
        self._lock = RLock()

    def note_position(self) -> None:
        with self._lock:
            position = {name: journal.settled for name, journal in self._journals.items()}
            self._position.write(marshal.dumps({**position, SENDING: self._journals["metrics"].sending}, 2))

    def note_totals(self) -> None:
        """Write the totals, of the last item that is in them, and the items that were dropped."""
        metrics = self._journals["metrics"]
        with metrics.lock:
            plain = self._known if metrics.fold is None else metrics.fold.plain()
            if plain is None:
                return
            holes = {name: journal.holes() for name, journal in self._journals.items()}
            content = marshal.dumps((*plain, holes), 2)
            if self._mapped:  # threads remove files at the same time, and the last state must be the newest one
                self._totals.write(content)
        if not self._mapped:  # a disk may hang; only one thread writes there
            self._totals.write(content)


# ---- names


class Names:
    """Numbers plain values from 0 on, and has them written into the box. Thread-safe, and safe in signal handlers.

    The value with number 0 describes the process.
    """

    def __init__(self, identity: Any) -> None:
        self.folder: Folder | None = None
        self._lock = RLock()
        self._numbers: dict[Hashable, int] = {}
        self._entries: list[bytes] = []
        self._written = WeakKeyDictionary[Any, tuple[int, int]]()  # entries and bytes in the file of a folder
        self.define([(None, identity)])

    def define(self, pairs: Iterable[tuple[Hashable, Any]]) -> list[int]:
        """Return the numbers of definitions, which one write has put into the file of the box, if there is room.

        Each has the key by which it is found later, and a plain value, which counts if the key is new.
        """
        found, new = [], False
        with self._lock:
            for key, value in pairs:
                if (number := self._numbers.get(key)) is None:
                    number, new = self._add(marshal.dumps(value, 2)), True
                    self._numbers[key] = number
                found.append(number)
            if new and self.folder is not None:
                with suppress(OSError):  # the next definition, or the next copy, writes it
                    self.copy(self.folder)
        return found

    def _add(self, body: bytes) -> int:
        while True:
            number = len(self._entries)
            entry = FRAME.pack(len(body), zlib.crc32(body, number)) + body
            if len(self._entries) == number:  # else a signal handler has defined something
                self._entries.append(entry)
                return number

    def copy(self, folder: Folder) -> None:
        """Write the definitions that are missing in the file of a folder, which may raise an OSError."""
        with self._lock:
            entries, size = self._written.get(folder, (0, 0))
            content = b"".join(self._entries[entries:])
            count = len(self._entries)
        if count > entries:
            folder.write(NAMES, content, size)  # without the lock: a disk may hang. Another thread writes the same
            with self._lock:
                self._written[folder] = max(self._written.get(folder, (0, 0)), (count, size + len(content)))

    def renew(self) -> None:
        """Forget the lock, which another thread may hold, and the box of the parent. In a forked child."""
        self._lock, self.folder = RLock(), None


def read_names(*folders: Folder | None) -> tuple[list[Any], bytes]:
    """Return the definitions in the folder that has most of them, and their bytes, to be copied."""
    best: tuple[list[Any], bytes] = ([], b"")
    for folder in folders:
        content = b""
        with suppress(FileNotFoundError):
            content = b"" if folder is None else folder.read(NAMES)
        found, at = list[Any](), 0
        while at + FRAME.size <= len(content):
            length, crc = FRAME.unpack_from(content, at)
            body = content[at + FRAME.size : at + FRAME.size + length]
            if len(body) < length or zlib.crc32(body, len(found)) != crc:
                break
            found.append(load(body))
            at += FRAME.size + length
        if len(found) > len(best[0]):
            best = found, content[:at]
    return best
