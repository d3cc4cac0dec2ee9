"""The form of a journal's files: a head, and records whose checksums depend on their place.

    file    magic, number of the first item (u64), records, zeros
    record  length and CRC-32 of the body (u32 each), body
    body    kind (u16), items (u32), value in marshal format 2

Items are numbered from 1 in each journal. The checksum is seeded with the number of the record's first item, so a
record counts at its place only: files may be moved, torn at the end, or there twice.
"""

from __future__ import annotations

import marshal
import re
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monitel.blackbox.folder import Folder

#: The layout of a record. Its files beside the journals: the snapshot, under two names, the page, what is settled, and
#: the running totals.
VERSION = 1
STATE, ENDED, PAGE, POSITION, TOTALS = "state", "ended", "page", "position", "totals"
SENDING = "sending"  # in the position: `Journal.sending` of the metrics

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
FRAME = struct.Struct("<II")  # of a record: length and CRC-32 of the body
BODY = struct.Struct("<HI")  # kind, items
OVERHEAD = FRAME.size + BODY.size
MASK = 0xFFFFFFFF


class Item(NamedTuple):
    """A record, or the part of it that is not settled.

    Attributes:
        number: Number of its first item.
        items: Number of its items.
        kind: ``EVENT``, ``WINDOW``, ``NUMBERS``, ``RANGES``, ``READING``, ``SPANS`` or ``REQUEST``.
        value: A plain value; if there are several items, a list with an element for each.
    """

    number: int
    items: int
    kind: int
    value: Any

    @property
    def last(self) -> int:
        """Number of its last item."""
        return self.number + self.items - 1

    def split(self, items: int) -> tuple[Item, Item]:
        """Return the first items and the others."""
        rest = Item(self.number + items, self.items - items, self.kind, self.value[items:])
        return Item(self.number, items, self.kind, self.value[:items]), rest


class Part(NamedTuple):
    """The place of a record in a file."""

    number: int
    items: int
    kind: int
    begin: int  # of the value
    end: int


def scan(buffer: Any, begin: int, end: int, number: int) -> Iterator[Part]:
    """Yield the whole records between two offsets, up to the first one that is damaged or missing.

    Args:
        buffer: Bytes of a file.
        begin: Offset of a record.
        end: Offset at which the records end at the latest.
        number: Number of the first item of the record at ``begin``.
    """
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
    """Return the value in marshal format of a record whose checksum is right.

    Raises:
        ValueError: There is none.
    """
    try:
        return marshal.loads(content)  # noqa: S302  only this user can write the files, and the checksum is right
    except Exception as error:
        raise ValueError(f"the checksum is right, and the content is not a value: {error}") from error


def first_of(content: bytes) -> int:
    """Return the number of the first item of a file; 0 if the bytes are not those of a journal's file."""
    return int(HEAD.unpack_from(content)[1]) if len(content) >= HEAD.size and content.startswith(MAGIC) else 0


def files_of(folder: Folder, journal: str) -> list[str]:
    """Return the names of the files of a journal."""
    ends = "log|end" if folder.has(ENDED) else "log"
    return [name for name in folder.names() if re.fullmatch(rf"{journal}-\d+\.({ends})", name)]


def pack_file(first: int, records: Iterable[tuple[int, Any, int]]) -> bytes:
    """Return a file.

    Args:
        first: Number of its first item.
        records: Kind, value and number of items of each record.
    """
    content, number = bytearray(HEAD.pack(MAGIC, first)), first
    for kind, value, items in records:
        body = BODY.pack(kind, items) + marshal.dumps(value, 2)
        content += FRAME.pack(len(body), zlib.crc32(body, number & MASK)) + body
        number += items
    return bytes(content)
