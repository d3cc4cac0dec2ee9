"""The ends of processes that somebody else is the parent of, such as the ranks of torchrun."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING

from monitel.run_folder import Announced, parse_announcement, start_time

if TYPE_CHECKING:
    from collections.abc import Callable

_EXIT_CODE = 49  # index of the exit code in /proc/PID/stat, after the name of the program
_ZOMBIE = b"Z"
_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info of Linux 6.13: mask, cgroup, eleven ids, exit code
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11  # PIDFD_GET_INFO
_EXIT = 1 << 3  # PIDFD_INFO_EXIT of Linux 6.15
_TRIES = 3
_MOST = 4096  # processes that are watched


@dataclass(frozen=True)
class ProcessEnd:
    """The end of a process.

    Attributes:
        process: The process.
        status: Its status, as ``os.waitpid`` returns it; None if the system does not show it.
        time_ns: Time of its end, Unix ns.
    """

    process: Announced
    status: int | None
    time_ns: int


class ProcessWatch:
    """Watches the processes that announce themselves, in a thread.

    Args:
        announcements: A descriptor from which the announcements are read; it is closed at the end.
        on_end: Called in the thread with each end.
    """

    def __init__(self, announcements: int, on_end: Callable[[ProcessEnd], object]) -> None:
        self._on_end = on_end
        self._announcements = announcements
        self._rest = b""
        self._lock = Lock()
        self._ends: list[ProcessEnd] = []
        self._watched: dict[int, Announced] = {}  # by pidfd
        self._announced: list[Announced] = []
        self._poll = select.poll()
        self._poll.register(announcements, select.POLLIN)
        self._stopping, self._stopped = os.pipe()
        self._poll.register(self._stopping, select.POLLIN)
        self._thread = Thread(target=self._run, name="monitel-run-processes", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def announced(self) -> list[Announced]:
        """The processes that have announced themselves, in that order."""
        with self._lock:
            return [*self._announced]

    def stop(self) -> list[ProcessEnd]:
        """Stop watching, and return the ends so far, in their order."""
        os.write(self._stopped, b"x")
        self._thread.join()
        for descriptor in (self._announcements, self._stopping, self._stopped, *self._watched):
            os.close(descriptor)
        return self._ends

    def _run(self) -> None:
        stopping = False
        while not stopping:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            stopping = self._stopping in ready
            self._read()
            if stopping:  # also what has ended since
                ready |= {descriptor for descriptor, _ in self._poll.poll(0)}
            now = time.time_ns()
            ended = [(descriptor, now) for descriptor in self._watched if descriptor in ready]
            for descriptor, when in ended:
                self._settle(descriptor, when)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while part := os.read(self._announcements, 65536):
                *lines, self._rest = (self._rest + part).split(b"\n")
                self._rest = self._rest[-64:]
                for line in lines:
                    if (process := parse_announcement(line)) is not None and len(self._watched) < _MOST:
                        self._watch(process)

    def _watch(self, process: Announced) -> None:
        with self._lock:
            self._announced.append(process)
        with suppress(OSError, AttributeError):  # AttributeError: the system has no such descriptors
            descriptor = os.pidfd_open(process.pid)
            if start_time(process.pid) == process.start:  # else the process has ended, and another one has its id
                self._watched[descriptor] = process
                self._poll.register(descriptor, select.POLLIN)
            else:
                os.close(descriptor)

    def _settle(self, descriptor: int, time_ns: int) -> None:
        process = self._watched.pop(descriptor)
        self._poll.unregister(descriptor)
        self._ends.append(ProcessEnd(process, _status(process, descriptor), time_ns))
        os.close(descriptor)
        self._on_end(self._ends[-1])


def _status(process: Announced, descriptor: int) -> int | None:
    """Return the status of a process that has ended, before or after its parent has taken it."""
    for _ in range(_TRIES):  # its parent may take the status between the two looks
        for status in (_status_of_zombie(process), _status_of_reaped(descriptor)):
            if status is not None:
                return status
    return None


def _status_of_zombie(process: Announced) -> int | None:
    try:
        with open(f"/proc/{process.pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    zombie = len(fields) > _EXIT_CODE and fields[0] == _ZOMBIE and fields[19].decode() == process.start
    return int(fields[_EXIT_CODE]) if zombie else None


def _status_of_reaped(descriptor: int) -> int | None:
    """Return the status that the kernel keeps for the descriptor; None before Linux 6.15."""
    info = bytearray(_INFO.size)
    struct.pack_into("=Q", info, 0, _EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info, True)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(bytes(info))
    return status if mask & _EXIT else None
