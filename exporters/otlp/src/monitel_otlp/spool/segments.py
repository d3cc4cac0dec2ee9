"""The queue of segment files of one signal: writes go to the newest segment, reads come from the oldest one.

The files are numbered together: ``logs-000001.spool`` holds finished requests, ``logs-000002.raw`` holds raw items (see
:mod:`monitel_otlp.spool.raw_segment`). ``logs.position`` holds the read position in the oldest segment. Unreadable data
is skipped and counted, and a warning is logged once. Reading never raises.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from monitel_otlp.spool.position import Position, PositionFile
from monitel_otlp.spool.raw_segment import RawReader
from monitel_otlp.spool.request_segment import NotRecognisedError, RecordReader
from monitel_otlp.spool.segment_writer import Segment, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.spool.folder import Folder
    from monitel_otlp.spool.raw_segment import MakeDecoder
    from monitel_otlp.spool.request_segment import Report

_log = logging.getLogger("monitel.otlp")


class Segments:
    """The requests of one signal in a folder.

    Args:
        signal: The signal of the requests.
        decoders: Returns the decoders of raw segments.

    Attributes:
        lost: Lost items of this process, by reason.
        problems: Number of segments, blocks and records that could not be read.
    """

    def __init__(self, signal: str, decoders: Callable[[], Mapping[str, MakeDecoder]]) -> None:
        self.signal = signal
        self.lost: Counter[str] = Counter()
        self.problems = 0
        self._decoders = decoders
        self._folder: Folder | None = None
        self._segments: list[Segment] = []
        self._writer = SegmentWriter(signal)
        self._reader: RecordReader | RawReader | None = None  # reads the oldest segment
        self._position = Position()  # of the oldest request, in the oldest segment
        self._position_file = PositionFile(signal)
        self._position_warned = False
        self._head: FrozenRequest | None = None  # the oldest request, after it was read
        self._head_is_detached = False  # its segment was dropped

    @property
    def size_bytes(self) -> int:
        """Size of the data that was not removed yet, bytes."""
        return max(sum(segment.size for segment in self._segments) - self._position.offset, 0)

    @property
    def is_empty(self) -> bool:
        """True if there is no segment."""
        return not self._segments

    @property
    def items(self) -> int:
        """Items that this process has written and that were not removed."""
        detached = self._head.items if self._head is not None and self._head_is_detached else 0
        return sum(segment.items for segment in self._segments) + detached

    def append(self, request: FrozenRequest) -> None:
        """Append a request.

        Raises:
            OSError: The write failed, and nothing has changed.
        """
        if self._writer.is_gone():
            gone = self._segments[-1]
            self._report(gone, "it was removed")
            self._forget(gone)
        segment = self._writer.append(self._open_folder, request)
        if not self._segments or segment is not self._segments[-1]:
            self._segments.append(segment)

    def append_raw(self, header: Any, blocks: Iterable[tuple[bytes, int]], room: Callable[[int], bool]) -> int:
        """Append a raw segment.

        Args:
            header: Plain values, for the decoder.
            blocks: Encoded blocks with their numbers of items.
            room: Called before each write with the new size of the segment. If it returns False, the blocks of this
                write are omitted.

        Returns:
            The number of items that were written, which may be less than the number given.

        Raises:
            OSError: No item could be written.
        """
        self._writer.close()  # later requests follow in another segment
        segment = self._writer.create(self._open_folder, "raw")
        try:
            self._writer.write_blocks(segment, header, blocks, room)
        except OSError as error:
            if not segment.items:
                raise
            _log.warning("%s: only %d items could be written: %s", segment.name, segment.items, error)
        finally:
            self._writer.close()
            if segment.items:
                self._segments.append(segment)
            else:
                self._writer.discard(self._open_folder, segment)
        return segment.items

    def oldest(self) -> FrozenRequest | None:
        """Return the oldest request; None if there is none."""
        while self._head is None and self._segments and self._folder is not None:
            segment = self._segments[0]
            try:
                if self._reader is None:
                    self._reader = self._open_reader(segment, self._position, self._count_damage)
                self._head = self._reader.read(segment.size)
            except (OSError, NotRecognisedError) as error:
                self._report(segment, str(error))
                self._forget(segment)
                continue
            if self._head is None:
                self._remove(segment)
        return self._head

    def remove_oldest(self) -> bool:
        """Remove the oldest request, even if its segment has been dropped after :meth:`oldest`.

        Returns:
            False if there was no request.
        """
        request = self.oldest()
        if request is None:
            return False
        self._head = None
        if self._head_is_detached:
            self._head_is_detached = False
            return True
        assert self._reader is not None  # it has read the request
        segment = self._segments[0]
        segment.items = max(segment.items - request.items, 0)
        self._position = self._reader.position
        if self._position.offset >= segment.size:
            self._remove(segment)
        else:
            self._write_position(segment)
        return True

    def drop_segment(self) -> int:
        """Remove the oldest segment, except for a request that :meth:`oldest` has returned.

        Returns:
            The number of items of this process in it.
        """
        segment = self._segments[0]
        self._detach_head(segment)
        dropped, segment.items = segment.items, 0
        self._remove(segment)
        return dropped

    def __iter__(self) -> Iterator[FrozenRequest]:
        if self._head is not None and self._head_is_detached:
            yield self._head
        position = self._position
        for segment in list(self._segments):
            try:
                reader = self._open_reader(segment, position, partial(self._report, segment))
                with closing(reader):
                    while (request := reader.read(segment.size)) is not None:
                        yield request
            except (OSError, NotRecognisedError) as error:
                self._report(segment, str(error))
            position = Position()

    def load(self, folder: Folder) -> None:
        """Load the segments of a folder.

        Raises:
            OSError: The folder cannot be read.
        """
        self._folder = folder
        known = {segment.name: segment for segment in self._segments}
        found = []
        for name in folder.names():
            if match := re.fullmatch(rf"{self.signal}-(\d{{6,9}})\.(spool|raw)", name):
                with suppress(FileNotFoundError):
                    size = folder.status(name).st_size
                    found.append(known.pop(name) if name in known else Segment(name, int(match[1]), size))
        before = self._segments[0] if self._segments else None
        self._segments = sorted(found, key=lambda segment: (segment.number, segment.name))
        for segment in known.values():
            self._lose(segment, segment.items)
        self._writer.number = max([self._writer.number, *(segment.number for segment in found)])
        if before is not None and before in self._segments[:1]:
            return  # the folder was closed and opened again
        self._position = Position()
        with suppress(OSError):
            stored = self._position_file.read(folder)
            if stored is not None and found and stored[0] == self._segments[0].number:
                self._position = stored[1] if stored[1].offset <= self._segments[0].size else Position()

    def check(self) -> None:
        """Count segments that have disappeared from the folder as lost."""
        for segment in list(self._segments):
            try:
                self._open_folder.status(segment.name)
            except OSError as error:
                self._report(segment, str(error))
                self._forget(segment)

    def restore_head(self) -> None:
        """Write a request again if its segment was dropped while the request was being sent."""
        if self._head is not None and self._head_is_detached:
            head, self._head, self._head_is_detached = self._head, None, False
            try:
                self.append(head)
            except OSError:
                self.lost["disk"] += head.items

    def close(self) -> None:
        """Close the files. The counts are kept. Idempotent."""
        self._writer.close()
        self._close_reader()
        self._position_file.close()
        if not self._head_is_detached:
            self._head = None
        self._folder = None

    def clear(self) -> None:
        """Remove the files beside the segments. Called when there is no segment."""
        if self._folder is not None:
            self._position_file.remove(self._folder)

    @property
    def _open_folder(self) -> Folder:
        assert self._folder is not None  # because load() was called
        return self._folder

    def _open_reader(self, segment: Segment, position: Position, report: Report) -> RecordReader | RawReader:
        descriptor = self._open_folder.open_file(segment.name, os.O_RDONLY)
        if segment.name.endswith(".raw"):
            return RawReader(descriptor, self._decoders, position, report)
        return RecordReader(descriptor, self.signal, position, report)

    def _count_damage(self, text: str, items: int) -> None:
        segment = self._segments[0]
        self._report(segment, text)
        if segment.own:
            items = min(items, segment.items)
        if items > 0:
            self._lose(segment, items)

    def _lose(self, segment: Segment, items: int) -> None:
        segment.items = max(segment.items - items, 0)
        self.lost["disk"] += items

    def _detach_head(self, segment: Segment) -> None:
        """Keep the oldest request in memory, because its segment is about to be dropped."""
        if segment is self._segments[0] and self._head is not None and not self._head_is_detached:
            self._head_is_detached = True
            segment.items = max(segment.items - self._head.items, 0)

    def _report(self, segment: Segment, text: str, _items: int = 0) -> None:
        self.problems += 1
        if self.problems == 1:
            path = segment.name if self._folder is None else self._folder.path / segment.name
            _log.warning("cannot read %s: %s (further problems of this kind are counted, not logged)", path, text)

    def _forget(self, segment: Segment) -> None:
        """Count the rest of a segment as lost, and continue with the next segment. The file is not changed."""
        self._detach_head(segment)
        self._lose(segment, segment.items)
        if segment is self._segments[0]:
            self._close_reader()
            self._position = Position()
        if segment is self._segments[-1]:
            self._writer.close()
        self._segments.remove(segment)

    def _remove(self, segment: Segment) -> None:
        """Remove the file of a segment after everything in it was read or dropped."""
        self._forget(segment)
        self._open_folder.unlink(segment.name)
        if not self._segments:
            self._position_file.remove(self._open_folder)

    def _write_position(self, segment: Segment) -> None:
        try:
            self._position_file.write(self._open_folder, segment.number, self._position)
        except OSError as error:
            if not self._position_warned:
                self._position_warned = True
                name = self._position_file.name
                _log.warning("cannot write %s: %s (after a crash, requests would be sent twice)", name, error)

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
