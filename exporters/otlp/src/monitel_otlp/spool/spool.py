"""The spool: requests on disk that memory cannot hold or that no backend accepts, in one folder per process.

The folder holds the segments of each signal (see :mod:`monitel_otlp.spool.segments`), a lock, and ``rejected/``.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

from monitel_otlp.messages.request import SIGNALS, FrozenRequest
from monitel_otlp.spool import rejected
from monitel_otlp.spool.folder import Folder, SpoolError, make_folder, remove_folders
from monitel_otlp.spool.lock import FolderLock, acquire
from monitel_otlp.spool.request_segment import packed_bytes
from monitel_otlp.spool.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from monitel_otlp.spool.raw_segment import MakeDecoder

__all__ = ["Spool", "SpoolError"]

_log = logging.getLogger("monitel.otlp")


class Spool:
    """The spool of this process or of an ended process. One process at a time can use the folder.

    Beyond ``limit_bytes`` the oldest requests are dropped; :meth:`take_lost` counts them as ``spool_full``, and
    unreadable requests as ``disk``. Not thread-safe. A forked child must call :meth:`abandon`.

    Args:
        folder: The folder. It is made with the first request, with access only for its owner.
        limit_bytes: Limit for the size of all segments.
        limited: Signals to which the limit applies. A signal without an endpoint should not be among them.
        decoders: Decoders of raw segments, by the first field of their header; by default the decoders of
            ``monitel_otlp.raw.decoders``.
        foreign: Accept a folder that belongs to another user, or that other users can write to.
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
        """Size of the requests on disk that are not delivered yet, bytes."""
        return sum(queue.size_bytes for queue in self._queues.values())

    @property
    def problems(self) -> int:
        """Number of segments, blocks and records that could not be read."""
        return sum(queue.problems for queue in self._queues.values())

    def items(self, signal: str) -> int:
        """Return the number of items of a signal that this process has written and that were not removed."""
        return self._queues[signal].items

    def take_lost(self, signal: str) -> dict[str, int]:
        """Return the number of items that were lost since the last call, by reason: ``disk`` and ``spool_full``."""
        lost = self._queues[signal].lost
        taken = {reason: items for reason, items in lost.items() if items}
        lost.clear()
        return taken

    def append(self, request: FrozenRequest) -> None:
        """Append a request to those of its signal.

        Raises:
            OSError: The write failed, and nothing has changed. The next attempt may succeed.
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
        """Append raw items to the requests of a signal.

        Args:
            signal: Signal of the items.
            header: Plain values for the decoder. The first field names the kind of the items.
            blocks: Results of :func:`monitel_otlp.spool.raw_segment.encode_blocks`.

        Returns:
            The number of items that were written. The rest is lost, because of the limit or a full disk;
            :meth:`take_lost` does not count it.

        Raises:
            OSError: No item could be written.
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
        """Return the oldest request of a signal; None if there is none. Never raises OSError."""
        return self._queues[signal].oldest()

    def remove_oldest(self, signal: str) -> bool:
        """Remove the request that :meth:`oldest` has returned. Never raises OSError.

        Returns:
            False if there was no request.
        """
        return self._queues[signal].remove_oldest()

    def requests(self) -> Iterator[FrozenRequest]:
        """Yield every request that is not delivered yet, oldest first, signal by signal. Nothing is removed."""
        for queue in self._queues.values():
            yield from queue

    def peek(self, signals: Iterable[str] = SIGNALS) -> Iterator[FrozenRequest]:
        """Yield the requests of a folder that another process may be using, without locking it.

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

    def warn_once(self, error: Exception) -> None:
        """Log an error of a write to the spool, once."""
        if not self._warned:
            self._warned = True
            _log.warning("the spool in %s cannot be written: %s", self.folder, error)

    def set_aside(self, request: FrozenRequest, reason: str) -> Path:
        """Write a request that a backend has refused permanently, and the reason, to ``rejected/``.

        Returns:
            Path of the message. The reason is in a file beside it.

        Raises:
            OSError: The write failed.
            SpoolError: The folder cannot be used.
        """
        written: list[Path] = []
        self._write(lambda: written.append(rejected.set_aside(self._folder, request, reason)))
        return written[0]

    def take_back(self) -> None:
        """Append the requests in ``rejected/`` to the spool again, oldest first.

        Raises:
            OSError: A write failed. The other requests are still in ``rejected/``.
            SpoolError: Another process uses the folder, or it is unsafe.
        """
        self.load()
        rejected.take_back(self._folder, self.append)

    def load(self) -> None:
        """Open and lock the folder, and load its segments.

        Raises:
            SpoolError: The folder is missing or unsafe, or another process uses it.
            OSError: The folder cannot be read, or the lock cannot be written.
        """
        if self._opened is None:
            self._take_over(Folder.open(self.folder, foreign=self._foreign))

    def close(self) -> None:
        """Release the folder, and remove it if it is empty. Idempotent.

        Segments that have disappeared are counted as lost first.
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
        """Close the files without any other effect. For a forked child, whose parent keeps the lock."""
        for queue in self._queues.values():
            queue.close()
        if self._lock is not None:
            self._lock.abandon()
        if self._opened is not None:
            self._opened.close()
        self._opened = self._lock = None

    @property
    def _folder(self) -> Folder:
        assert self._opened is not None  # because the folder is open
        return self._opened

    def _make_queue(self, signal: str) -> Segments:
        return Segments(signal, lambda: _default_decoders() if self._decoders is None else self._decoders)

    def _write(self, action: Callable[[], object]) -> None:
        """Run an action with the folder open. A folder that has been removed is made again.

        If the first write fails, no folder and no file remain.
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
        """Open the folder, and make it if it is missing.

        Returns:
            The new folders.
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
        """Lock a folder and load its segments; close it if that fails."""
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
        """Drop the oldest segments of the largest signal until ``size`` more bytes are within the limit.

        Returns:
            False if ``size`` exceeds the limit of an empty spool.
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
    from monitel_otlp.raw.decoders import decoders  # late: it imports every mapping, and raw segments are rare

    return decoders()
