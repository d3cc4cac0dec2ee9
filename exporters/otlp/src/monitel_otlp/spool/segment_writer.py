"""Writing of segments: requests are appended to the newest one until it is full, raw segments are written whole."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monitel_otlp.spool import raw, records
from monitel_otlp.spool.folder import write_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.spool.folder import Folder

SEGMENT_BYTES = 16 << 20
_WRITE_BYTES = 4 << 20  # of a raw segment at once: a busy thread may take the GIL for 5 ms after each write
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(slots=True, eq=False)
class Segment:
    """One file.

    Attributes:
        name: Name of the file.
        number: Its place in the row.
        size: Bytes, without what a failed write has left behind.
        own: True if this process has written it.
        items: Items of this process that are still there.
    """

    name: str
    number: int
    size: int = 0
    own: bool = False
    items: int = 0


class SegmentWriter:
    """Writes the segments of one signal.

    Args:
        signal: Signal, which names the files.

    Attributes:
        number: Number of the newest segment.
    """

    def __init__(self, signal: str) -> None:
        self.number = 0
        self._signal = signal
        self._segment: Segment | None = None
        self._descriptor = -1

    def append(self, folder: Folder, request: FrozenRequest) -> Segment:
        """Write a request to the open segment, or to a new one.

        Returns:
            The segment.

        Raises:
            OSError: The disk did not take it; no new segment is left behind.
        """
        record = records.pack(request)
        segment = self._segment
        if segment is not None and segment.size + len(record) <= SEGMENT_BYTES:
            try:
                self._write(segment, record, request.items)
            except OSError as error:
                if error.errno not in _FULL:
                    self.close()  # a new segment may do
                raise
            return segment
        self.close()
        segment = self.create(folder, "spool")
        try:
            self._write(segment, records.MAGIC + record, request.items)
        except BaseException:
            self.close()
            self.discard(folder, segment)
            raise
        return segment

    def write_blocks(
        self, segment: Segment, header: Any, blocks: Iterable[tuple[bytes, int]], room: Callable[[int], bool]
    ) -> None:
        """Write all of a raw segment.

        Args:
            segment: Result of :meth:`create`.
            header: Plain values.
            blocks: Encoded blocks with their numbers of items.
            room: Called before each write, with the size that the segment will have; where it returns False, these
                blocks are not written.

        Raises:
            OSError: The disk did not take all of it; blocks that were written whole are kept.
        """
        waiting_bytes = 0
        waiting = [(raw.pack_header(header), 0)]
        for content, items in blocks:
            waiting.append((raw.pack_block(content, items), items))
            waiting_bytes += len(content)
            if waiting_bytes >= _WRITE_BYTES:
                self._write_together(segment, waiting, room)
                waiting, waiting_bytes = [], 0
        self._write_together(segment, waiting, room)

    def _write_together(self, segment: Segment, blocks: list[tuple[bytes, int]], room: Callable[[int], bool]) -> None:
        """Write blocks at once; where the disk does not take that, one by one until it takes no more."""
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
            OSError: The folder does not take it.
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
        """Return whether the open segment was removed, so that what is written to it is lost."""
        if self._segment is None:
            return False
        try:
            return os.fstat(self._descriptor).st_nlink == 0
        except OSError:  # a stale handle of a network file system
            return True

    def close(self) -> None:
        """Close the open segment; the next request goes to a new one. Idempotent."""
        if self._segment is not None:
            self._segment = None
            with suppress(OSError):
                os.close(self._descriptor)

    def _write(self, segment: Segment, content: bytes, items: int) -> None:
        """Write at the end of the open segment.

        Raises:
            OSError: The disk did not take it; what it took was cut off, or will be written over.
        """
        try:
            write_at(self._descriptor, content, segment.size)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._descriptor, segment.size)
            raise
        segment.size += len(content)
        segment.items += items
