"""SummaryWriter: a bounded queue of points, and a thread that writes them to an event file."""

from __future__ import annotations

import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from monitel.process.failures import warn_once
from monitel.process.os_threads import Condition, RLock, call_in_time
from monitel.process.worker import Worker
from monitel.stats import before_flush
from monitel.variables import at_least, positive
from monitel_tensorboard.event_file import EventFile, Point, logger
from monitel_tensorboard.points import Charts, Recorded, added_point, checked_number, checked_step, given

open_writers: set[SummaryWriter] = set()  # renewed in forked children, and closed at exit

_DAY = 86_400.0
_MAX_QUEUE: Any = at_least(1).check
_SECONDS: Any = positive("a positive number of seconds, at most a day", below=_DAY + 1).check
_URL = re.compile("[^/]{2,}:/")  # a Path has one slash
_SUFFIX = re.compile("[^/\\0\ud800-\udfff]{0,100}")
DISK_S = 1.0  # seconds by which a disk may delay the constructor
_QUEUE_LIMIT = 50_000  # points and events, or twice ``max_queue``
_SLICE = 32  # entries; converting and encoding them holds the GIL for one or two milliseconds
_CONSEQUENCE = (
    "points stay in the queue (the oldest are dropped when it is full) and are retried; "
    "further errors are only counted, in SummaryWriter.failed"
)


