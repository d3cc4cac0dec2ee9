"""SummaryWriter: a bounded queue of points, and a thread that writes them to an event file."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING

from monitel.process.os_threads import Condition, RLock, Thread, start_thread
from monitel.stats.before_flush import run as run_before_flush
from monitel_tensorboard import arguments, process
from monitel_tensorboard.event_file import EventFile
from monitel_tensorboard.point import Charts, Point, checked_step

if TYPE_CHECKING:
    from monitel_tensorboard.chart import Logged

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
    children, monitel's Stats are flushed. Then all open writers are closed, within 5 seconds in total.

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
        dropped: Number of dropped points.
        replaced: Number of points at a step that their tag had reached before.
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
        self.log_dir = arguments.local_dir(log_dir, comment)
        self._purge_step = None if purge_step is None else checked_step("purge_step", purge_step)
        self._max_queue = arguments.max_queue(max_queue)
        self._flush_secs = arguments.seconds("flush_secs", flush_secs)
        self._suffix = arguments.suffix(filename_suffix)
        self._closed = False
        self._start_empty()
        with suppress(OSError):  # the thread tries again, and reports it
            Path(self.log_dir).mkdir(parents=True, exist_ok=True)
        process.after_fork(self._start_in_child)
        process.close_at_exit(self)
        self._start_thread()

    def _start_in_child(self) -> None:
        """Leave the points of the parent to it: readers would show those of one of two files with the same tags."""
        self.log_dir = f"{self.log_dir}/pid-{os.getpid()}"
        self._purge_step = None
        self._start_empty()

    def _start_empty(self) -> None:
        self.dropped = self.replaced = self.failed = 0
        self._changed = Condition(RLock())  # re-entrant: signal handlers and finalizers may add points
        self._queue: deque[Point | Logged] = deque()
        self._batch: list[Point] = []  # taken from the queue, not yet written
        self._added = self._batch_end = self._written = 0  # positions in the sequence of all entries
        self._wanted = self._ended = False
        self._charts = Charts(self._purge_step or 0)
        self._file = EventFile(self.log_dir, self._suffix, self._purge_step)
        self._thread: Thread | None = None

    def add_scalar(
        self, tag: str, scalar_value: float, global_step: float | None = None, walltime: float | None = None
    ) -> None:
        """Add a number to the chart ``tag``.

        Args:
            tag: The chart's name; TensorBoard groups by the part before the first ``/``.
            scalar_value: Anything that ``float()`` accepts, except text. A tensor on a device is read here, which waits
                for the device.
            global_step: The position on the x axis, without its fraction; None is 0, as in torch.
            walltime: Seconds since the Unix epoch; the current time by default.

        Raises:
            TypeError: Not a str, not a real number, not a finite number.
            ValueError: A step beyond 64 bits.
        """
        self.put(Point.scalar(tag, scalar_value, global_step, walltime))

    def add_text(
        self, tag: str, text_string: str, global_step: float | None = None, walltime: float | None = None
    ) -> None:
        """Add a text, shown as Markdown, to ``tag``.

        The arguments, and the errors, are those of :meth:`add_scalar`.
        """
        self.put(Point.text(tag, text_string, global_step, walltime))

    def put(self, entry: Point | Logged) -> None:
        """Append a checked point or event to the queue, for ``add_*`` and :func:`install`."""
        with self._changed:
            if self._closed:
                self.dropped += entry.size
                return
            if len(self._queue) >= max(_QUEUE_LIMIT, 2 * self._max_queue):
                self.dropped += self._queue.popleft().size
            self._queue.append(entry)
            self._added += 1
            if len(self._queue) == self._max_queue and not self._batch:  # a failed slice waits for ``flush_secs``
                self._wake()
            if self._thread is None:
                self._start_thread()

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all points added so far are written to the operating system, at most ``timeout`` seconds.

        Before that, sources such as ``monitel.torch.instrument()`` log the events that they have queued.

        Returns:
            True if they are; dropped points do not matter.
        """
        process.guarded(run_before_flush)
        with self._changed:
            goal = self._added
            self._wake()
            self._changed.wait_for(lambda: self._written >= goal or self._ended, min(timeout, TIMEOUT_MAX))
            return self._written >= goal

    def close(self, timeout: float = 10.0) -> bool:
        """Write all queued points, for at most ``timeout`` seconds, and stop. Idempotent.

        Points that could not be written by then, or are added later, are dropped and counted.

        Returns:
            True if all points were written.
        """
        with self._changed:
            self._closed = True
            self._wake()
            thread = self._thread
        if thread is not None:
            thread.join(min(max(timeout, 0.0), TIMEOUT_MAX))
        elif self._queue:  # the interpreter is ending and starts no more threads
            self._run()
        with self._changed:
            left = len(self._batch) + sum(entry.size for entry in self._queue)
            self.dropped += left
            self._batch = []
            self._queue.clear()
            first, self._ended, self._thread = not self._ended, True, None
            self._changed.notify_all()
        if first and self.dropped:
            message = "%d points for %s were dropped, %d of them by close(); disk errors: %d"
            process.logger.warning(message, self.dropped, self.log_dir, left, self.failed)
        return not left

    def __enter__(self) -> SummaryWriter:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._queue)} queued"
        return f"<{type(self).__name__} {self.log_dir!r}, {state}, {self.dropped} dropped>"

    def _start_thread(self) -> None:
        self._thread = start_thread(self._run, "monitel-tensorboard")  # without one close() writes the points

    def _wake(self) -> None:
        self._wanted = True
        self._changed.notify_all()

    def _run(self) -> None:
        """Write the queue, slice by slice, and wait for further points: the thread's main function."""
        while True:
            written = self._write_slice()
            with self._changed:
                if written and self._queue:
                    continue
                if self._closed:
                    return
                self._changed.wait_for(lambda: self._wanted, self._flush_secs)
                self._wanted = False

    def _write_slice(self) -> bool:
        if not self._batch:  # otherwise the failed slice is retried
            self._batch = self._take()
        try:
            if self._batch or not self._file.started:
                self._file.append(self._batch)
        except Exception as error:
            self.failed += 1
            if self.failed == 1:
                process.logger.warning("cannot write to %s: %r; %s", self.log_dir, error, _CONSEQUENCE)
            return False
        with self._changed:
            self._batch = []
            self._written = self._batch_end
            self._changed.notify_all()
        return True

    def _take(self) -> list[Point]:
        with self._changed:
            entries = [self._queue.popleft() for _ in range(min(_SLICE, len(self._queue)))]
            self._batch_end = self._added - len(self._queue)
        points: list[Point | None] = []
        for entry in entries:
            try:
                points += entry.points(self._charts)
            except Exception:  # an event at a time that no clock shows
                points.append(None)
        placed = [None if point is None else self._charts.add(point) for point in points]
        good = [point for point in placed if point is not None]
        with self._changed:
            self.dropped += len(points) - len(good)
            self.replaced = self._charts.replaced
        return good
