"""Files of the requests that no backend has acknowledged yet: one file for each, which is removed with its outcome.

The name of a file holds the key of its request: its number, and for a part of a split request the number of the part,
as in ``12.1``. A part counts only if the request that it is a part of has no file any more.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from monitel_otlp.boxes.layout import LARGEST_FILE, REQUEST
from monitel_otlp.boxes.room import pages
from monitel_otlp.messages.request import SIGNALS
from monitel_otlp.spool.folder import write_at
from monitel_otlp.spool.position import Position
from monitel_otlp.spool.request_segment import MAGIC, RecordReader, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.spool.folder import Folder

_NAME = re.compile(rf"{REQUEST}(\d+(?:\.\d+)*)-({'|'.join(SIGNALS)})")
_DEPTH = 20  # a request is halved as often at most


class RequestFiles:
    """Writes and removes the files, in any thread.

    Args:
        folder: The box.
        claim: Called with a number of bytes; returns False if there is no room.
        release: Called with a number of bytes that are free again.
    """

    def __init__(self, folder: Folder, claim: Callable[[int], bool], release: Callable[[int], object]) -> None:
        self._folder = folder
        self._claim = claim
        self._release = release
        self._files: dict[str, tuple[str, int]] = {}  # name and bytes, by key

    def write(self, key: str, request: FrozenRequest) -> bool:
        """Write the file of a request; return False if there is no room.

        Raises:
            OSError: The write failed.
        """
        content = MAGIC + pack(request)
        size = pages(len(content))
        if len(content) > LARGEST_FILE or not self._claim(size):
            return False
        name = f"{REQUEST}{key}-{request.signal}"
        self._files[key] = name, size
        try:
            descriptor = self._folder.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                write_at(descriptor, content, 0)
            finally:
                os.close(descriptor)
        except OSError:
            self.remove(key)
            raise
        return True

    def remove(self, key: str) -> None:
        """Remove the file of a request, whose outcome is known. Idempotent. Errors are ignored."""
        if (found := self._files.pop(key, None)) is not None:
            name, size = found
            self._folder.unlink(name)
            self._release(size)


def read_requests(folder: Folder, last: int, report: Callable[[str], None]) -> list[FrozenRequest]:
    """Return the requests of a box, oldest first.

    Args:
        folder: The box.
        last: Number of the last request that belongs to the newest cut.
        report: Called with the description of each file that cannot be read.
    """
    found: dict[tuple[int, ...], tuple[str, str]] = {}
    for name in folder.names():
        if (match := _NAME.fullmatch(name)) is not None:
            key = tuple(map(int, match[1].split(".")))
            if key[0] <= last and len(key) <= _DEPTH:
                found[key] = name, match[2]
    requests = []
    for key in sorted(found):
        if any(key[:length] in found for length in range(1, len(key))):
            continue
        name, signal = found[key]
        try:
            request = _read(folder, name, signal, report)
        except OSError as error:
            report(f"{name}: {error.strerror}")
            continue
        if request is not None:
            requests.append(request)
    return requests


def _read(folder: Folder, name: str, signal: str, report: Callable[[str], None]) -> FrozenRequest | None:
    descriptor = folder.open_file(name, os.O_RDONLY)
    reader = RecordReader(descriptor, signal, Position(0), lambda problem, _: report(f"{name}: {problem}"))
    try:
        size = os.fstat(descriptor).st_size
        if size > LARGEST_FILE:
            report(f"{name}: damaged, it has more than {LARGEST_FILE:,} bytes")
            return None
        start = os.pread(descriptor, len(MAGIC), 0)
        if start != MAGIC:
            report(f"{name}: not a request")
            return None
        return reader.read(size)
    finally:
        reader.close()
