"""The ends of processes that somebody else is the parent of, such as the ranks of torchrun."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread

from monitel_run.folder import CHILD, LINE, start_time
from monitel_run.parent import Ended

_EXIT_CODE = 49  # index of the exit code in /proc/PID/stat, after the name of the program
_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info of Linux 6.13: mask, cgroup, eleven ids, exit code
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11  # PIDFD_GET_INFO
_EXIT = 1 << 3  # PIDFD_INFO_EXIT
_MOST = 4096  # processes that are watched
_STOP = "stop"


class ProcessWatch(Thread):
    """Watches the processes that announce themselves, in a thread, by a descriptor that keeps the folder in use."""

    def __init__(self, announcements: int) -> None:
        super().__init__(name="monitel-run-processes", daemon=True)
        self.announced = 0  # number of processes
        self.children = False  # there were children of multiprocessing that are not recorded
        self.begun = Event()  # set at the first announcement
        self.ends: list[Ended] = []  # so far, in their order
        self.news: SimpleQueue[Ended] = SimpleQueue()  # the same, for a thread that waits for them
        self.running: list[Ended] = []  # after stop(): the processes that have not ended
        self._announcements = announcements
        self._rest = ""
        self._watched: dict[int, Ended] = {}  # by pidfd
        self._poll = select.poll()
        self._poll.register(announcements, select.POLLIN)

    def stop(self) -> None:
        """Stop watching. What has ended before is among the ends."""
        os.write(self._announcements, f"{_STOP}\n".encode())
        self.join()

    def run(self) -> None:
        """Watch, until :meth:`stop`."""
        stopping = False
        while not stopping:
            self._poll.poll()
            stopping = self._read()
            for descriptor, _ in self._poll.poll(0):
                if descriptor in self._watched:
                    self._note_end(descriptor)
        self.running = [*self._watched.values()]
        for descriptor in self._watched:
            os.close(descriptor)

    def _read(self) -> bool:
        """Watch the processes that have announced themselves since; return True to stop."""
        lines: list[str] = []
        with suppress(BlockingIOError):
            while part := os.read(self._announcements, 65536):
                *new, self._rest = (self._rest[-64:] + part.decode("ascii", "replace")).split("\n")
                lines += new
        self.children |= f"{CHILD} " in lines
        for pid, start, rank in (found.groups() for found in map(LINE.fullmatch, lines) if found):
            self.announced += 1
            self.begun.set()
            process = Ended(int(pid), start, None, 0, rank)
            with suppress(OSError, AttributeError):  # AttributeError: the system has no such descriptors
                descriptor = os.pidfd_open(process.pid)
                # Otherwise the process has ended, and another one has its id.
                if start_time(process.pid) == process.start and len(self._watched) < _MOST:
                    self._watched[descriptor] = process
                    self._poll.register(descriptor, select.POLLIN)
                else:
                    os.close(descriptor)
        return _STOP in lines

    def _note_end(self, descriptor: int) -> None:
        ended = self._watched.pop(descriptor)._replace(time_ns=time.time_ns())
        self._poll.unregister(descriptor)
        self.ends.append(ended._replace(status=_status(ended, descriptor)))
        os.close(descriptor)
        self.news.put(self.ends[-1])


def _status(process: Ended, descriptor: int) -> int | None:
    """Return the status of a process that has ended: of a zombie, or since Linux 6.15 what its descriptor keeps."""
    with suppress(OSError, IndexError), open(f"/proc/{process.pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        if fields[0] == b"Z" and fields[19].decode() == process.start:
            return int(fields[_EXIT_CODE])
    info = bytearray(_INFO.pack(_EXIT, *[0] * 13))
    with suppress(OSError):
        fcntl.ioctl(descriptor, _GET_INFO, info)
        mask, *_, status = _INFO.unpack(info)
        return int(status) if mask & _EXIT else None
    return None
