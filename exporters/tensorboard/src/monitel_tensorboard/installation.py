"""install: writes monitel's Stats and Events to TensorBoard, until it is uninstalled or the process ends."""

from __future__ import annotations

import atexit
import multiprocessing.util  # noqa: F401  its exit function is called after ours only if it is registered first
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import monitel
from monitel import Event, run_events
from monitel.blackbox.silent import hold, release
from monitel.process.exit import exit_timeout, finalize_with_children, without_interruption
from monitel.process.failures import warn_once
from monitel.process.fork import register_at_fork
from monitel.process.launcher import launch_attributes
from monitel.process.os_threads import call_in_time, in_main_thread
from monitel.process.sigterm import SigtermHandler, call_at_end, is_default
from monitel.process.worker import Worker, yield_gil
from monitel.stats import before_flush
from monitel.training.counters import GOODPUT, NAME, goodput
from monitel_tensorboard.event_file import Point, claim, logger
from monitel_tensorboard.points import Recorded, has_scalars
from monitel_tensorboard.writer import DISK_S, SummaryWriter, check, guarded, local_dir, open_writers

_ACTIVITY = "training.activity"
_MINUTE_NS = 60 * 10**9
_SHARE = 20  # the first points of the ledger are closer than a minute: each after a twentieth of the elapsed time

_installed: set[Installation] = set()
_sigterm: SigtermHandler | None = None  # of all of them


class Installation:
    """The registration of one :func:`install`; leaving ``with install(...):`` uninstalls.

    Attributes:
        writer: The :class:`SummaryWriter`, for further points, and for the number of dropped points.
    """

    def __init__(self, writer: SummaryWriter, expiry_secs: float) -> None:
        global _sigterm
        self.writer = writer
        self._expiry_secs = expiry_secs
        self._start_empty()
        _installed.add(self)
        self._worker.start()
        self._handle = monitel.register_event_handler(self._handle_event)
        hold(self)
        run_events.enter(self)
        if in_main_thread() and is_default(replaces=False):
            _sigterm = SigtermHandler(run_events.end_on_sigterm, _flush_all, replaceable=True)
            _sigterm.install()

    def uninstall(self, timeout: float = 10.0) -> bool:
        """Flush every Stat, write all queued points and stop. Idempotent.

        Args:
            timeout: The most seconds to wait for the disk.

        Returns:
            True if all points were written.
        """
        if self in _installed:
            guarded(self._write_ledger)
            _installed.discard(self)
            before_flush.unregister(self._before_flush)
            guarded(monitel.flush)
            run_events.leave(self, sys.exc_info()[1])
            run_events.end_if_due()
            monitel.unregister_event_handler(self._handle)
            self._worker.stop()
        closed = self.writer.close(timeout)
        release(self)
        if _sigterm is not None and not _installed:
            _sigterm.uninstall()
        return closed

    def __enter__(self) -> Installation:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        run_events.leave(self, error)
        self.uninstall()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'active' if self in _installed else 'uninstalled'}, {self.writer!r}>"

    def _start_empty(self) -> None:
        """Start without a thread, at construction and in a forked child, which forgets what runs before a flush."""
        self._worker = Worker("monitel-tensorboard-expiry", self._close_expired_windows, first=self._expiry_secs)
        self._ledger_ns = 0  # elapsed time at the last points of the ledger
        before_flush.register(self._before_flush)

    def _close_expired_windows(self) -> float:
        guarded(lambda: monitel.close_expired_windows(yield_gil))
        return self._expiry_secs

    def _handle_event(self, event: Event) -> None:
        items = () if event.window is not None else tuple(event.data.items())
        size = len(event.data) if has_scalars(event) else 1
        self.writer._put(Recorded(event, items, event.step), size)
        if not self._worker.started:  # the first event of a forked child
            self._worker.start()

    def _before_flush(self) -> None:
        """Write points of the ledger if they are due, from the first step on: it is the x axis."""
        book = monitel.ledger()
        if book is None or monitel.get_step() is None:
            return
        if book.elapsed_ns - self._ledger_ns >= min(_MINUTE_NS, book.elapsed_ns // _SHARE):
            guarded(self._write_ledger)

    def _write_ledger(self) -> None:
        """Write the seconds of each activity so far, and the goodput, if there has been an activity or a step."""
        book, step, walltime = monitel.ledger(), monitel.get_step(), time.time()
        self._ledger_ns = 0 if book is None else book.elapsed_ns
        values = {
            f"{NAME}/{counter.attributes[_ACTIVITY]}": total
            for counter, total, _ in monitel.counters()
            if counter.name == NAME and _ACTIVITY in counter.attributes
        }
        if (share := goodput()) is not None:
            values[GOODPUT[0]] = share
        for tag, value in values.items():
            self.writer._put(Point(tag, value, step, walltime, recorded=True, whole=True))


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
    check(max_queue, flush_secs, expiry_secs=expiry_secs)
    folder = _run_dir(local_dir(log_dir), resumed=purge_step is not None)
    return Installation(SummaryWriter(folder, "", purge_step, max_queue, flush_secs), expiry_secs)


def start(_name: str, folder: Path, _run_id: str) -> tuple[object, Callable[[float], object]]:
    """Write the files of a run that :func:`monitel.start` begins: an entry point of ``monitel.writers``."""
    installation = install(folder)
    return installation, installation.uninstall


def _run_dir(log_dir: str, *, resumed: bool) -> str:
    """Return the folder of this rank of a run in ``log_dir``: a new one for each run that is not resumed."""
    launch = launch_attributes()
    rank = int(launch.get("training.rank", launch.get("training.local_rank", 0)))
    world_size = int(launch.get("training.world_size", 1))
    for number in count(1):
        run = Path(log_dir, f"run-{number}") if number > 1 else Path(log_dir)
        folder = run / f"rank-{rank}" if rank else run
        try:
            if resumed or call_in_time(partial(claim, folder, run, world_size), DISK_S):
                break
        except TimeoutError:  # the thread that writes reports it
            break
        if str(folder) in {each.writer.log_dir for each in _installed}:
            warn_once(logger, "%s gets the points of the next run, too: uninstall() its installation first", folder)
    if number > 1:
        logger.info("%s has the event files of another run: writing to %s", log_dir, folder)
    return str(folder)


def _start_in_child() -> None:
    for writer in open_writers:
        writer._start_in_child()
    for installation in _installed:
        installation._start_empty()


def _write_ledgers() -> None:
    for installation in list(_installed):
        guarded(installation._write_ledger)


def _flush_all(timeout: float) -> None:
    """Write what is queued on SIGTERM, when all windows have been closed."""
    _write_ledgers()
    deadline = time.monotonic() + timeout
    for writer in list(open_writers):
        writer.flush(deadline - time.monotonic())


@without_interruption(raises=False)
def _close_all() -> None:
    """Flush the Stats, and close all writers; monitel's flush at exit was registered earlier and runs later."""
    if not open_writers:
        return
    run_events.end_if_due()
    _write_ledgers()
    guarded(monitel.flush)
    with exit_timeout() as left:
        deadline = time.monotonic() + left
        for writer in list(open_writers):
            writer.close(timeout=deadline - time.monotonic())


atexit.register(_close_all)
finalize_with_children(_close_all, priority=0)
call_at_end(_flush_all)
register_at_fork(after_in_child=_start_in_child)
