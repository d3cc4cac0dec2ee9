"""The definitions of a process, an append-only file: records and the snapshot refer to them by number."""

from __future__ import annotations

import marshal
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from monitel.blackbox.record import FRAME, load
from monitel.process.os_threads import RLock

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from monitel.blackbox.folder import Folder

FILE = "names"


class Names:
    """Numbers plain values from 0 on; number 0 describes the process. Thread-safe, and safe in signal handlers.

    Args:
        identity: The value with number 0.

    Attributes:
        folder: The box; None without one.
        size: Bytes of all definitions.
    """

    def __init__(self, identity: Any) -> None:
        self.folder: Folder | None = None
        self.size = 0
        self._lock = RLock()
        self._numbers: dict[Hashable, int] = {}
        self._records: list[bytes] = []
        self._written = WeakKeyDictionary[Any, tuple[int, int]]()  # records and bytes in the file of a folder
        self.define([(None, identity)])

    def define(self, pairs: Iterable[tuple[Hashable, Any]]) -> list[int]:
        """Return the numbers of definitions, which one write has put into the file of the box, if there is room.

        Args:
            pairs: For each of them the key by which it is found later, and a plain value, used when the key is new.
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
            number = len(self._records)
            record = FRAME.pack(len(body), zlib.crc32(body, number)) + body
            if len(self._records) == number:  # else a signal handler has defined something
                self._records.append(record)
                self.size += len(record)
                return number

    def copy(self, folder: Folder) -> None:
        """Write the definitions that are missing in the file of a folder.

        Raises:
            OSError: They cannot be written.
        """
        with self._lock:
            records, size = self._written.get(folder, (0, 0))
            content = b"".join(self._records[records:])
            count = len(self._records)
        if count > records:
            folder.write(FILE, content, size)  # without the lock: a disk may hang. Another thread writes the same bytes
            with self._lock:
                self._written[folder] = max(self._written.get(folder, (0, 0)), (count, size + len(content)))

    def renew(self) -> None:
        """Forget the lock, which another thread may hold, and the box of the parent. In a forked child."""
        self._lock, self.folder = RLock(), None


def read_names(*folders: Folder | None) -> tuple[list[Any], bytes]:
    """Return the definitions in the folder that has most of them, and their bytes, to be copied.

    Raises:
        OSError: A file is a link, or belongs to another user.
        ValueError: A checksum is right, and the definition is not a value.
    """
    best: tuple[list[Any], bytes] = ([], b"")
    for folder in folders:
        content, found, at = b"", list[Any](), 0
        with suppress(FileNotFoundError):
            content = b"" if folder is None else folder.read(FILE)
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
