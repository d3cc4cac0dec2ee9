"""Requests on disk, while memory cannot hold them or no backend takes them: a folder for each process.

It holds the segments of each signal (see :mod:`monitel_otlp.spool.segments`), a lock, and ``rejected/``.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

from monitel_otlp.request import SIGNALS, FrozenRequest
from monitel_otlp.spool import rejected
from monitel_otlp.spool.folder import Folder, SpoolError, make_folder, remove_folders
from monitel_otlp.spool.lock import FolderLock, acquire
from monitel_otlp.spool.records import packed_bytes
from monitel_otlp.spool.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from monitel_otlp.spool.raw import MakeDecoder

__all__ = ["Spool", "SpoolError"]

_log = logging.getLogger("monitel.otlp")


class Spool:
    """The spool of one process, or of one that has ended, in one folder that one process at a time may use.

    Beyond ``limit_bytes`` the oldest requests are dropped; :meth:`take_lost` counts them as ``spool_full``, and
    unreadable ones as ``disk``. Only one thread at a time may call it. A forked child must call :meth:`abandon`.

    Args:
        folder: Folder, made with the first request, for its owner alone.
        limit_bytes: Limit for the size of all segments.
        limited: Signals that the limit binds. One that has no endpoint should not be among them.
        decoders: Decoders of raw segments, by the first field of their header; by default those of
            ``monitel_otlp.raw``.
        foreign: Use a folder even if it belongs to another user, or others can write to it.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int | None = None,
        limited: Iterable[str] = SIGNALS,
        decoders: Mapping[str, MakeDecoder] | None = None,
        *,
        foreign: bool = False,
    ) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._limited = frozenset(limited)
        self._decoders = decoders
        self._foreign = foreign
        self._opened: Folder | None = None
        self._lock: FolderLock | None = None
        self._warned = False
        self._queues = {signal: self._make_queue(signal) for signal in SIGNALS}

    @property
    def size_bytes(self) -> int:
        """Bytes on disk that are still to be delivered."""
        return sum(queue.size_bytes for queue in self._queues.values())

    @property
    def problems(self) -> int:
        """Number of segments, blocks and records that could not be read."""
        return sum(queue.problems for queue in self._queues.values())

    def items(self, signal: str) -> int:
        """Return the items of a signal that this process has written and that are still there."""
        return self._queues[signal].items

    def take_lost(self, signal: str) -> dict[str, int]:
        """Return the items that were lost since the last call, by reason: ``disk`` and ``spool_full``."""
        lost = self._queues[signal].lost
        taken = {reason: items for reason, items in lost.items() if items}
        lost.clear()
        return taken

    def append(self, request: FrozenRequest) -> None:
        """Put a request behind the others of its signal.

        Raises:
            OSError: The disk did not take it; nothing has changed, and the next attempt may succeed.
            SpoolError: The folder cannot be used.
        """
        queue = self._queues[request.signal]

        def write() -> None:
            if self._make_room(request.signal, packed_bytes(request)):
                queue.append(request)
            else:
                queue.lost["spool_full"] += request.items

        self._write(write)

    def append_raw(self, signal: str, header: Any, blocks: Iterable[tuple[bytes, int]]) -> int:
        """Put items that are not encoded yet behind the requests of a signal.

        Args:
            signal: Signal of the items.
            header: Plain values that the decoder needs; the first field names the kind of the items.
            blocks: Results of :func:`monitel_otlp.spool.raw.encode_block`.

        Returns:
            Items that were written. The rest is lost, because disk or limit are full; :meth:`take_lost` does not count
            it.

        Raises:
            OSError: The disk took nothing.
            SpoolError: The folder cannot be used.
        """
        queue = self._queues[signal]
        remaining = iter(blocks)
        written = 0

        def write() -> None:
            nonlocal written
            written = queue.append_raw(header, remaining, lambda size: self._make_room(signal, size))

        self._write(write)
        return written

    def oldest(self, signal: str) -> FrozenRequest | None:
        """Return the request of a signal that is to go next; None when there is none. Never raises OSError."""
        return self._queues[signal].oldest()

    def remove_oldest(self, signal: str) -> bool:
        """Remove what :meth:`oldest` has returned: it was delivered, or set aside. Never raises OSError.

        Returns:
            False if there was nothing.
        """
        return self._queues[signal].remove_oldest()

    def requests(self) -> Iterator[FrozenRequest]:
        """Yield every request still to be delivered, oldest first, signal by signal; nothing is removed."""
        for queue in self._queues.values():
            yield from queue

    def peek(self, signals: Iterable[str] = SIGNALS) -> Iterator[FrozenRequest]:
        """Yield the same from a folder that another process may be using: nothing is locked or taken over.

        Raises:
            SpoolError: The folder is unsafe.
            OSError: The folder cannot be read.
        """
        if not self.folder.exists() and not self.folder.is_symlink():
            return
        with closing(Folder.open(self.folder, foreign=self._foreign)) as folder:
            for signal in signals:
                with closing(self._make_queue(signal)) as queue:
                    queue.load(folder)
                    yield from queue
                    self._queues[signal].problems += queue.problems

    def complain(self, error: Exception) -> None:
        """Log, once, that the disk does not take what it is given."""
        if not self._warned:
            self._warned = True
            _log.warning("the spool in %s cannot be written: %s", self.folder, error)

    def set_aside(self, request: FrozenRequest, reason: str) -> Path:
        """Keep a request that a backend will never take, with its answer, in ``rejected/``.

        Returns:
            Path of the message; the answer is beside it.

        Raises:
            OSError: The disk did not take it.
            SpoolError: The folder cannot be used.
        """
        written: list[Path] = []
        self._write(lambda: written.append(rejected.set_aside(self._folder, request, reason)))
        return written[0]

    def take_back(self) -> None:
        """Put what was set aside behind the others again, oldest first.

        Raises:
            OSError: The disk did not take it; the rest is still in ``rejected/``.
            SpoolError: Another process uses the folder, or it is unsafe.
        """
        self.load()
        rejected.take_back(self._folder, self.append)

    def load(self) -> None:
        """Take over what a process left in the folder.

        Raises:
            SpoolError: The folder is missing or unsafe, or another process uses it.
            OSError: The folder cannot be read, or the lock cannot be written.
        """
        if self._opened is None:
            self._take_over(Folder.open(self.folder, foreign=self._foreign))

    def close(self) -> None:
        """Let another process have the folder, and remove it if nothing is left in it.

        Segments that have disappeared are counted as lost before.
        """
        if self._opened is None or self._lock is None:
            return
        for queue in self._queues.values():
            queue.check()
            queue.restore_head()
        empty = all(queue.is_empty for queue in self._queues.values())
        for queue in self._queues.values():
            if empty:
                queue.clear()
            queue.close()
        self._lock.release(remove=empty)
        self._opened.close()
        self._opened = self._lock = None
        if empty:
            remove_folders([self.folder])

    def abandon(self) -> None:
        """Close the files and nothing else: in a forked child, whose parent keeps the lock."""
        for queue in self._queues.values():
            queue.close()
        if self._lock is not None:
            self._lock.abandon()
        if self._opened is not None:
            self._opened.close()
        self._opened = self._lock = None

    @property
    def _folder(self) -> Folder:
        assert self._opened is not None  # whoever writes has opened it
        return self._opened

    def _make_queue(self, signal: str) -> Segments:
        return Segments(signal, lambda: _default_decoders() if self._decoders is None else self._decoders)

    def _write(self, action: Callable[[], object]) -> None:
        """Run an action with the folder open; if somebody has removed the folder, make it again.

        Where the first write fails, no folder and no file are left behind.
        """
        made = self._open()
        try:
            try:
                action()
            except FileNotFoundError:
                for queue in self._queues.values():
                    queue.check()
                self.abandon()
                made = self._open()
                action()
        except (OSError, SpoolError):
            if all(queue.is_empty for queue in self._queues.values()):
                self.close()
                remove_folders(made)
            raise

    def _open(self) -> list[Path]:
        """Open the folder, and make it if need be.

        Returns:
            The folders that were made.
        """
        if self._opened is not None:
            return []
        made = make_folder(self.folder)
        try:
            self.load()
        except BaseException:
            remove_folders(made)
            raise
        return made

    def _take_over(self, folder: Folder) -> None:
        """Lock a folder and read what is in it; close it if that fails."""
        lock = None
        try:
            lock = acquire(folder)
            for queue in self._queues.values():
                queue.load(folder)
        except BaseException:
            for queue in self._queues.values():
                queue.close()
            if lock is not None:
                lock.release(remove=False)
            folder.close()
            raise
        self._opened, self._lock = folder, lock

    def _make_room(self, signal: str, size: int) -> bool:
        """Drop the oldest segments of the largest signal until so many bytes more are within the limit.

        Returns:
            False if even an empty spool is too small for them.
        """
        if self._limit_bytes is None or signal not in self._limited:
            return True
        limited = [self._queues[each] for each in self._limited]
        while sum(queue.size_bytes for queue in limited) + size > self._limit_bytes:
            largest = max(limited, key=lambda queue: queue.size_bytes)
            if largest.is_empty:
                return False
            largest.lost["spool_full"] += largest.drop_segment()
        return True


def _default_decoders() -> Mapping[str, MakeDecoder]:
    from monitel_otlp.raw import decoders  # late: it needs the mappings of every signal, and raw segments are rare

    return decoders()
