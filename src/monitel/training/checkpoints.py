"""Checkpoints: their activities in the ledger, and one event for each checkpoint, whichever layers save or load it."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from time import monotonic_ns
from types import TracebackType
from weakref import ref

from monitel import clock
from monitel.attributes import INT64_MAX, escape_surrogates
from monitel.event import Event, Severity
from monitel.handlers import log_event
from monitel.process.failures import error_type, warn_once
from monitel.process.fork import register_at_fork
from monitel.process.masking import mask_text
from monitel.process.os_threads import get_ident, local
from monitel.training import activities
from monitel.training.activities import Activity
from monitel.training.step import get_step

__all__ = ["LOAD", "SAVE", "Checkpoint"]

SAVE, LOAD = "checkpoint.save", "checkpoint.load"

_log = logging.getLogger("monitel")
_MAX_FILES = 1000  # of a folder whose size is determined
_MAX_SIZE_NS = 50_000_000  # time for it
_MAX_PATH = 1000  # characters
_TICK_NS = 10_000_000  # by which the time of a file may be behind the clock


class Checkpoint:
    """A context manager around the code that saves or loads a checkpoint, which may be used several times.

    At its end the outermost one of a thread logs ``checkpoint.saved``, ``checkpoint.failed`` or ``checkpoint.loaded``;
    not if loading raises, because programs try which checkpoint is there. ``path``, ``logs`` and ``step`` can be
    assigned until then. If ``logs`` is False, :meth:`log` can log the event. Folders whose names begin with ``others``
    are not part of the checkpoint. ``ended`` is called at each end, with this object and the exception.
    """

    __slots__ = (
        *("__weakref__", "_activity", "_begin_ns", "_blocked_ns", "_blocks", "_is_deferred", "_is_inner"),
        *("_is_pending", "_others", "_since_ns", "ended", "logs", "path", "step"),
    )

    def __init__(
        self, activity: str, path: object, *, logs: bool = True, step: int | None = None, others: str | None = None
    ) -> None:
        self._activity: Activity = activities.activity(activity)
        self.path = path
        self.logs = logs
        self.step = step
        self.ended: Callable[[Checkpoint, BaseException | None], object] | None = None
        self._others = others
        self._blocks = self._is_deferred = self._is_inner = self._is_pending = False
        self._begin_ns = self._blocked_ns = 0
        self._since_ns: int | None = None  # of files that it writes, by the clock of the file system

    def __enter__(self) -> Checkpoint:  # noqa: PYI034  typing.Self is 3.11's
        self._is_inner = _thread.outermost() is not None
        if not self._is_inner:
            _thread.outermost = ref(self)  # weak: an interrupt right here would keep it
            if self.step is None:
                self.step = get_step()
            if self._since_ns is None:
                self._since_ns = time.time_ns() - _TICK_NS
        self._blocks = activities.position()[0] == get_ident()
        if self._blocks:
            self._activity.__enter__()
        self._begin_ns = monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        duration_ns = monotonic_ns() - self._begin_ns
        self._blocked_ns += duration_ns
        if self._blocks:
            self._activity.__exit__()
        if not self._is_inner:
            _thread.outermost = _none
            if kind is not None and self._is_pending:  # else it is saved already
                self._is_pending = self._is_deferred = False
            if self.logs and not self._is_deferred:
                self.log(error)
        if self.ended is not None:
            self.ended(self, error)

    def defer(self) -> Callable[[BaseException | None], bool]:
        """Log the event later, because the checkpoint is saved in the background when this thread goes on.

        Return a function to call at the end, with the exception or None; it returns False if the end is not awaited.
        """
        outermost = _thread.outermost() or self
        outermost._is_deferred = outermost._is_pending = True

        def end(error: BaseException | None) -> bool:
            was_pending, outermost._is_pending = outermost._is_pending, False
            if was_pending and outermost.logs:
                outermost.log(error, duration_ns=monotonic_ns() - outermost._begin_ns)
            return was_pending

        return end

    def log(self, error: BaseException | None = None, *, duration_ns: int | None = None) -> None:
        """Log the event now, unless the last use was within another checkpoint. Never raises an Exception."""
        try:
            if (path := _path(self.path)) is None or self._is_inner:
                return
            text = mask_text(escape_surrogates(path), os.environ)[:_MAX_PATH]
            total_ns = self._blocked_ns if duration_ns is None else duration_ns
            data: dict[str, str | int | float] = {"checkpoint.path": text, "checkpoint.duration": total_ns / 1e9}
            if duration_ns is not None or not self._blocks:
                data["checkpoint.blocked"] = (self._blocked_ns or total_ns) / 1e9 if self._blocks else 0.0
            saves = self._activity.name == SAVE
            failure = None if error is None else _failure(type(error))
            if error is None:
                if (size := _size(self.path, self._since_ns if saves else None, self._others)) is not None:
                    data["checkpoint.size"] = size
            elif saves and failure is not None:
                message = mask_text(str(error), os.environ)
                data |= {"exception.type": failure, "exception.message": escape_surrogates(message)}
            else:
                return
            name = "checkpoint.failed" if failure else "checkpoint.saved" if saves else "checkpoint.loaded"
            event = Event(name, clock.now(), data, severity=Severity.ERROR if failure else Severity.INFO)
            event._step = self.step
            log_event(event)
        except Exception:
            warn_once(_log, "the event of a checkpoint failed (further failures are not logged)", exc_info=True)


def _failure(kind: type[BaseException]) -> str | None:
    """Return the name of an exception's type; None if the program or the block was ended on purpose."""
    if kind.__name__ == "CheckpointException":  # torch.distributed.checkpoint's, which is not an Exception
        return f"{kind.__module__}.{kind.__qualname__}"
    return error_type(kind)