class SummaryWriter:
    """Writes scalars and texts for TensorBoard, without torch and TensorFlow.

    ``add_*`` put a point into a queue of 50,000, or twice ``max_queue``, and return: they never wait for the disk, and
    never raise a disk error. A full queue drops its oldest point. ``dropped`` counts these points, those that cannot be
    written before :meth:`close` ends, those that are added after it, those of another kind than the first one of their
    tag, and events that come after a later one.

    TensorBoard's default reader shows one point of a tag at a step, the last one, and a point at a smaller step
    replaces all that follow it.

    One thread per writer accesses the disk. A disk error is counted in ``failed``, and the first one is logged to
    ``monitel_tensorboard``; the points stay in the queue and are retried, even if ``log_dir`` cannot be created.

    Thread-safe. In a forked child the writer starts empty, with counts of 0, and writes to a separate folder,
    ``pid-<process id>`` in ``log_dir``, from the first point added there. At exit, including that of multiprocessing
    children, monitel's Stats are flushed. Then all open writers are closed: all of telemetry has 2 seconds.

    The arguments are those of torch's writer.

    Args:
        log_dir: A local folder; it is created if missing. By default ``runs/<date>_<host><comment>``.
        comment: The end of the default folder's name.
        purge_step: The first step of a run that is resumed in its folder; later points of earlier files are hidden.
        max_queue: The number of points in the queue at which they are written early.
        flush_secs: Seconds between writes, and between attempts after a disk error.
        filename_suffix: The end of the event file's name.

    Attributes:
        log_dir: The folder, as an absolute path.
        failed: Number of failed attempts to write.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: A URL as log_dir, ``max_queue`` below 1, ``flush_secs`` of 0 or more than a day.

    Example:
        >>> from monitel_tensorboard import SummaryWriter
        >>> with SummaryWriter("runs/first") as writer:
        ...     for step in range(100):
        ...         writer.add_scalar("loss", 1 / (step + 1), step)
        >>> writer.dropped
        0
    """

    def __init__(  # noqa: PLR0917  torch's
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 25_000,
        flush_secs: float = 1.0,
        filename_suffix: str = "",
    ) -> None:
        self.log_dir = local_dir(log_dir, comment)
        self._purge_step = None if purge_step is None else checked_step("purge_step", purge_step)
        check(max_queue, flush_secs, filename_suffix)
        self._max_queue, self._flush_secs, self._suffix = max_queue, float(flush_secs), filename_suffix
        self._closed = False
        self._start_empty()
        with suppress(OSError):  # the thread tries again, and reports it
            call_in_time(lambda: Path(self.log_dir).mkdir(parents=True, exist_ok=True), DISK_S)
        open_writers.add(self)
        self._worker.start()

    def _start_in_child(self) -> None:
        """Leave the points of the parent to it: readers would show those of one of two files with the same tags."""
        self.log_dir = f"{self.log_dir}/pid-{os.getpid()}"
        self._purge_step = None
        self._start_empty()

    def _start_empty(self) -> None:
        self._lost = self.failed = 0
        self._changed = Condition(RLock())  # re-entrant: signal handlers and finalizers may add points
        self._queue: deque[tuple[Point | Recorded, int]] = deque()  # each with its number of points
        self._batch: list[Point] = []  # taken from the queue, not yet written
        self._added = self._written = 0  # positions in the sequence of all entries
        self._ended = False
        self._charts = Charts(self._purge_step or 0)
        self._file = EventFile(self.log_dir, self._suffix, self._purge_step)
        self._worker = Worker("monitel-tensorboard", self._write, first=0.0, ended=self._write)

    @property
    def dropped(self) -> int:
        """Number of dropped points."""
        return self._lost + self._charts.dropped

    @property
    def replaced(self) -> int:
        """Number of points at a step that their tag had reached before."""
        return self._charts.replaced

    def add_scalar(
        self, tag: str, scalar_value: float, global_step: float | None = None, walltime: float | None = None
    ) -> None:
        """Add a number to the chart ``tag``.

        Args:
            tag: The chart's name; TensorBoard groups by the part before the first ``/``.
            scalar_value: Anything that ``float()`` accepts, except text, and an array of one element. A tensor on a
                device is read here, which waits for the device.
            global_step: The position on the x axis, without its fraction; None is 0, as in torch.
            walltime: Seconds since the Unix epoch; the current time by default.

        Raises:
            TypeError: Not a str, not a real number, not a finite number.
            ValueError: A step beyond 64 bits.
        """
        self._put(added_point(tag, checked_number("scalar_value", scalar_value), global_step, walltime))

    def add_text(
        self, tag: str, text_string: str, global_step: float | None = None, walltime: float | None = None
    ) -> None:
        """Add a text, shown as Markdown, to ``tag``.

        The arguments, and the errors, are those of :meth:`add_scalar`.
        """
        if not isinstance(text_string, str):
            raise TypeError(f"text_string must be a str, got {given(text_string)}; use add_scalar for a number")
        self._put(added_point(tag, text_string, global_step, walltime))

    def _put(self, entry: Point | Recorded, size: int = 1) -> None:
        if self._closed and isinstance(entry, Point) and not entry.recorded:  # of add_*
            warn_once(logger, "points that are added after close() are dropped (further ones are only counted)")
        with self._changed:
            if self._closed:
                self._lost += size
                return
            if len(self._queue) >= max(_QUEUE_LIMIT, 2 * self._max_queue):
                self._lost += self._queue.popleft()[1]
            self._queue.append((entry, size))
            self._added += 1
            if len(self._queue) == self._max_queue and not self._batch:  # a failed slice waits for ``flush_secs``
                self._worker.wake()
            self._worker.start()  # if CPython refuses it, close() writes the points

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all points added so far are written to the operating system, at most ``timeout`` seconds.

        Before that, sources such as ``monitel.torch.instrument()`` log the events that they have queued.

        Returns:
            True if they are; dropped points do not matter.
        """
        guarded(before_flush.run)
        with self._changed:
            goal = self._added
            self._worker.wake()
            self._changed.wait_for(lambda: self._written >= goal or self._ended, min(timeout, _DAY))
            return self._written >= goal

    def close(self, timeout: float = 10.0) -> bool:
        """Write all queued points, for at most ``timeout`` seconds, and stop. Idempotent.

        Points that could not be written by then, or are added later, are dropped and counted.

        Returns:
            True if all points were written.
        """
        with self._changed:
            self._closed = True
        if not self._ended:
            self._worker.stop()
            if self._worker.started:
                self._worker.join(time.monotonic() + min(timeout, _DAY))
            elif self._queue:  # the interpreter is ending and starts no more threads
                self._write()
        with self._changed:
            left = len(self._batch) + sum(size for _, size in self._queue)
            self._lost += left
            self._batch = []
            self._queue.clear()
            first, self._ended = not self._ended, True
            self._changed.notify_all()
        open_writers.discard(self)
        if first and self.dropped:
            message = "%d points for %s were dropped, %d of them by close(); disk errors: %d"
            logger.warning(message, self.dropped, self.log_dir, left, self.failed)
        return not left

    def __enter__(self) -> SummaryWriter:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._queue)} queued"
        return f"<{type(self).__name__} {self.log_dir!r}, {state}, {self.dropped} dropped>"

    def _write(self) -> float:
        """Write the queue, slice by slice, until it is empty or the disk fails; return the seconds to wait then."""
        while self._write_slice() and self._queue:
            pass
        return self._flush_secs

    def _write_slice(self) -> bool:
        if not self._batch:  # otherwise the failed slice is retried
            self._batch = self._take()
        try:
            if self._batch or not self._file.started:
                self._file.append(self._batch)
        except Exception as error:
            self.failed += 1
            if self.failed == 1:
                logger.warning("cannot write to %s: %r; %s", self.log_dir, error, _CONSEQUENCE)
            return False
        with self._changed:
            self._batch = []
            self._written = self._added - len(self._queue)  # all that were taken out of the queue
            self._changed.notify_all()
        return True

    def _take(self) -> list[Point]:
        with self._changed:
            entries = [self._queue.popleft()[0] for _ in range(min(_SLICE, len(self._queue)))]
        return [point for entry in entries for point in self._charts.add(entry)]


def guarded(call: Callable[[], object]) -> None:
    """Call a function of monitel, and log an exception of an event handler, which no caller could catch."""
    try:
        call()
    except Exception:
        logger.warning("an event handler failed", exc_info=True)


def local_dir(log_dir: object, comment: str = "") -> str:
    """Return ``log_dir`` as an absolute path, so that a later ``os.chdir`` has no effect; a new one by default."""
    if log_dir is None or log_dir == "":
        log_dir = Path("runs", f"{datetime.now().astimezone():%b%d_%H-%M-%S}_{socket.gethostname()}{comment}")
    if not isinstance(log_dir, (str, os.PathLike)):
        raise TypeError(f"log_dir must be a str or a path, got {given(log_dir)}")
    path = os.fsdecode(log_dir)
    if _URL.match(path):
        raise ValueError(f"log_dir must be a local folder, got {path!r}; mount it, or copy the files later")
    return str(Path(path).absolute())


def check(max_queue: object, flush_secs: object, filename_suffix: object = "", expiry_secs: object = 1.0) -> None:
    """Raise the error of a constructor if an argument has a wrong type (TypeError) or value (ValueError)."""
    _MAX_QUEUE("max_queue", max_queue)
    _SECONDS("flush_secs", flush_secs)
    _SECONDS("expiry_secs", expiry_secs)
    if not isinstance(filename_suffix, str) or not _SUFFIX.fullmatch(filename_suffix):
        error = ValueError if isinstance(filename_suffix, str) else TypeError
        allowed = "a text of at most 100 characters without '/'"
        raise error(f"filename_suffix must be {allowed}, got {filename_suffix!r:.80}")
