"""Requests on disk: append-only segments, read from the oldest on.

A folder holds, for each signal, segments ``metrics-000001.spool``, ``metrics-000002.spool`` and so on, and while they
are read back the place that was reached, ``metrics.position``. A segment is a row of records, each a header (length
of the body, checksum, items, creation time) and a body. A crash costs at most the last record.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import struct
import zlib
from collections import Counter
from contextlib import suppress
from io import FileIO
from itertools import count
from typing import TYPE_CHECKING, BinaryIO

from monitel_otlp.request import SIGNALS, FrozenRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_log = logging.getLogger("monitel.otlp")

_HEADER = struct.Struct("<IIIQ")  # body length, CRC-32 of the rest of the header and the body, items, ns
_LARGEST = 64 << 20
_SET_ASIDE = re.compile(rf"({'|'.join(SIGNALS)})-\d+-\d+-\d+")  # signal, creation time, items, and which of these
SEGMENT_BYTES = 16 << 20


class SpoolError(Exception):
    """A spool that cannot be used, with what to do about it."""


class Spool:
    """The spool of one process, or of one that has ended, in one folder that one process at a time may use.

    Args:
        folder: Made with the first request, for its owner alone.
        limit_bytes: The most that segments may take; the oldest are dropped, and counted.
        limited: The signals that the limit binds, all by default; one that has nowhere else to go is not among them.

    Attributes:
        items: Windows, records and spans that this process has put there and that are still there.
    """

    def __init__(self, folder: Path, limit_bytes: int | None = None, limited: Iterable[str] = SIGNALS) -> None:
        self.folder = folder
        self.items = 0
        self._limited = list(limited)
        self._dropped: Counter[str] = Counter()
        self._complained = False
        self._limit_bytes = limit_bytes
        self._lock_file: FileIO | None = None
        self._queues = {signal: _Queue(self, signal) for signal in SIGNALS}

    @property
    def size_bytes(self) -> int:
        """Bytes on disk that are still to be delivered."""
        return sum(queue.size_bytes for queue in self._queues.values())

    def append(self, request: FrozenRequest) -> None:
        """Put a request behind the others of its signal.

        Raises:
            OSError: The disk did not take it.
        """
        self._open(create=True)
        self._queues[request.signal].append(request)
        self.items += request.items
        limited = [self._queues[signal] for signal in self._limited]
        while self._limit_bytes is not None and sum(queue.size_bytes for queue in limited) > self._limit_bytes:
            largest = max(limited, key=lambda queue: queue.size_bytes)
            dropped = largest.drop_segment()
            self._dropped[largest.signal] += dropped
            self.items -= dropped

    def oldest(self, signal: str) -> FrozenRequest | None:
        """The request of a signal that is to go next; None when there is none."""
        return self._queues[signal].oldest()

    def remove_oldest(self, signal: str) -> None:
        """Forget what :meth:`oldest` gave: it was delivered, or set aside."""
        self.items -= self._queues[signal].remove_oldest()

    def requests(self) -> Iterator[FrozenRequest]:
        """Every request still to be delivered, oldest first signal by signal; nothing is removed."""
        for queue in self._queues.values():
            yield from queue

    def complain(self, error: Exception) -> None:
        """Say, once, that the disk does not take what it is given."""
        if not self._complained:
            self._complained = True
            _log.warning("the spool in %s cannot be written: %s", self.folder, error)

    def take_dropped(self, signal: str) -> int:
        """Items that the size limit pushed out since this was last asked."""
        return self._dropped.pop(signal, 0)

    def set_aside(self, request: FrozenRequest, reason: str) -> Path:
        """Keep a request that a backend will never take, with what it answered, in ``rejected/``.

        Returns:
            Where the message is; the answer is beside it.
        """
        self._open(create=True)
        rejected = self.folder / "rejected"
        rejected.mkdir(mode=0o700, exist_ok=True)
        name = f"{request.signal}-{request.created_ns}-{request.items}"  # parts of one request were all created at once
        path = next(path for n in count(1) if not (path := rejected / f"{name}-{n}.binpb").exists())
        with _open_private(path, "wb") as file:
            file.write(request.body)
        with _open_private(path.with_suffix(".txt"), "wb") as file:
            file.write(reason.encode())
        return path

    def take_back(self) -> None:
        """Put what was set aside behind the others again, oldest first.

        Raises:
            OSError: The disk did not take it; the rest is still in ``rejected/``.
            SpoolError: Another process uses the folder.
        """
        rejected = self.folder / "rejected"
        found = [path for path in rejected.glob("*.binpb") if _SET_ASIDE.fullmatch(path.stem)]
        for path in sorted(found, key=lambda path: int(path.stem.split("-")[1])):
            signal, created_ns, items, _ = path.stem.split("-")
            self.append(FrozenRequest(signal, path.read_bytes(), int(items), int(created_ns)))
            path.unlink()
            path.with_suffix(".txt").unlink(missing_ok=True)
        if found:
            with suppress(OSError):  # something else is in it
                rejected.rmdir()

    def peek(self, signals: Iterable[str] = SIGNALS) -> Iterator[FrozenRequest]:
        """As :meth:`requests`, of a folder that another process may be using: nothing is locked or taken over."""
        for signal in signals:
            queue = self._queues[signal]
            queue.load()
            yield from queue

    def load(self) -> None:
        """Take over what a process left in the folder.

        Raises:
            SpoolError: The folder is missing or holds no spool, or another process uses it.
        """
        if not self.folder.is_dir():
            raise SpoolError(f"there is no folder {str(self.folder)!r}")
        self._open(create=False)

    def close(self) -> None:
        """Let the folder go; when nothing is left in it, remove it."""
        for queue in self._queues.values():
            queue.close()
        if self._lock_file is not None:
            if not self.size_bytes:
                _remove_empty(self.folder)
            self._lock_file.close()
            self._lock_file = None

    def abandon(self) -> None:
        """Close the files and nothing else: in a forked child, which would hold the parent's lock."""
        for queue in self._queues.values():
            queue.close()
        if self._lock_file is not None:
            self._lock_file.close()

    def _open(self, *, create: bool) -> None:
        if self._lock_file is not None:
            return
        if create:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_file = _open_private(self.folder / "lock", "ab")
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock_file.close()
            raise SpoolError(f"{str(self.folder)!r} is in use: its process is running, or another replay is") from None
        self._lock_file = lock_file
        for queue in self._queues.values():
            queue.load()


