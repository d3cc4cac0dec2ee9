"""The requests that a backend has rejected: an append-only file beside the journals, for ``replay --rejected``."""

from __future__ import annotations

import marshal
import os
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from monitel.blackbox.folder import write_at
from monitel.blackbox.record import FRAME, load
from monitel_otlp.discovery import REJECTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel.blackbox.folder import Folder


class Rejected(NamedTuple):
    """A request that a backend has rejected.

    Attributes:
        signal: Its signal.
        reason: The answer of the backend.
        items: Number of items in it; 0 for what monitel has made itself.
        body: The protobuf message.
    """

    signal: str
    reason: str
    items: int
    body: bytes


def append(folder: Folder, *, signal: str, body: bytes, items: int, reason: str) -> None:
    """Append a request. One thread at a time, of one process, may do so.

    Raises:
        OSError: It cannot be written, and the file is as before.
    """
    content = _pack(Rejected(signal, reason.encode("utf-8", "backslashreplace").decode(), items, body))
    descriptor = folder.open_file(REJECTED, os.O_RDWR | os.O_CREAT)
    try:
        at = _end(descriptor)  # after a kill the file may end with a part of a request
        try:
            write_at(descriptor, content, at)
        except OSError:
            os.ftruncate(descriptor, at)
            raise
    finally:
        os.close(descriptor)


def read(folder: Folder) -> list[Rejected]:
    """Return the requests, oldest first, up to the first one that is damaged.

    Raises:
        OSError: The file is a link, or belongs to another user.
    """
    content, found, at = b"", list[Rejected](), 0
    with suppress(FileNotFoundError):
        content = folder.read(REJECTED)
    with suppress(ValueError, TypeError):
        while at + FRAME.size <= len(content):
            length, crc = FRAME.unpack_from(content, at)
            value = content[at + FRAME.size : at + FRAME.size + length]
            if len(value) < length or zlib.crc32(value) != crc:
                break
            found.append(Rejected(*load(value)))
            at += FRAME.size + length
    return found


def replace(folder: Folder, requests: Sequence[Rejected]) -> None:
    """Write the file anew, or remove it if there are no requests.

    Raises:
        OSError: It cannot be written, and the file is as before.
    """
    if not requests:
        folder.unlink(REJECTED)
        return
    new = f"{REJECTED}.new"
    folder.unlink(new)
    folder.write_new(new, b"".join(map(_pack, requests)))
    folder.rename(new, REJECTED)


def _pack(request: Rejected) -> bytes:
    content = marshal.dumps(tuple(request), 2)
    return FRAME.pack(len(content), zlib.crc32(content)) + content


def _end(descriptor: int) -> int:
    """Return the offset after the last whole request."""
    at, size = 0, os.fstat(descriptor).st_size
    while len(head := os.pread(descriptor, FRAME.size, at)) == FRAME.size:
        end = at + FRAME.size + FRAME.unpack(head)[0]
        if end > size:
            break
        at = end
    return at
