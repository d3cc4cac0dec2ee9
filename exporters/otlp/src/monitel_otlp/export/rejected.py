"""The requests that a backend has rejected: an append-only file beside the journals, for ``replay --rejected``."""

from __future__ import annotations

import marshal
import os
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from monitel.blackbox.discovery import REJECTED
from monitel.blackbox.folder import write_at
from monitel.blackbox.record import FRAME, MASK, load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.blackbox.folder import Folder

MOST_BYTES = 1 << 30  # as of the journals on the disk


class Rejected(NamedTuple):
    """A request that a backend has rejected.

    Attributes:
        signal: Its signal.
        reason: The answer of the backend.
        items: Number of items in it; 0 for what monitel has made itself.
        body: The protobuf message.
        at: Its offset in the file.
    """

    signal: str
    reason: str
    items: int
    body: bytes
    at: int = 0


def trim(folder: Folder) -> None:
    """Remove a part of a request at the end, which a killed process may have left.

    Raises:
        OSError: The file cannot be written, is a link, or belongs to another user.
    """
    with suppress(FileNotFoundError):
        descriptor = folder.open_file(REJECTED, os.O_RDWR)
        try:
            os.ftruncate(descriptor, max((end for _, end, _ in _frames(descriptor)), default=0))
        finally:
            os.close(descriptor)


def append(folder: Folder, *, signal: str, body: bytes, items: int, reason: str) -> bool:
    """Append a request. One thread at a time, of one process, may do so, after :func:`trim` to another one's file.

    Returns:
        False if the file has no room for it.

    Raises:
        OSError: It cannot be written, and the file is as before.
    """
    content = _pack(Rejected(signal, reason.encode("utf-8", "backslashreplace").decode(), items, body))
    descriptor = folder.open_file(REJECTED, os.O_WRONLY | os.O_CREAT)
    try:
        at = os.fstat(descriptor).st_size
        if at + len(content) > MOST_BYTES:
            return False
        try:
            write_at(descriptor, content, at)
        except OSError:
            os.ftruncate(descriptor, at)
            raise
    finally:
        os.close(descriptor)
    return True


def read(folder: Folder) -> Iterator[Rejected]:
    """Yield the requests that are not marked, oldest first, up to the first one that is damaged.

    Raises:
        OSError: The file is a link, or belongs to another user.
    """
    try:
        descriptor = folder.open_file(REJECTED, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        for at, end, crc in _frames(descriptor):
            value = os.pread(descriptor, end - at - FRAME.size, at + FRAME.size)
            if zlib.crc32(value) == crc:
                signal, reason, items, body = load(value)
                yield Rejected(signal, reason, items, body, at)
            elif zlib.crc32(value) != crc ^ MASK:
                return
    except (ValueError, TypeError):
        return
    finally:
        os.close(descriptor)


def mark(folder: Folder, request: Rejected) -> None:
    """Note that a request was delivered, by the inverse of its checksum."""
    content = _pack(request)
    length, crc = FRAME.unpack_from(content)
    folder.write(REJECTED, FRAME.pack(length, crc ^ MASK), request.at)


def compact(folder: Folder) -> None:
    """Write the file anew without what is marked, or remove it if nothing is left.

    Raises:
        OSError: It cannot be written, and the file is as before.
    """
    new, at = f"{REJECTED}.new", 0
    folder.unlink(new)
    for request in read(folder):
        folder.write(new, content := _pack(request), at)
        at += len(content)
    if at:
        folder.rename(new, REJECTED)
    else:
        folder.unlink(REJECTED)


def _pack(request: Rejected) -> bytes:
    content = marshal.dumps(tuple(request[:-1]), 2)
    return FRAME.pack(len(content), zlib.crc32(content)) + content


def _frames(descriptor: int) -> Iterator[tuple[int, int, int]]:
    """Yield the offset of each whole request, the offset after it, and its checksum."""
    at, size = 0, os.fstat(descriptor).st_size
    while len(head := os.pread(descriptor, FRAME.size, at)) == FRAME.size:
        length, crc = FRAME.unpack(head)
        end = at + FRAME.size + length
        if end > size:
            return
        yield at, end, crc
        at = end
