"""The delivery of what the processes of ``monitel run`` leave, while its command runs and at the end; the summary.

The ends of the processes, whose parent may be another one such as torchrun, are watched in a separate thread.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX, Event, Thread
from typing import TYPE_CHECKING

from monitel_run.folder import LINE, START, UNRECORDED, kernel_fields, start_time
from monitel_run.parent import Ended

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monitel.blackbox.death import Deaths
    from monitel_otlp.attempts import CommandTelemetry

_LONG = 5.0  # seconds after which the start of the command is logged before its end
_ENDING = 5.0  # seconds for collection and delivery
_SILENT = 1.0  # seconds of these before a message is printed
_EXIT_CODE = 49  # index of the exit code in /proc/PID/stat, after the name of the program
_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info of Linux 6.13: mask, cgroup, eleven ids, exit code
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11  # PIDFD_GET_INFO
_EXIT = 1 << 3  # PIDFD_INFO_EXIT
_MOST = 4096  # processes that are watched
_STOP = "stop"


class Delivery(Thread):
    """Does what may take long or fail. The main thread prints the summary in any case.

    It imports monitel once a process has announced itself, the command takes long, or it has ended.
    """

    def __init__(self, command: Sequence[str], began_ns: int, folder: str, announcements: int) -> None:
        super().__init__(name="monitel-run", daemon=True)
        self._folder, self._facts = Path(folder), (command, began_ns, Path(folder))
        self._long = time.monotonic() + _LONG
        self._end: Ended | None = None
        self._over: SimpleQueue[str] = SimpleQueue()  # ends the wait of finish(): a message, or an empty one
        self._stopped = False
        self._attempts: list[CommandTelemetry] = []  # one of each exporter
        self._problems: list[str] = []
        self._watch = ProcessWatch(announcements)
        self._watch.start()
        self.start()

    def run(self) -> None:
        """Collect and deliver what processes leave, until the end of the command."""
        self._watch.begun.wait(_LONG)
        with suppress(Exception):  # that of an import: the main thread prints it
            from monitel.blackbox.death import Deaths
            from monitel.runs.exporters import load

            deaths = Deaths()
            with self._reported():
                exporters, problems = load()
                self._problems += problems
                self._attempts += [each.attempt(*self._facts, deaths, self._problems) for each in exporters]
            self._deliver(deaths)
        self._over.put("")

    def stop(self) -> bool:
        """Let :meth:`finish` print the summary at once, in a signal handler; return False if it was stopped before."""
        self._over.put("stopped; telemetry that is not delivered stays on disk")
        before, self._stopped = self._stopped, True
        return not before

    def _deliver(self, deaths: Deaths) -> None:
        long, ended = self._long, None
        while ended is None or ended is not self._end:
            try:
                ended = self._watch.news.get(timeout=max(0.0, long - time.monotonic()))
                deaths.observe(*ended[:4])
            except Empty:
                long, ended = TIMEOUT_MAX, None
            for attempt in self._attempts:
                with self._reported():
                    if ended is None:
                        attempt.log_start()
                    elif ended is self._end:
                        attempt.finish(ended, self._watch.ends, recorded=self._watch.announced > 0)
                    else:
                        attempt.collect(observed_only=True)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._problems.append(f"the telemetry of the command could not be finished: {error!r}")

    def finish(self, end: Ended) -> bool:
        """Deliver what is left, for some seconds at most, and print the summary; return False without anything."""
        watch = self._watch
        watch.stop()
        sends = any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in os.environ)
        reports = len(os.listdir(self._folder)) > 1  # beside the FIFO
        if not (watch.announced or watch.children or self._attempts or sends or reports):
            return False
        from monitel.blackbox.death import Deaths
        from monitel.console.summary import print_summary
        from monitel.runs.ended import store_deaths
        from monitel.text import warn

        self._end = end
        watch.news.put(end)
        watch.begun.set()
        try:
            try:
                message = self._over.get(timeout=_SILENT)
            except Empty:
                warn("delivering the remaining telemetry; Ctrl-C stops the delivery, and the rest stays on disk")
                message = self._over.get(timeout=_ENDING - _SILENT)
            if message:
                warn(message)
        except Empty:
            pass
        finally:
            for attempt in self._attempts:
                attempt.stop()
        for problem in self._problems:
            warn(problem)
        deaths = Deaths()  # the thread may still be busy with its own
        for each in (*watch.ends, end):
            deaths.observe(*each[:4])
        store_deaths(self._folder, deaths)
        running = [f"{each.pid}-{each.start}" for each in watch.running]
        print_summary(
            self._folder,
            cause=deaths.cause,
            running=running,
            children=watch.children,
            command=self._facts[0],
        )
        if end.status and watch.ends and all(each.status == 0 for each in watch.ends):
            code = os.waitstatus_to_exitcode(end.status)
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            warn(f"the command failed with {how}, although the processes that were recorded did not")
        return True


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
        self.children |= f"{UNRECORDED} " in lines
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
    fields = kernel_fields(process.pid)
    if fields and fields[0] == "Z" and fields[START] == process.start:
        return int(fields[_EXIT_CODE])
    info = bytearray(_INFO.pack(_EXIT, *[0] * 13))
    with suppress(OSError):
        fcntl.ioctl(descriptor, _GET_INFO, info)
        mask, *_, status = _INFO.unpack(info)
        return int(status) if mask & _EXIT else None
    return None
