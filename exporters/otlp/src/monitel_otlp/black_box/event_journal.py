"""The journal of events: each event is in it before ``emit()`` returns.

It has two files, which are filled in turn. A file is emptied when all its events are in parts or requests of a cut. A
file consists of its generation and of records: length, checksum (which includes the generation, so that records of an
earlier one are not read), number, and the plain values in ``marshal`` format.
"""

from __future__ import annotations

import marshal
import struct
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any

from monitel.os_threads import RLock
from monitel_otlp.boxes.layout import LARGEST_FILE, MARSHAL, decode
from monitel_otlp.boxes.room import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel_otlp.black_box.box import OwnFile

_GENERATION = struct.Struct("<Q")
EMPTY_JOURNAL = _GENERATION.size  #: Size of a file without events, bytes.
_RECORD = struct.Struct("<IIQ")  # bytes, checksum, number
_GROWTH = 1 << 14  # bytes that a file claims at a time
_FULL = 1 << 17  # bytes after which the encoder is woken, so that the file can be emptied
_MOST_BEYOND = 1000  # events that are done while an earlier one is not: an exception has kept that from the queue
_ENOUGH = 1 << 12  # bytes in a file before the other one is used


class EventJournal:
    """Writes events, in any thread.

    Args:
        files: The two files.
        claim: Called with a number of bytes; returns False if there is no room.
        wake: Called when a file should be emptied soon.

    Attributes:
        left_out: Number of events for which there was no room.
    """

    def __init__(
        self,
        files: tuple[OwnFile, OwnFile],
        claim: Callable[[int], bool],
        wake: Callable[[], object],
    ) -> None:
        self.left_out = 0
        self._files = [_File(file) for file in files]
        self._claim = claim
        self._wake = wake
        self._lock = RLock()  # a signal handler may emit inside
        self._number = 0
        self._done: deque[int] = deque()  # from any thread
        self._below = 1
        self._beyond: set[int] = set()
        self._current = self._files[0]
        self._current.begin(1)
        self._generation = 1
        self._begun: tuple[_File, bytes, int, int] | None = None  # file, record, offset, number

    def write(self, plain: Any) -> int:
        """Write an event, and return its number; 0 if there is no room, or if a signal handler has stopped a write.

        Raises:
            OSError: The write failed.
            ValueError: The event contains other objects than plain values.
        """
        content = marshal.dumps(plain, MARSHAL)
        if not self._lock.acquire(timeout=PATIENCE):
            self.left_out += 1
            return 0
        try:
            self._finish()
            while True:
                file, offset, number = self._current, self._current.end, self._number + 1
                end = offset + _RECORD.size + len(content)
                if end > file.claimed:
                    grown = max(end - file.claimed, _GROWTH)
                    if end > LARGEST_FILE or not self._claim(grown):
                        self.left_out += 1
                        self._wake()
                        return 0
                    file.claimed += grown
                begun = file, _record(file.generation, number, content), offset, number
                if file is self._current and file.end == offset and self._number == number - 1:
                    self._begun = begun
                    break  # else an event of a signal handler has been written to this place
            self._finish()
        finally:
            self._lock.release()
        if offset < _FULL <= end:
            self._wake()
        return number

    def _finish(self) -> None:
        """Write the record that is begun. A signal handler writes that of the event that it interrupts, before its own.

        Raises:
            OSError: The write failed.
        """
        if (begun := self._begun) is None:
            return
        file, record, offset, number = begun
        try:
            file.content.write(record, offset)  # by the interrupted write once more: the same bytes
        except OSError:
            self._begun = None
            raise
        if self._begun is begun:
            file.end, file.last, self._number, self._begun = offset + len(record), number, number, None

    def done(self, number: int) -> None:
        """Note that an event is in a part or a request of the next cut, or dropped. Takes no lock."""
        self._done.append(number)

    def progress(self) -> tuple[int, list[int]]:
        """Return the number below which all events are done, and the further ones that are; for a cut."""
        while self._done:
            self._beyond.add(self._done.popleft())
        if len(self._beyond) > _MOST_BEYOND:
            self._below = min(self._beyond)
        while self._below in self._beyond:
            self._beyond.discard(self._below)
            self._below += 1
        return self._below, sorted(self._beyond)

    def committed(self) -> None:
        """Empty the other file, and use it, if all its events are done according to a cut that is written."""
        if not self._lock.acquire(blocking=False):
            return  # an event is being written: the next cut empties the file
        try:
            other = self._files[self._current is self._files[0]]
            if self._current.end < _ENOUGH or other.last >= self._below:
                return
            self._generation += 1
            other.begin(self._generation)
            self._current = other
        finally:
            self._lock.release()


class _File:
    def __init__(self, content: OwnFile) -> None:
        self.content = content
        self.generation = 0
        self.end = self.claimed = 0
        self.last = 0  # number of the last event

    def begin(self, generation: int) -> None:
        self.content.write(_GENERATION.pack(generation), 0)
        self.generation, self.end = generation, _GENERATION.size
        self.last = 0


def _record(generation: int, number: int, content: bytes) -> bytes:
    return _RECORD.pack(len(content), _checksum(generation, number, content), number) + content


def _checksum(generation: int, number: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(_GENERATION.pack(generation) + _GENERATION.pack(number)))


def read_journal(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and plain values of each event in a file of the journal, up to the end or the first damage."""
    if len(content) < _GENERATION.size:
        return
    (generation,) = _GENERATION.unpack_from(content)
    offset = _GENERATION.size
    while offset + _RECORD.size <= len(content):
        length, checksum, number = _RECORD.unpack_from(content, offset)
        begin = offset + _RECORD.size
        event = content[begin : begin + length]
        if not length or len(event) < length or _checksum(generation, number, event) != checksum:
            return
        try:
            plain = decode(event)
        except ValueError:
            return
        yield number, plain
        offset = begin + length
