"""Format of raw segments: plain values of items that could not be encoded in time, from which a decoder makes requests.

A file consists of a magic number, a block with the header, and blocks of items. A block consists of its length, its
number of items, the CRC-32 of its content, the CRC-32 of these fields, and the content in ``marshal`` format (version
4, readable by every Python since 3.4). The checksums are compared before anything is decoded. They do not protect
against forged files, and ``marshal`` is unsafe on them; therefore folders of other users are refused.
"""

from __future__ import annotations

import marshal
import os
import struct
import zlib
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from monitel_otlp.spool.position import Position
from monitel_otlp.spool.request_segment import UNKNOWN, NotRecognisedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.raw.decoders import Decoder
    from monitel_otlp.spool.request_segment import Report

    MakeDecoder = Callable[[Any], Decoder]

MAGIC = b"mtraw\x00\x00\x01"
_VERSION = 4  # of marshal
_FIELDS = struct.Struct("<III")  # bytes, items, CRC-32 of the content
_CHECKSUM = struct.Struct("<I")  # CRC-32 of the fields
_HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
_ITEMS_PER_BLOCK = 256
_LARGEST_BLOCK = 16 << 20  # bytes


def encode_blocks(items: Iterable[Any]) -> list[tuple[bytes, int]]:
    """Encode items in blocks of at most 256.

    ``marshal`` writes only exact built-in values. It writes any other object with a buffer, such as a numpy scalar, as
    bytes.

    Args:
        items: Plain values.

    Returns:
        Blocks, each with its number of items. An item that cannot be written is omitted, so the sum of the numbers may
        be less than the number of items.
    """
    left, blocks = iter(items), []
    while part := list(islice(left, _ITEMS_PER_BLOCK)):
        blocks += _encode_part(part)
    return blocks


def _encode_part(items: list[Any]) -> list[tuple[bytes, int]]:
    """Encode items in one block, or in more if they are large or cannot be written."""
    try:
        content = marshal.dumps(items, _VERSION)
    except (ValueError, OverflowError, MemoryError):
        content = b""
    if content and (len(content) <= _LARGEST_BLOCK or len(items) == 1):
        return [(content, len(items))]
    if len(items) == 1:
        return []
    half = len(items) // 2
    return _encode_part(items[:half]) + _encode_part(items[half:])


def pack_header(header: Any) -> bytes:
    """Return the magic number and the header block of a raw segment.

    Raises:
        ValueError: The header contains other objects than plain values.
    """
    return MAGIC + pack_block(marshal.dumps(header, _VERSION), 0)


def pack_block(content: bytes, items: int) -> bytes:
    """Return a block with its checksums."""
    fields = _FIELDS.pack(len(content), items, zlib.crc32(content))
    return b"".join((fields, _CHECKSUM.pack(zlib.crc32(fields)), content))


class RawReader:
    """Reads a raw segment, and decodes one block at a time.

    Args:
        descriptor: The open file, which the reader closes.
        decoders: Returns the functions that make a decoder from a header, by the first field of the header.
        position: The start position. Earlier blocks are decoded as well, because a decoder has state.
        report: Called for each damaged block.
    """

    def __init__(
        self, descriptor: int, decoders: Callable[[], Mapping[str, MakeDecoder]], position: Position, report: Report
    ) -> None:
        self._descriptor = descriptor
        self._decoders = decoders
        self._decoder: Decoder | None = None
        self._begin = position
        self._report = report
        self._block = self._next = 0  # offsets of the last decoded block, and of the next one
        self._ready: deque[FrozenRequest] = deque()
        self.position = position

    def read(self, end: int) -> FrozenRequest | None:
        """Return the next request, or None at the end."""
        if self._decoder is None and not self._start(end):
            return None
        while not self._ready:
            if self._next >= end:
                return None
            self._decode_block(end)
        request = self._ready.popleft()
        self.position = Position(self._block, self.position.part + 1) if self._ready else Position(self._next)
        return request

    def _start(self, end: int) -> bool:
        """Make the decoder. Return False if the file ends before the first block."""
        start = os.pread(self._descriptor, len(MAGIC), 0)
        if not MAGIC.startswith(start):
            raise NotRecognisedError("not a raw segment of this version")
        self._next = len(MAGIC)
        if self._next >= end:
            return False
        content, _ = self._read_block(end)
        if content is None:
            raise NotRecognisedError("its header is damaged")
        try:
            header = marshal.loads(content)  # noqa: S302  checksum and owner of the folder were checked
            self._decoder = self._decoders()[header[0]](header)
        except Exception as error:
            raise NotRecognisedError(f"no decoder can read its header: {error!r}") from error
        return True

    def _decode_block(self, end: int) -> None:
        """Decode the next block, and keep its requests from the start position on."""
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
            self._report(problem or f"some items of the block at byte {block} cannot be decoded", missing)
        part = self._begin.part if block == self._begin.offset else 0
        self._ready.extend(requests[part:])
        self.position = Position(block, part) if self._ready else Position(self._next)

    def _decode(self, content: bytes) -> tuple[list[FrozenRequest], str]:
        """Return the requests of a block and a description of the problem, which is empty if there is none."""
        assert self._decoder is not None  # because read() has made it
        try:
            items = marshal.loads(content)  # noqa: S302  checksum and owner of the folder were checked
            return self._decoder.decode(items), ""
        except Exception as error:
            return [], f"the block at byte {self._block} cannot be decoded: {error!r}"

    def _read_block(self, end: int) -> tuple[bytes | None, int]:
        """Read the next block, and move behind it, or to the end if its length is damaged.

        Returns:
            The content, or None if it is damaged, and the number of items, which is negative if it is damaged as well.
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
