"""The place that reading has reached in the oldest segment, in a file of two slots that are written in turn.

Each slot is 32 bytes: magic, sequence number, number of the segment, offset, part, CRC-32. One slot is always whole, so
that a write that is cut off costs one step at most.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from monitel_otlp.spool.folder import write_at

if TYPE_CHECKING:
    from monitel_otlp.spool.folder import Folder

_SLOT = struct.Struct("<4sQIQI")
_CHECKSUM = struct.Struct("<I")
_SLOT_BYTES = _SLOT.size + _CHECKSUM.size
_MAGIC = b"mtp\x02"
_FORMER = re.compile(rb"\s*(\d{1,9})\s+(\d{1,18})\s*")  # segment and offset as text, of version 0.1


class Place(NamedTuple):
    """A place in a segment.

    Attributes:
        offset: Where a record or block begins, bytes.
        part: Requests of that block that were removed; 0 in segments of requests.
    """

    offset: int = 0
    part: int = 0


class Position:
    """The position file of one signal.

    Args:
        signal: Signal, which names the file.
    """

    def __init__(self, signal: str) -> None:
        self.name = f"{signal}.position"
        self._descriptor: int | None = None
        self._sequence = 0

    def read(self, folder: Folder) -> tuple[int, Place] | None:
        """Return the segment's number and the place in it; None if there is no valid position.

        Raises:
            OSError: The file cannot be read, a missing one included.
        """
        content = folder.read(self.name, 2 * _SLOT_BYTES)
        if former := _FORMER.fullmatch(content):
            return int(former[1]), Place(int(former[2]))
        found = None
        self._sequence = 0
        for begin in (0, _SLOT_BYTES):
            slot = content[begin : begin + _SLOT_BYTES]
            if len(slot) < _SLOT_BYTES or _CHECKSUM.pack(zlib.crc32(slot[: _SLOT.size])) != slot[_SLOT.size :]:
                continue
            magic, sequence, number, offset, part = _SLOT.unpack_from(slot)
            if magic == _MAGIC and sequence >= self._sequence:
                found, self._sequence = (number, Place(offset, part)), sequence + 1
        return found

    def write(self, folder: Folder, number: int, place: Place) -> None:
        """Write a position over the older of the two.

        Raises:
            OSError: The disk does not take it, or the file is a link or somebody else's.
        """
        if self._descriptor is None:
            self._descriptor = folder.open_file(self.name, os.O_WRONLY | os.O_CREAT)
        slot = _SLOT.pack(_MAGIC, self._sequence, number, *place)
        write_at(self._descriptor, slot + _CHECKSUM.pack(zlib.crc32(slot)), self._sequence % 2 * _SLOT_BYTES)
        self._sequence += 1

    def remove(self, folder: Folder) -> None:
        """Remove the file, when nothing is left to read."""
        self.close()
        folder.unlink(self.name)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
