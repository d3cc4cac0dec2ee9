"""install: writes monitel's Stats and Events to TensorBoard."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import monitel
from monitel.blackbox.silent import hold, release
from monitel.process.os_threads import Event as Signal
from monitel.process.os_threads import Thread, start_thread
from monitel.process.run_events import end_if_due, enter, leave
from monitel.stats.before_flush import register, unregister
from monitel_tensorboard import arguments, process
from monitel_tensorboard.chart import LedgerCharts, Logged
from monitel_tensorboard.writer import SummaryWriter

if TYPE_CHECKING:
    import os

    from monitel import Event

_PAUSE = 0.001  # seconds between windows that are closed, so that the training loop never waits long for the GIL


class Installation:
    """The registration of one :func:`install`; leaving ``with install(...):`` uninstalls.

    Attributes:
        writer: The :class:`SummaryWriter`, for further points, and for the number of dropped points.
    """

    def __init__(self, writer: SummaryWriter, expiry_secs: float) -> None:
        self.writer = writer
        self._expiry_secs = expiry_secs
        self._active = True
        self._ledger = LedgerCharts(writer.put)
        self._start_empty()
        process.after_fork(self._start_empty)
        process.call_at_exit(self._write_last)
        self._start_thread()
        self._handle = monitel.register_event_handler(self._handle_event)
        hold(self)
        enter(self)

    def uninstall(self, timeout: float = 10.0) -> bool:
        """Flush every Stat, write all queued points and stop. Idempotent.

        Args:
            timeout: The most seconds to wait for the disk.

        Returns:
            True if all points were written.
        """
        if self._active:
            self._write_last()
            self._active = False
            unregister(self._write_ledger)
            process.guarded(monitel.flush)
            leave(self, sys.exc_info()[1])
            end_if_due()
            monitel.unregister_event_handler(self._handle)
            self._stop.set()
        closed = self.writer.close(timeout)
        release(self)
        return closed

    def __enter__(self) -> Installation:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        leave(self, error)
        self.uninstall()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'active' if self._active else 'uninstalled'}, {self.writer!r}>"

    def _handle_event(self, event: Event) -> None:
        self.writer.put(Logged.now(event))
        if self._thread is None:  # the first event of a forked child
            self._start_thread()

    def _write_ledger(self) -> None:
        process.guarded(self._ledger.write_if_due)

    def _write_last(self) -> None:
        if self._active:
            process.guarded(self._ledger.write)

    def _start_empty(self) -> None:
        """Start without a thread, at construction and in a forked child, which forgets what runs before a flush."""
        self._stop = Signal()
        self._thread: Thread | None = None
        self._ledger.start_again()
        if self._active:
            register(self._write_ledger)

    def _start_thread(self) -> None:
        close = partial(_close_expired_windows, self._stop, self._expiry_secs)
        self._thread = start_thread(close, "monitel-tensorboard-expiry")


def _close_expired_windows(stop: Signal, expiry_secs: float) -> None:
    while not stop.wait(expiry_secs):
        process.guarded(lambda: monitel.close_expired_windows(lambda: stop.wait(_PAUSE)))


def install(
    log_dir: str | os.PathLike[str] | None = None,
    *,
    max_queue: int = 25_000,
    flush_secs: float = 1.0,
    expiry_secs: float = 2.0,
    purge_step: int | None = None,
) -> Installation:
    """Write every Stat and Event of monitel to TensorBoard, from now on.

    * A closed window gives a scalar for each of the Stat's aggregations, ``loss/mean{split=val}``, at the window's end
      and the step of its last sample. Windows of a Stat at one step are merged: the last point has all samples.
    * Each number of :func:`monitel.log` gives one scalar, ``accuracy{split=val}``, at the step of the call.
    * All calls of :func:`monitel.config` give one table, the text ``run.config``, and one set of hyperparameters.
    * The :func:`monitel.ledger` gives ``training.time/data`` and so on, the seconds so far, and ``training.goodput``.
    * Any other event gives a text, ``events/<event>``, at the current step. Events of a name at one step share it.

    If no step was set, the points of a tag are numbered. If steps go back, see :class:`SummaryWriter`.

    Each run has a new folder: if ``log_dir`` has the event files of another run, it is ``log_dir/run-2`` and so on.
    Rank 0 writes to the folder of the run, and each other rank to ``rank-<rank>`` in it.

    The training loop only queues events; for slow or failing disks, forks and the exit see :class:`SummaryWriter`. In a
    forked child, idle windows are closed from its first event on.

    Args:
        log_dir: A local folder, by default ``runs/<date>_<host>``.
        max_queue: The number of points and events in the queue at which they are written early.
        flush_secs: Seconds between writes.
        expiry_secs: Seconds between checks for expired windows, so that idle Stats are written, too.
        purge_step: The first step of a run that is resumed in its folder, ``log_dir``.

    Raises:
        TypeError: As :class:`SummaryWriter`.
        ValueError: As :class:`SummaryWriter`, and ``expiry_secs`` as ``flush_secs``.

    Example:
        >>> import monitel, monitel_tensorboard
        >>> with monitel_tensorboard.install("runs/second") as installed:
        ...     loss = monitel.stat("loss", attributes={"split": "val"})
        ...     for step in range(100):
        ...         monitel.set_step(step)
        ...         loss.add(1 / (step + 1))
        >>> installed.writer.dropped
        0
    """
    expiry_secs = arguments.seconds("expiry_secs", expiry_secs)
    max_queue = arguments.max_queue(max_queue)
    flush_secs = arguments.seconds("flush_secs", flush_secs)
    folder = arguments.run_dir(arguments.local_dir(log_dir), resumed=purge_step is not None)
    return Installation(SummaryWriter(folder, "", purge_step, max_queue, flush_secs), expiry_secs)
