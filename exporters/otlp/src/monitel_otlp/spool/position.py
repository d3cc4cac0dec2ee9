"""The file with the read position in the oldest segment. It has two slots, which are written alternately.

Each slot is 32 bytes: magic, sequence number, number of the segment, offset, part, CRC-32. One slot is always intact,
so an interrupted write loses at most one step.
"""

from __future__ import annotations

import os
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


class Position(NamedTuple):
    """A position in a segment.

    Attributes:
        offset: Start of a record or block, bytes.
        part: Number of requests of the block that were removed; 0 in segments of requests.
    """

    offset: int = 0
    part: int = 0


class PositionFile:
    """The position file of one signal.

    Args:
        signal: The signal, which is part of the name of the file.
    """

    def __init__(self, signal: str) -> None:
        self.name = f"{signal}.position"
        self._descriptor: int | None = None
        self._sequence = 0

    def read(self, folder: Folder) -> tuple[int, Position] | None:
        """Return the number of the segment and the position in it; None if there is no valid position.

        Raises:
            OSError: The file is missing, or cannot be read.
        """
        content = folder.read(self.name, 2 * _SLOT_BYTES)
        found = None
        self._sequence = 0
        for begin in (0, _SLOT_BYTES):
            slot = content[begin : begin + _SLOT_BYTES]
            if len(slot) < _SLOT_BYTES or _CHECKSUM.pack(zlib.crc32(slot[: _SLOT.size])) != slot[_SLOT.size :]:
                continue
            magic, sequence, number, offset, part = _SLOT.unpack_from(slot)
            if magic == _MAGIC and sequence >= self._sequence:
                found, self._sequence = (number, Position(offset, part)), sequence + 1
        return found

    def write(self, folder: Folder, number: int, position: Position) -> None:
        """Write a position into the slot of the older one.

        Raises:
            OSError: The write failed, or the file is a link or belongs to another user.
        """
        if self._descriptor is None:
            self._descriptor = folder.open_file(self.name, os.O_WRONLY | os.O_CREAT)
        slot = _SLOT.pack(_MAGIC, self._sequence, number, *position)
        write_at(self._descriptor, slot + _CHECKSUM.pack(zlib.crc32(slot)), self._sequence % 2 * _SLOT_BYTES)
        self._sequence += 1

    def remove(self, folder: Folder) -> None:
        """Remove the file. Called when all segments are removed."""
        self.close()
        folder.unlink(self.name)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
