"""The memory that a black box may use, so that the training job never lacks it."""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitel.os_threads import RLock
from monitel_otlp.config.memory_limit import memory_left

if TYPE_CHECKING:
    from monitel_otlp.spool.folder import Folder

_PAGE = mmap.PAGESIZE
_STEP = 64 << 10  # bytes between two looks at the machine
_SHARE = 100  # the box may use one part in so many of the free space
_FREE_FILES = 1_000  # files that the file system can still hold
_PAUSE = 1.0  # seconds without another look, after the machine had no room

#: Seconds to wait for a lock of a box. A signal handler may have interrupted the thread that holds it, and wait for
#: this thread while it shuts telemetry down.
PATIENCE = 0.2


@dataclass(frozen=True)
class Allowance:
    """The bytes that a box may use, at the moment.

    Attributes:
        bytes: The number of bytes.
        reason: The limit that determines it.
    """

    bytes: int
    reason: str


class Room:
    """Counts the bytes of a black box, and refuses those for which there is no room. Thread-safe.

    A box may use ``size`` bytes, but at most 1 % of the free space of its file system, and nothing where the memory of
    a cgroup becomes scarce: 16 MiB and 5 % of each limit are left to the job. The machine is looked at whenever the
    box has grown by another 64 KiB, so most calls only add and compare.

    Args:
        folder: The box, or the folder that holds it.
        size: Bytes that the box may use.
    """

    def __init__(self, folder: Folder, size: int) -> None:
        self._folder = folder
        self._size = size
        self._claimed = 0
        self._granted = 0  # bytes that need no further look at the machine
        self._next_look = 0.0  # time before which a refusal is repeated without a look
        self._lock = RLock()  # events may be emitted in signal handlers

    @property
    def claimed(self) -> int:
        """Bytes that are in use."""
        return self._claimed

    def claim(self, size: int) -> bool:
        """Return True if the box may use so many more bytes, which count as used until :meth:`release`.

        To be called before a file grows. A refusal changes nothing. Never raises.
        """
        locked = self._lock.acquire(timeout=PATIENCE)  # without it the count is not exact, which is harmless
        try:
            wanted = self._claimed + size
            if wanted > self._granted and not self._grow(wanted):
                return False
            self._claimed += size  # a signal handler may have claimed meanwhile
            return True
        finally:
            if locked:
                self._lock.release()

    def release(self, size: int) -> None:
        """Count so many bytes as free again, after a file was removed or truncated."""
        locked = self._lock.acquire(timeout=PATIENCE)  # without it the count is not exact, which is harmless
        try:
            self._claimed = max(0, self._claimed - size)
            # The next step is kept: a box whose size changes by little around a step does not look each time.
            self._granted = min(self._granted, _round_up(self._claimed) + _STEP)
        finally:
            if locked:
                self._lock.release()

    def allowance(self) -> Allowance:
        """Return the number of bytes that the box may use at the moment, those in use included. Never raises."""
        try:
            space = self._folder.space()
        except OSError as error:
            return Allowance(0, f"the file system does not report its free space: {error.strerror}")
        free = space.f_bavail * space.f_frsize
        limits = [
            Allowance(self._size, "black_box_size"),
            Allowance((free + self._claimed) // _SHARE, f"1 % of the {free} bytes that are free in the file system"),
        ]
        if space.f_files and space.f_favail < _FREE_FILES:
            limits.append(Allowance(0, f"the file system can hold only {space.f_favail} more files"))
        if (left := memory_left()) is not None:
            limits.append(Allowance(max(0, left.bytes) + self._claimed, f"memory limit of {left.cgroup}"))
        return min(limits, key=lambda each: each.bytes)

    def _grow(self, wanted: int) -> bool:
        """Look at the machine, and return True if there is room."""
        now = time.monotonic()
        if wanted > self._size or now < self._next_look:
            return False
        allowed = self.allowance()
        if wanted > allowed.bytes:
            self._next_look = now + _PAUSE
            return False
        self._granted = min(_round_up(wanted), allowed.bytes)
        return True


class Share:
    """A part of the room, for events and requests: it leaves the rest to the cuts. Thread-safe.

    Args:
        room: The room.
        size: Bytes of the part.
    """

    def __init__(self, room: Room, size: int) -> None:
        self._room = room
        self._size = size
        self._claimed = 0
        self._lock = RLock()

    def claim(self, size: int) -> bool:
        """Claim some bytes; see :meth:`Room.claim`."""
        locked = self._lock.acquire(timeout=PATIENCE)  # without it the count is not exact, which is harmless
        try:
            if self._claimed + size > self._size or not self._room.claim(size):
                return False
            self._claimed += size
            return True
        finally:
            if locked:
                self._lock.release()

    def release(self, size: int) -> None:
        """Release some bytes; see :meth:`Room.release`."""
        locked = self._lock.acquire(timeout=PATIENCE)
        try:
            self._claimed -= size
        finally:
            if locked:
                self._lock.release()
        self._room.release(size)


def pages(size: int) -> int:
    """Return the bytes that a file of a size takes in memory."""
    return -(-size // _PAGE) * _PAGE


def _round_up(size: int) -> int:
    return -(-size // _STEP) * _STEP