def _path(path: object) -> str | None:
    """Return the path of a file or folder, or that of an open file; None for an object without a path."""
    with suppress(Exception):  # of another class's __fspath__ or name
        if isinstance(path, (str, bytes, os.PathLike)):
            return os.fsdecode(path)
        name = getattr(path, "name", None)  # a number is that of an unnamed file
        return name if isinstance(name, str) else None
    return None


def _size(path: object, since_ns: int | None, others: str | None) -> int | None:
    """Return the bytes of a file, or of the files in a folder; None if there are too many, or if it is elsewhere."""
    found = _path(path)
    if not found or "://" in found:
        return None
    try:
        if since_ns is not None and (ask := getattr(path, "tell", None)) is not None:
            position = ask()  # the file's buffer may not be written yet
            return position if isinstance(position, int) else None
        status = os.stat(found)  # noqa: PTH116  pathlib is not loaded for it
        if stat.S_ISREG(status.st_mode):
            return status.st_size
        return _size_of_folder(found, since_ns or 0, others) if stat.S_ISDIR(status.st_mode) else None
    except (OSError, ValueError):
        return None


def _size_of_folder(path: str, since_ns: int, others: str | None) -> int | None:
    """Return the bytes of the files that were written since a time: a folder may hold earlier checkpoints too."""
    total = seen = 0
    until_ns = monotonic_ns() + _MAX_SIZE_NS
    folders = [path]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                seen += 1
                if seen > _MAX_FILES or monotonic_ns() > until_ns:
                    return None
                if entry.is_dir(follow_symlinks=False):
                    if others is None or not entry.name.startswith(others):
                        folders.append(entry.path)
                elif entry.is_file() and (status := entry.stat()).st_mtime_ns >= since_ns:
                    total += status.st_size
    return min(total, INT64_MAX) or None  # none: the file system has another clock


def _none() -> None:
    return None


class _Thread(local):
    outermost: Callable[[], Checkpoint | None] = staticmethod(_none)


_thread = _Thread()


def _reset_in_child() -> None:
    """Forget the parent's checkpoint in progress."""
    global _thread
    _thread = _Thread()


register_at_fork(after_in_child=_reset_in_child)
