"""install: writes monitel's Stats and Events to TensorBoard."""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import Event as Signal
from threading import Thread
from typing import TYPE_CHECKING

import monitel
from monitel.before_flush import register, unregister
from monitel.run_events import end_if_due, enter, leave
from monitel_tensorboard import arguments, process
from monitel_tensorboard.chart import Logged
from monitel_tensorboard.configuration import LoggedConfig
from monitel_tensorboard.ledger import LedgerCharts
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
        return self.writer.close(timeout)

    def __enter__(self) -> Installation:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        leave(self, error)
        self.uninstall()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'active' if self._active else 'uninstalled'}, {self.writer!r}>"

    def _handle_event(self, event: Event) -> None:
        self.writer.put(LoggedConfig(event) if isinstance(event, monitel.RunConfig) else Logged.now(event))
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
        thread = Thread(
            target=_close_expired_windows,
            args=(self._stop, self._expiry_secs),
            name="monitel-tensorboard-expiry",
            daemon=True,
        )
        with suppress(RuntimeError):  # no thread can start at exit, when every window is closed anyway
            thread.start()
            self._thread = thread


def _close_expired_windows(stop: Signal, expiry_secs: float) -> None:
    while not stop.wait(expiry_secs):
        process.guarded(lambda: monitel.close_expired_windows(lambda: stop.wait(_PAUSE)))


def install(
    log_dir: str | os.PathLike[str],
    *,
    max_queue: int = 50_000,
    flush_secs: float = 1.0,
    expiry_secs: float = 2.0,
) -> Installation:
    """Write every Stat and Event of monitel to TensorBoard, from now on.

    * A closed window gives one scalar for each of the Stat's aggregations, at the window's end. The tag is
      the name, with the Stat's attributes: ``loss.mean``, ``loss.mean{split=val}``.
    * Each number of :func:`monitel.log` gives one scalar at the step of the call, even if steps go back. The tag is the
      name, with the attributes of the call: ``accuracy{split=val}``.
    * The configuration of :func:`monitel.config` gives a table, the text ``run.config``, and hyperparameters.
    * The seconds of each activity of :func:`monitel.ledger` so far give a scalar each, ``training.time/data``, and the
      goodput gives ``training.goodput``: from the first step on, at first every few seconds and later every minute, and
      at the end.
    * Any other event gives one point for each item of its data, at ``<event>/<key>``: numbers are scalars,
      bools are 0 and 1, strings are texts. An event without data gives no point.
    * The step is that of :func:`monitel.set_step`: the step of the window's last sample, or of the event. If no step
      was set, the points of a tag are numbered. The steps of a tag never fall: if ``set_step`` goes back, they stay
      the same. Therefore install again, with another ``log_dir``, for another run.

    The training loop only queues events; for slow or failing disks, forks and the exit see :class:`SummaryWriter`. In a
    forked child, idle windows are closed from its first event on.

    Args:
        log_dir: A local folder; it is created if missing.
        max_queue: The most points and events in the queue.
        flush_secs: Seconds between writes.
        expiry_secs: Seconds between checks for expired windows, so that idle Stats are written, too.

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
    return Installation(SummaryWriter(log_dir, max_queue=max_queue, flush_secs=flush_secs), expiry_secs)
