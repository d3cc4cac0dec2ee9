"""Requests on disk, while memory cannot hold them or nobody takes them: a folder for each process.

It holds the segments of each signal (see :mod:`monitel_otlp.spool.segments`), a lock, and ``rejected/``.
"""

from __future__ import annotations

import fcntl
import logging
import re
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from monitel_otlp.request import SIGNALS, FrozenRequest
from monitel_otlp.spool.segments import Segments, open_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import FileIO
    from pathlib import Path

_log = logging.getLogger("monitel.otlp")

_SET_ASIDE = re.compile(rf"({'|'.join(SIGNALS)})-\d+-\d+-\d+")  # signal, creation time, items, and which of these


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
        self._queues = {signal: Segments(folder, signal) for signal in SIGNALS}

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
        with open_private(path, "wb") as file:
            file.write(request.body)
        with open_private(path.with_suffix(".txt"), "wb") as file:
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
        lock_file = open_private(self.folder / "lock", "ab")
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock_file.close()
            raise SpoolError(f"{str(self.folder)!r} is in use: its process is running, or another replay is") from None
        self._lock_file = lock_file
        for queue in self._queues.values():
            queue.load()


def _remove_empty(folder: Path) -> None:
    try:
        (folder / "lock").unlink(missing_ok=True)
        folder.rmdir()
    except OSError:
        pass  # something else is in it, rejected requests for instance
