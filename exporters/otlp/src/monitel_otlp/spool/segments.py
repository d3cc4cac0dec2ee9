"""Requests of one signal on disk: append-only files, read from the oldest on.

They are called ``metrics-000001.spool``, ``metrics-000002.spool`` and so on, and the place that was reached in the
oldest, ``metrics.position``. A segment is a row of records, each a header (length of the body, checksum, items,
creation time) and a body. A crash costs at most the last record.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import zlib
from io import FileIO
from typing import TYPE_CHECKING, BinaryIO

from monitel_otlp.request import FrozenRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_log = logging.getLogger("monitel.otlp")

_HEADER = struct.Struct("<IIIQ")  # body length, CRC-32 of the rest of the header and the body, items, ns
_LARGEST = 64 << 20
SEGMENT_BYTES = 16 << 20


class Segments:
    """The requests of one signal in a folder: written at one end, read at the other.

    Args:
        folder: It is there when the first request comes.
        signal: Whose requests these are.
    """

    def __init__(self, folder: Path, signal: str) -> None:
        self._folder = folder
        self.signal = signal
        self._segments: list[int] = []
        self._sizes: dict[int, int] = {}
        self._writer: FileIO | None = None
        self._number = 0
        self._offset = 0  # in the oldest segment
        self._head: tuple[FrozenRequest, int] | None = None  # and where the record after it begins

    @property
    def size_bytes(self) -> int:
        """Bytes that are still to be read."""
        return sum(self._sizes.values()) - self._offset

    def append(self, request: FrozenRequest) -> None:
        """Put a request behind the others.

        Raises:
            OSError: The disk did not take it.
        """
        record = _pack(request)
        writer = self._writer
        if writer is None or self._sizes[self._number] + len(record) > SEGMENT_BYTES:
            writer = self._start_segment()
        try:
            if writer.write(record) < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            # A torn record would hide what comes after it: cut it off, and begin anew next time.
            self.close()
            os.truncate(self._path(self._number), self._sizes[self._number])
            raise
        self._sizes[self._number] += len(record)

    def oldest(self) -> FrozenRequest | None:
        """The request that is to go next; None when there is none."""
        while self._head is None and self._segments:
            self._head = self._read(self._segments[0], self._offset)
            if self._head is None:
                self._drop_file(self._segments[0])
        return self._head[0] if self._head else None

    def remove_oldest(self) -> int:
        """Forget what :meth:`oldest` gave; its items."""
        assert self._head is not None  # oldest() has given it
        request, self._offset = self._head
        self._head = None
        if self._offset >= self._sizes[self._segments[0]]:
            self._drop_file(self._segments[0])
        else:
            self._write_position()
        return request.items

    def drop_segment(self) -> int:
        """Forget all that is in the oldest segment; its items."""
        items = 0
        while self.oldest() is not None and self._head is not None:
            before = self._segments[0]
            items += self.remove_oldest()
            if before not in self._segments:
                break
        return items

    def __iter__(self) -> Iterator[FrozenRequest]:
        offset = self._offset
        for number in self._segments:
            while found := self._read(number, offset):
                yield found[0]
                offset = found[1]
            offset = 0

    def load(self) -> None:
        """Take over what is there."""
        for path in sorted(self._folder.glob(f"{self.signal}-*.spool")):
            digits = path.stem.rpartition("-")[2]
            if digits.isdecimal():
                self._number = int(digits)
                self._segments.append(self._number)
                self._sizes[self._number] = path.stat().st_size
        try:
            number, offset = map(int, self._position.read_text().split())
        except (FileNotFoundError, ValueError):
            return
        if self._segments and self._segments[0] == number and 0 <= offset <= self._sizes[number]:
            self._offset = offset

    def close(self) -> None:
        """Close the file that is written."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    @property
    def _position(self) -> Path:
        return self._folder / f"{self.signal}.position"

    def _path(self, number: int) -> Path:
        return self._folder / f"{self.signal}-{number:06}.spool"

    def _start_segment(self) -> FileIO:
        self.close()
        writer = open_private(self._path(self._number + 1), "ab")
        self._number += 1
        self._segments.append(self._number)
        self._sizes[self._number] = 0
        self._writer = writer
        return writer

    def _drop_file(self, number: int) -> None:
        if number == self._number:
            self.close()
        self._segments.remove(number)
        del self._sizes[number]
        self._offset = 0
        self._head = None
        self._path(number).unlink(missing_ok=True)
        self._position.unlink(missing_ok=True)

    def _write_position(self) -> None:
        fresh = self._position.with_suffix(".fresh")
        with open_private(fresh, "wb") as file:
            file.write(f"{self._segments[0]} {self._offset}".encode())
        fresh.replace(self._position)

    def _read(self, number: int, offset: int) -> tuple[FrozenRequest, int] | None:
        """The record at ``offset`` and where the next one begins; None at the end, or where a crash tore it."""
        path = self._path(number)
        with path.open("rb") as file:
            file.seek(offset)
            header = file.read(_HEADER.size)
            if not header:
                return None
            request = _unpack(self.signal, header, file)
        if request is None:
            _log.warning("%s is damaged from byte %d on: what follows there is lost", path, offset)
            return None
        return request, offset + _HEADER.size + len(request.body)


def _pack(request: FrozenRequest) -> bytes:
    tail = _HEADER.pack(len(request.body), 0, request.items, request.created_ns)[8:]
    checksum = zlib.crc32(request.body, zlib.crc32(tail))
    return struct.pack("<II", len(request.body), checksum) + tail + request.body


def _unpack(signal: str, header: bytes, file: BinaryIO) -> FrozenRequest | None:
    if len(header) < _HEADER.size:
        return None
    length, checksum, items, created_ns = _HEADER.unpack(header)
    if length > _LARGEST:
        return None
    body = file.read(length)
    if len(body) < length or zlib.crc32(body, zlib.crc32(header[8:])) != checksum:
        return None
    return FrozenRequest(signal, body, items, created_ns)


def open_private(path: Path, mode: str) -> FileIO:
    """A file for its owner alone, without a buffer that a fork could copy."""
    return FileIO(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))
