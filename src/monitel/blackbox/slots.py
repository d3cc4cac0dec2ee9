"""A small file with two slots, which are written in turn: whenever the process is killed, one of them is whole."""

from __future__ import annotations

import os
import struct
import zlib
from typing import TYPE_CHECKING, Any

from monitel.blackbox.folder import write_at
from monitel.blackbox.record import MASK, load
from monitel.process.mapped_files import map_file

if TYPE_CHECKING:
    from monitel.blackbox.folder import Folder

_SLOT = struct.Struct("<4sQII")  # magic, number of the version, length, CRC-32
_MAGIC = b"mtsl"
_SIZE = 4096
_READINGS = 5  # the newest version may be in a slot that is written meanwhile; after a kill it stays torn


class SlotFile:
    """Writes a plain value again and again. One thread at a time may write.

    Args:
        folder: The folder.
        name: Name of the file.
        mapped: The folder is in memory: the file is written through a mapping, without a system call.

    Attributes:
        size: Bytes of a slot. A larger value makes a new file.
    """

    def __init__(self, folder: Folder, name: str, *, mapped: bool = False) -> None:
        self._folder, self._name, self._mapped, self.size = folder, name, mapped, _SIZE
        self._map: Any = None
        self._number = -1
        self._content: bytes | None = None

    def write(self, content: bytes) -> None:
        """Write a version, unless it is equal to the last one.

        Args:
            content: The value in marshal format.

        Raises:
            OSError: There is no room. The previous version stays valid.
        """
        if content == self._content:
            return
        if self._number < 0:
            self._number = read_slots(self._folder, self._name)[0]
        number = self._number + 1
        slot = _SLOT.pack(_MAGIC, number, len(content), zlib.crc32(content, number & MASK)) + content
        if self._map is not None and len(slot) <= self.size:
            at = number % 2 * self.size
            self._map[at : at + len(slot)] = slot
        else:
            self._replace(slot, number)
        self._number, self._content = number, content

    def _replace(self, slot: bytes, number: int) -> None:
        """Make a file with reserved space for two slots, and give it the name."""
        size = max(self.size, len(slot) + len(slot) // 4)
        new = f"{self._name}.new"
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
        self.size, self._map = size, mapping


def read_slots(folder: Folder, name: str) -> tuple[int, Any]:
    """Return the number and the value of the newest whole version, of a process that runs or has ended.

    Returns:
        (0, None) if there is none.

    Raises:
        OSError: The file is a link, or belongs to another user.
        ValueError: The checksum of the newest version is right, and it is not a value.
    """
    newest, best = 0, b""
    for _ in range(_READINGS):
        try:
            content = folder.read(name)
        except FileNotFoundError:
            return 0, None
        is_torn, newest = False, 0
        for at in (0, len(content) // 2):
            if len(content) - at < _SLOT.size:
                continue
            magic, number, length, crc = _SLOT.unpack_from(content, at)
            body = content[at + _SLOT.size : at + _SLOT.size + length]
            is_whole = magic == _MAGIC and len(body) == length and zlib.crc32(body, number & MASK) == crc
            is_torn = is_torn or (magic == _MAGIC and not is_whole)
            if is_whole and number > newest:
                newest, best = number, body
        if not is_torn:
            break
    return newest, load(best) if newest else None
