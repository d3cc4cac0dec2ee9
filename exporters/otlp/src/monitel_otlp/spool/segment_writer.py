"""Writing of segments: requests are appended to the newest segment until it is full, raw segments written at once."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monitel_otlp.spool import raw_segment, request_segment
from monitel_otlp.spool.folder import write_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.spool.folder import Folder

SEGMENT_BYTES = 16 << 20
_WRITE_BYTES = 4 << 20  # per write of a raw segment: a busy thread may take the GIL for 5 ms after each write
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(slots=True, eq=False)
class Segment:
    """One segment file.

    Attributes:
        name: Name of the file.
        number: Number of the segment.
        size: Size in bytes, without the remains of a failed write.
        own: True if this process has written it.
        items: Items of this process that are still in it.
    """

    name: str
    number: int
    size: int = 0
    own: bool = False
    items: int = 0


class SegmentWriter:
    """Writes the segments of one signal.

    Args:
        signal: The signal, which is part of the names of the files.

    Attributes:
        number: Number of the newest segment.
    """

    def __init__(self, signal: str) -> None:
        self.number = 0
        self._signal = signal
        self._segment: Segment | None = None
        self._descriptor = -1

    def append(self, folder: Folder, request: FrozenRequest) -> Segment:
        """Write a request to the open segment, or to a new segment.

        Returns:
            The segment.

        Raises:
            OSError: The write failed. No new segment remains.
        """
        record = request_segment.pack(request)
        segment = self._segment
        if segment is not None and segment.size + len(record) <= SEGMENT_BYTES:
            try:
                self._write(segment, record, request.items)
            except OSError as error:
                if error.errno not in _FULL:
                    self.close()  # a new segment may work
                raise
            return segment
        self.close()
        segment = self.create(folder, "spool")
        try:
            self._write(segment, request_segment.MAGIC + record, request.items)
        except BaseException:
            self.close()
            self.discard(folder, segment)
            raise
        return segment

    def write_blocks(
        self, segment: Segment, header: Any, blocks: Iterable[tuple[bytes, int]], room: Callable[[int], bool]
    ) -> None:
        """Write a raw segment.

        Args:
            segment: Result of :meth:`create`.
            header: Plain values.
            blocks: Encoded blocks with their numbers of items.
            room: Called before each write with the new size of the segment. If it returns False, the blocks of this
                write are omitted.

        Raises:
            OSError: A write failed. Complete blocks are kept.
        """
        waiting_bytes = 0
        waiting = [(raw_segment.pack_header(header), 0)]
        for content, items in blocks:
            waiting.append((raw_segment.pack_block(content, items), items))
            waiting_bytes += len(content)
            if waiting_bytes >= _WRITE_BYTES:
                self._write_together(segment, waiting, room)
                waiting, waiting_bytes = [], 0
        self._write_together(segment, waiting, room)

    def _write_together(self, segment: Segment, blocks: list[tuple[bytes, int]], room: Callable[[int], bool]) -> None:
        """Write blocks with a single write; if it fails, one by one until a write fails."""
        content, items = b"".join(block for block, _ in blocks), sum(items for _, items in blocks)
        if not room(segment.size + len(content)):
            return
        try:
            self._write(segment, content, items)
        except OSError:
            for block, of_block in blocks:
                self._write(segment, block, of_block)

    def create(self, folder: Folder, kind: str) -> Segment:
        """Make the file of a new segment, and keep it open.

        Raises:
            OSError: The file cannot be made.
        """
        while True:
            name = f"{self._signal}-{self.number + 1:06}.{kind}"
            try:
                self._descriptor = folder.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                self.number += 1
                continue
            self.number += 1
            self._segment = Segment(name, self.number, own=True)
            return self._segment

    def discard(self, folder: Folder, segment: Segment) -> None:
        """Undo :meth:`create`, after :meth:`close`."""
        folder.unlink(segment.name)
        self.number -= 1

    def is_gone(self) -> bool:
        """Return True if the file of the open segment was removed, so that writes to it are lost."""
        if self._segment is None:
            return False
        try:
            return os.fstat(self._descriptor).st_nlink == 0
        except OSError:  # a stale handle of a network file system
            return True

    def close(self) -> None:
        """Close the open segment. The next request is written to a new segment. Idempotent."""
        if self._segment is not None:
            self._segment = None
            with suppress(OSError):
                os.close(self._descriptor)

    def _write(self, segment: Segment, content: bytes, items: int) -> None:
        """Write at the end of the open segment.

        Raises:
            OSError: The write failed. A partial write was truncated, or will be overwritten.
        """
        try:
            write_at(self._descriptor, content, segment.size)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._descriptor, segment.size)
            raise
        segment.size += len(content)
        segment.items += items
