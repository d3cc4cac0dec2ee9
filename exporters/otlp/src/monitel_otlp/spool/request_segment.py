"""Format of request segments: a magic number, and records that consist of a header, weights and a body.

The header has a separate checksum, so a record with a damaged body can be skipped. Segments of version 0.1, which have
no magic number and shorter headers, can be read as well.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import TYPE_CHECKING, Protocol

from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.spool.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Called with the description of a problem and the number of items that it has cost.
    Report = Callable[[str, int], None]

MAGIC = b"mtspool\x02"
_FIELDS = struct.Struct("<IIIIQI")  # bytes of the body, bytes of the weights, items, synthetic, ns, CRC-32 of both
_CHECKSUM = struct.Struct("<I")  # CRC-32 of the fields
_HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
_FORMER = struct.Struct("<IIIQ")  # bytes of the body, CRC-32 of the rest of the header and the body, items, ns
_LARGEST_FORMER = 64 << 20
_LOST = "damaged from byte {} on; the rest of the segment is lost"


UNKNOWN = -1  # the number of lost items, if that is damaged as well


class NotRecognisedError(Exception):
    """Raised for a file that this version cannot read, and therefore must not remove."""


class SegmentReader(Protocol):
    """Reads the requests of one segment in order.

    Attributes:
        position: Start of the next request.
    """

    position: Position

    def read(self, end: int) -> FrozenRequest | None:
        """Return the next request, or None at the end.

        Args:
            end: Current size of the segment, bytes.

        Raises:
            OSError: The file cannot be read.
            NotRecognisedError: The file is not a segment of a known version.
        """

    def close(self) -> None:
        """Close the file. Idempotent."""


def pack(request: FrozenRequest) -> bytes:
    """Return the record of a request."""
    content = request.weights + request.body
    fields = _FIELDS.pack(
        len(request.body),
        len(request.weights),
        request.items,
        request.synthetic,
        request.created_ns,
        zlib.crc32(content),
    )
    return b"".join((fields, _CHECKSUM.pack(zlib.crc32(fields)), content))


def packed_bytes(request: FrozenRequest) -> int:
    """Return the maximum size of a request on disk, bytes."""
    return len(MAGIC) + _HEADER_BYTES + len(request.weights) + len(request.body)


class RecordReader:
    """Reads segments of requests, in the current format or in the format of version 0.1.

    Args:
        descriptor: The open file, which the reader closes.
        signal: The signal of the requests.
        position: The start position.
        report: Called for each damaged record.
    """

    def __init__(self, descriptor: int, signal: str, position: Position, report: Report) -> None:
        self._descriptor = descriptor
        self._signal = signal
        self._report = report
        self._former: bool | None = None  # unknown until the first read
        self.position = position

    def read(self, end: int) -> FrozenRequest | None:
        """Return the next request, or None at the end."""
        if self._former is None:
            start = os.pread(self._descriptor, len(MAGIC), 0)
            self._former = not MAGIC.startswith(start)  # a crash may have truncated even the magic number
            if not self._former and self.position.offset < len(MAGIC):
                self.position = Position(len(MAGIC))
        while self.position.offset < end:
            request = self._read_former() if self._former else self._read_record(end)
            if request is not None:
                return request
        return None

    def _read_record(self, end: int) -> FrozenRequest | None:
        """Read one record, and move behind it; return None if it is damaged."""
        offset = self.position.offset
        header = os.pread(self._descriptor, _HEADER_BYTES, offset)
        fields = header[: _FIELDS.size]
        if header[_FIELDS.size :] != _CHECKSUM.pack(zlib.crc32(fields)):
            self._report(_LOST.format(offset), UNKNOWN)
            self.position = Position(end)
            return None
        body_bytes, weights_bytes, items, synthetic, created_ns, checksum = _FIELDS.unpack(fields)
        length = weights_bytes + body_bytes
        self.position = Position(offset + _HEADER_BYTES + length)
        content = b"" if self.position.offset > end else os.pread(self._descriptor, length, offset + _HEADER_BYTES)
        if len(content) < length or zlib.crc32(content) != checksum:
            self._report(f"the record at byte {offset} is damaged", items)
            return None
        return FrozenRequest(
            self._signal, content[weights_bytes:], items, created_ns, content[:weights_bytes], synthetic
        )

    def _read_former(self) -> FrozenRequest | None:
        offset = self.position.offset
        header = os.pread(self._descriptor, _FORMER.size, offset)
        if len(header) == _FORMER.size:
            length, checksum, items, created_ns = _FORMER.unpack(header)
            if length <= _LARGEST_FORMER:
                body = os.pread(self._descriptor, length, offset + _FORMER.size)
                if len(body) == length and zlib.crc32(body, zlib.crc32(header[8:])) == checksum:
                    self.position = Position(offset + _FORMER.size + length)
                    return FrozenRequest(self._signal, body, items, created_ns)
        if not offset:
            raise NotRecognisedError("not a spool segment, or damaged from its first byte")
        self._report(_LOST.format(offset), UNKNOWN)
        self.position = Position(1 << 62)  # the next record cannot be found
        return None

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
