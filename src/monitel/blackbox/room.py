"""The memory that the journals of a process use, in the box and in anonymous memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from monitel.process.os_threads import RLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.blackbox.folder import Folder

_PART = 100  # one part in so many of the free space
_RETRY_S = 1.0
_LEAST = 1 << 16  # bytes for segments, whatever the other files take


class Room:
    """Counts the bytes of segments, which are few and large. Thread-safe.

    Args:
        box_bytes: Bytes that the box may use, and at most 1 % of the space that its file system has for it.
        memory_bytes: Bytes of anonymous memory, beyond which the oldest segments are dropped.

    Attributes:
        box: The box; None without one.
        mapped: The box is in memory, so that its files can be mapped.
        used: Bytes of segments in the box.
        memory: Bytes of segments in anonymous memory.
        problem: Why the last segment was not made in the box; empty if it was.
        others: Returns the bytes of the other files in the box, which are never refused: segments get the rest, or
            64 KiB.
    """

    def __init__(self, box_bytes: int = 16 << 20, memory_bytes: int = 64 << 20) -> None:
        self.box: Folder | None = None
        self.mapped = True
        self.used = self.memory = 0
        self.problem = ""
        self.others: Callable[[], int] = lambda: 0
        self._limit = self._box_bytes = box_bytes
        self._memory_bytes = memory_bytes
        self._not_before_s = 0.0
        self._lock = RLock()

    def claim(self, size: int) -> bool:
        """Return True if the box may grow by so many bytes, which count from now on.

        A refusal for size is not a failure: a smaller segment may be asked for at once.
        """
        with self._lock:
            if self.box is None or time.monotonic() < self._not_before_s:
                return False
            try:
                space = self.box.space()
            except OSError as error:
                self.refuse(error)
                return False
            free = space.f_bavail * space.f_frsize
            others = self.others()
            limit = min(self._box_bytes, (free + self.used + others) // _PART)
            self._limit = max(limit - others, min(limit, _LEAST))
            self.problem = "it is full" if self.used + size > self._limit else ""
            if self.problem:
                return False
            self.used += size
            return True

    def release(self, size: int) -> None:
        """Note that the box has shrunk."""
        with self._lock:
            self.used -= size

    def note_memory(self, size: int) -> None:
        """Note that anonymous memory has grown, or shrunk."""
        with self._lock:
            self.memory += size

    def refuse(self, error: Exception) -> None:
        """Refuse the box for a second, because a file could not be made or written."""
        self.problem = str(error)
        self._not_before_s = time.monotonic() + _RETRY_S

    def renew(self) -> None:
        """Forget the box of the parent, and its memory. In a forked child."""
        self.box, self.used, self.memory, self._lock = None, 0, 0, RLock()

    @property
    def is_short(self) -> bool:
        """True if segments should be moved to the disk at once."""
        return self.memory > 0 or self.used > self._limit // 2

    @property
    def is_exceeded(self) -> bool:
        """True if something has to be dropped."""
        return self.memory > self._memory_bytes