class _Queue:
    """The segments of one signal: written at one end, read at the other."""

    def __init__(self, spool: Spool, signal: str) -> None:
        self._spool = spool
        self.signal = signal
        self._segments: list[int] = []
        self._sizes: dict[int, int] = {}
        self._writer: FileIO | None = None
        self._number = 0
        self._offset = 0  # in the oldest segment
        self._head: tuple[FrozenRequest, int] | None = None  # and where the record after it begins

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values()) - self._offset

    def append(self, request: FrozenRequest) -> None:
        record = _pack(request)
        if self._writer is None or self._sizes[self._number] + len(record) > SEGMENT_BYTES:
            self._start_segment()
        writer = self._writer
        if writer is None:
            raise SpoolError("no segment is open")
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
        while self._head is None and self._segments:
            self._head = self._read(self._segments[0], self._offset)
            if self._head is None:
                self._drop_file(self._segments[0])
        return self._head[0] if self._head else None

    def remove_oldest(self) -> int:
        if self._head is None:
            raise SpoolError("nothing was read")
        request, self._offset = self._head
        self._head = None
        if self._offset >= self._sizes[self._segments[0]]:
            self._drop_file(self._segments[0])
        else:
            self._write_position()
        return request.items

    def drop_segment(self) -> int:
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
        for path in sorted(self._spool.folder.glob(f"{self.signal}-*.spool")):
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
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    @property
    def _position(self) -> Path:
        return self._spool.folder / f"{self.signal}.position"

    def _path(self, number: int) -> Path:
        return self._spool.folder / f"{self.signal}-{number:06}.spool"

    def _start_segment(self) -> None:
        self.close()
        writer = _open_private(self._path(self._number + 1), "ab")
        self._number += 1
        self._segments.append(self._number)
        self._sizes[self._number] = 0
        self._writer = writer

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
        with _open_private(fresh, "wb") as file:
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


def _open_private(path: Path, mode: str) -> FileIO:
    """A file for its owner alone, without a buffer that a fork could copy."""
    return FileIO(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def _remove_empty(folder: Path) -> None:
    try:
        (folder / "lock").unlink(missing_ok=True)
        folder.rmdir()
    except OSError:
        pass  # something else is in it, rejected requests for instance
