"""Raw segments: items that could not be encoded in time, as plain values, for a decoder to make requests of.

A file is a magic, a block with the header, and blocks of items. Each block is its length, its number of items, the
CRC-32 of its content and of these fields, and the content: ``marshal`` (version 4, readable by every Python since 3.4).
Checksums are compared before anything is decoded. ``marshal`` is not safe against somebody who forges both, for which
reason folders of other users are refused.
"""

from __future__ import annotations

import marshal
import os
import struct
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from monitel_otlp.spool.position import Place
from monitel_otlp.spool.records import UNKNOWN, NotRecognisedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.spool.records import Report

    MakeDecoder = Callable[[Any], "Decoder"]

MAGIC = b"mtraw\x00\x00\x01"
_VERSION = 4  # of marshal
_FIELDS = struct.Struct("<III")  # bytes, items, CRC-32 of the content
_CHECKSUM = struct.Struct("<I")  # CRC-32 of the fields
_HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
_ITEMS_PER_BLOCK = 256
_LARGEST_BLOCK = 16 << 20  # bytes


class Decoder(Protocol):
    """Makes requests of the items of one raw segment. It gets every block, from the first one on."""

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        """Return the requests for a block of items."""


def encode_block(items: list[Any]) -> list[tuple[bytes, int]]:
    """Encode items, 256 to a block.

    ``marshal`` writes exact built-in values only. Note that it takes whatever has a buffer, such as a numpy scalar,
    for bytes.

    Args:
        items: Plain values.

    Returns:
        Blocks, each with its number of items. An item that cannot be written is left out: the numbers then add up to
        less than was given.
    """
    if len(items) > _ITEMS_PER_BLOCK:
        parts = [items[begin : begin + _ITEMS_PER_BLOCK] for begin in range(0, len(items), _ITEMS_PER_BLOCK)]
        return [block for part in parts for block in encode_block(part)]
    if not items:
        return []
    try:
        content = marshal.dumps(items, _VERSION)
    except (ValueError, OverflowError, MemoryError):
        content = b""
    if content and (len(content) <= _LARGEST_BLOCK or len(items) == 1):
        return [(content, len(items))]
    if len(items) == 1:
        return []
    half = len(items) // 2
    return encode_block(items[:half]) + encode_block(items[half:])


def pack_header(header: Any) -> bytes:
    """Return the beginning of a raw segment.

    Raises:
        ValueError: The header is not of plain values.
    """
    return MAGIC + pack_block(marshal.dumps(header, _VERSION), 0)


def pack_block(content: bytes, items: int) -> bytes:
    """Return a block with its checksums."""
    fields = _FIELDS.pack(len(content), items, zlib.crc32(content))
    return b"".join((fields, _CHECKSUM.pack(zlib.crc32(fields)), content))


class RawReader:
    """Reads a raw segment and decodes it, a block at a time.

    Args:
        descriptor: The open file; the reader closes it.
        decoders: Returns what makes a decoder from a header, by the header's first field.
        place: Where to begin; the blocks before it are decoded too, because a decoder has state.
        report: Called for what is damaged.
    """

    def __init__(
        self, descriptor: int, decoders: Callable[[], Mapping[str, MakeDecoder]], place: Place, report: Report
    ) -> None:
        self._descriptor = descriptor
        self._decoders = decoders
        self._decoder: Decoder | None = None
        self._begin = place
        self._report = report
        self._block = self._next = 0  # where the block begins that was decoded last, and the one after it
        self._ready: deque[FrozenRequest] = deque()
        self.place = place

    def read(self, end: int) -> FrozenRequest | None:
        """Return the next request; None at the end."""
        if self._decoder is None and not self._start(end):
            return None
        while not self._ready:
            if self._next >= end:
                return None
            self._decode_block(end)
        request = self._ready.popleft()
        self.place = Place(self._block, self.place.part + 1) if self._ready else Place(self._next)
        return request

    def _start(self, end: int) -> bool:
        """Make the decoder; False if the file ends before the first block."""
        start = os.pread(self._descriptor, len(MAGIC), 0)
        if not MAGIC.startswith(start):
            raise NotRecognisedError("it is not a raw segment of this version")
        self._next = len(MAGIC)
        if self._next >= end:
            return False
        content, _ = self._read_block(end)
        if content is None:
            raise NotRecognisedError("its header is damaged")
        try:
            header = marshal.loads(content)  # noqa: S302  the checksum was compared, the folder's owner too
            self._decoder = self._decoders()[header[0]](header)
        except Exception as error:
            raise NotRecognisedError(f"no decoder can read its header: {error!r}") from error
        return True

    def _decode_block(self, end: int) -> None:
        """Decode the next block, and keep those of its requests that are still to be read."""
        block = self._block = self._next
        content, items = self._read_block(end)
        if content is None:
            requests: list[FrozenRequest] = []
            missing = items
            problem = f"the block at byte {block} is damaged"
        else:
            requests, problem = self._decode(content)
            missing = items - sum(request.items for request in requests)
        if block < self._begin.offset:
            return
        if problem or missing:
            self._report(problem or f"not every item of the block at byte {block} can be decoded", missing)
        part = self._begin.part if block == self._begin.offset else 0
        self._ready.extend(requests[part:])
        self.place = Place(block, part) if self._ready else Place(self._next)

    def _decode(self, content: bytes) -> tuple[list[FrozenRequest], str]:
        """Return the requests of a block, and the problem, if any."""
        assert self._decoder is not None  # read() makes it first
        try:
            items = marshal.loads(content)  # noqa: S302  the checksum was compared, the folder's owner too
            return self._decoder.decode(items), ""
        except Exception as error:
            return [], f"the block at byte {self._block} cannot be decoded: {error!r}"

    def _read_block(self, end: int) -> tuple[bytes | None, int]:
        """Step over a block, to the end if its length is damaged.

        Returns:
            Its content, None if it is damaged, and its number of items, negative if that is damaged too.
        """
        header = os.pread(self._descriptor, _HEADER_BYTES, self._next)
        fields = header[: _FIELDS.size]
        if header[_FIELDS.size :] != _CHECKSUM.pack(zlib.crc32(fields)):
            self._next = end
            return None, UNKNOWN
        length, items, checksum = _FIELDS.unpack(fields)
        begin = self._next + _HEADER_BYTES
        self._next = begin + length
        content = b"" if self._next > end else os.pread(self._descriptor, length, begin)
        return (content if len(content) == length and zlib.crc32(content) == checksum else None), items

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
