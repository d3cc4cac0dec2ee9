"""Format of request segments: a magic number, and records that consist of a header, weights and a body.

The header has a separate checksum, so a record with a damaged body can be skipped.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import TYPE_CHECKING

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
UNKNOWN = -1  # the number of lost items, if that is damaged as well


class NotRecognisedError(Exception):
    """Raised for a file that this version cannot read, and therefore must not remove."""


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
    """Reads segments of requests.

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
        self.position = position
        self._is_checked = False

    def read(self, end: int) -> FrozenRequest | None:
        """Return the next request, or None at the end."""
        if not self._is_checked:
            start = os.pread(self._descriptor, len(MAGIC), 0)
            if not MAGIC.startswith(start):  # a crash may have truncated even the magic number
                raise NotRecognisedError("not a spool segment, or damaged from its first byte")
            self._is_checked = True
            self.position = max(self.position, Position(len(MAGIC)))
        while self.position.offset < end:
            if (request := self._read_record(end)) is not None:
                return request
        return None

    def _read_record(self, end: int) -> FrozenRequest | None:
        """Read one record, and move behind it; return None if it is damaged."""
        offset = self.position.offset
        header = os.pread(self._descriptor, _HEADER_BYTES, offset)
        fields = header[: _FIELDS.size]
        if header[_FIELDS.size :] != _CHECKSUM.pack(zlib.crc32(fields)):
            self._report(f"damaged from byte {offset} on; the rest of the segment is lost", UNKNOWN)
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

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
