"""The ledger of the run of this process: a heartbeat each second, in a thread that may hang with the disk."""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.activities import ledger, since_boot_ns
from monitel.blackbox.folder import AVAILABLE, FolderError
from monitel.console.ledger.history import Attempt, Earlier, History, ascending, lost_by, past_of, run_time
from monitel.console.ledger.run_folder import LEDGERS, open_run
from monitel.console.ledger.run_identity import boot_id, identify
from monitel.console.ledger.starts import Start, fold_starts, gap_after
from monitel.console.ledger.step_marks import StepMarks
from monitel.console.values import VALUES, ValuesFile
from monitel.launcher import distributed_rank, is_rank_zero, launch_attributes
from monitel.os_threads import Lock
from monitel.run_events import failed, status
from monitel.step import first_step, get_step
from monitel.training_time import Past, continue_run, repeat
from monitel.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from monitel.console.ledger.history import Mark
    from monitel.console.ledger.run_folder import RunFolder
    from monitel.console.ledger.shares import RunTime
    from monitel.console.values import Latest

_log = logging.getLogger("monitel.otlp")

HEARTBEAT = 1.0  # seconds

_PATIENCE = 60.0  # seconds that the ledger waits for an earlier attempt that has not ended yet
_FORK_PATIENCE = 0.1  # seconds that a fork waits
_HANGS = 0.5  # seconds after which the exit does not wait for a heartbeat
_STEPPED_NS = 10**9  # difference of two clocks that shows that one of them was set
_COMPLETED, _FAILED = "completed", "failed"
_NOT_YET = {"startup", "init", "shutdown"}  # before the rank is known, and after the end

_RANKS = ("training.rank", "training.local_rank", "training.node_rank")
_DIGITS = re.compile(r"[0-9]{1,18}")

_process = token_hex(8)


class _Own(NamedTuple):
    """The time before this process.

    Attributes:
        earlier: The earlier attempts.
        down_ns: Time between them and this process.
        overlap_ns: Time that they have counted of this process.
        marks: Steps of this process that an earlier pipeline has stored.
    """

    earlier: Earlier = Earlier()
    down_ns: int = 0
    overlap_ns: int = 0
    marks: tuple[Mark, ...] = ()


class RunLedger:
    """Stores the ledger of a run, and continues that of earlier attempts, in rank zero.

    Before the first activity or step only the start of this process is stored, and nothing by a process whose rank is
    not zero. If the disk fails or hangs, the ledger of this process is still complete in memory. A forked child must
    call :meth:`abandon`.

    Args:
        root: The folder that holds the spool folders.
        attributes: Attributes of the resource.
    """

    def __init__(self, root: Path, attributes: Mapping[str, Any]) -> None:
        self._root = root.absolute()
        self._attributes = attributes
        self._ranks = {name: int(attributes[name]) for name in _RANKS if _DIGITS.fullmatch(str(attributes.get(name)))}
        self._known_rank: int | None = None  # in torch.distributed, even after its end
        self._identity = identify(attributes)
        self._name = f"{_process}-{os.getpid()}"
        self._boot = boot_id()
        self._worker = Worker("monitel-otlp-ledger", self._beat, first=HEARTBEAT, ended=self._end)
        self._marks = StepMarks(self._worker.wake)
        self._own_start = Start(self._root / LEDGERS, self._identity)
        self._failed = False
        self._status = ""  # until the end
        self._folder: RunFolder | None = None
        self._found: History | None = None  # what the file held before this process
        self._start: _Own | None = None
        self._values: ValuesFile | None = None
        self._resumed = False
        self._refused_since: float | None = None
        self._given_up = self._ending = False
        self._opening = Lock()  # held while a lock is taken whose descriptor a forked child would inherit
        self._forking = False
        self._warned = False
        self._busy_since: float | None = None

    def start(self, latest: Callable[[], Latest | None]) -> None:
        """Start the heartbeat, unless this process is known not to be rank zero.

        Args:
            latest: Returns the values of this process, which are stored beside the ledger; None if there are none.
        """
        if self._is_rank_zero():
            self._values = ValuesFile(self._identity.run, self._name, self._attributes, latest)
            self._marks.install()
            if AVAILABLE:  # else the ledger of this process is only in memory
                self._worker.start()

    def run_time(self) -> RunTime | None:
        """Return the time of the run up to now; None without activities or steps, and in ranks other than zero.

        It touches no file. Any thread may call it.
        """
        if not self._is_rank_zero():
            return None
        history = self._history(self._start or _Own(), ended=self._ending)
        if history is None or not {*history.attempt.activities} - {"startup", "shutdown"}:
            return None
        return run_time(history)

    def finish(self, timeout: float) -> None:
        """Store the end of this process; wait for that at most ``timeout`` seconds, and not for a disk that hangs."""
        self._ending, self._failed, self._status = True, failed(), status()
        if self._failed and self._status == _COMPLETED:  # as without run events
            self._status = _FAILED
        if not self._worker.started:
            return
        self._worker.stop()
        busy_since = self._busy_since
        if busy_since is None or time.monotonic() - busy_since < _HANGS:
            self._worker.join(time.monotonic() + timeout)

    def before_fork(self) -> None:
        """Wait for a moment until no file is being opened."""
        self._forking = self._opening.acquire(timeout=_FORK_PATIENCE)

    def after_fork(self) -> None:
        """Let files be opened again, in the parent."""
        if self._forking:
            self._forking = False
            self._opening.release()

    def abandon(self) -> None:
        """Leave the ledger to the parent, in a forked child."""
        folder, self._folder, self._given_up = self._folder, None, True
        if folder is not None:
            folder.close()

    def _beat(self) -> float | None:
        """Store a heartbeat; return the pause until the next one."""
        if self._given_up:
            return None
        self._busy_since = time.monotonic()
        try:
            self._store(ended=False)
        finally:
            self._busy_since = None
        return HEARTBEAT

    def _end(self) -> None:
        """Store the end of this process, in the thread of the heartbeat."""
        if self._given_up:
            return
        self._busy_since = time.monotonic()
        try:
            self._store(ended=True)
            if self._folder is not None:
                self._folder.close()
        except Exception as error:  # the thread ends here, and nothing else may
            self._warn_once(error)
        finally:
            self._busy_since, self._given_up = None, True
            self._marks.uninstall()

    def _store(self, *, ended: bool) -> None:
        try:
            if self._folder is None and not self._open():
                self._store_start(ended=ended)
                return
            assert self._folder is not None  # because it is open
            assert self._start is not None
            if not self._is_rank_zero():  # torch.distributed was initialized after the first activity
                self._withdraw(self._folder)
                return
            self._resume(self._start.earlier)
            if (history := self._history(self._start, ended=ended)) is not None:
                self._folder.store(history)
                if self._values is not None and (values := self._values.content(self._status, last=ended)) is not None:
                    self._folder.replace(VALUES, values)
        except FileNotFoundError as error:  # the folder was removed; the next heartbeat makes it again
            self._warn_once(error)
            if self._folder is not None:
                self._folder.close()
                self._folder = None
        except (OSError, FolderError) as error:
            self._warn_once(error)

    def _store_start(self, *, ended: bool) -> None:
        """Store the start of this process until it has begun. A process that ends well without that was a helper."""
        if self._given_up or self._has_begun() or (ended and not self._failed):
            self._own_start.remove()
        elif self._is_rank_zero() and (history := self._history(_Own(), ended=ended)) is not None:
            self._own_start.store(history.attempt)

    def _has_begun(self) -> bool:
        book = ledger()
        return book is not None and bool({*book.activities} - _NOT_YET)

    def _open(self) -> bool:
        """Open the folder of the run, and read the earlier attempts; return False if that is not due."""
        if not self._has_begun():
            return False
        if not self._is_rank_zero():
            self._give_up()
            return False
        with self._opening:
            try:
                folder = open_run(self._root, self._identity)
            except FolderError as error:
                self._refuse(error)
                return False
            try:
                found = folder.load(self._identity.run)
                start = self._start if self._start is not None and found is None else self._after(found, folder)
                if self._values is not None and (self._start is None or found is not None):
                    self._values.resume(folder.values(), None if found is None else found.attempt.attempted)
            except BaseException:
                folder.close()
                raise
            self._folder, self._found, self._start = folder, found, start
        return True

    def _after(self, found: History | None, folder: RunFolder) -> _Own:
        """Return the place of this process in the run, for the counters as well."""
        if found is not None and found.attempt.name == self._name:  # an earlier pipeline of this process
            return _Own(found.earlier, found.attempt.down_ns, found.attempt.overlap_ns, found.attempt.marks)
        history = self._history(_Own(), ended=False)
        assert history is not None  # because it has begun
        before = fold_starts(found, folder.starts(self._identity.run), history.attempt)
        down_ns, overlap_ns = (0, 0) if before.last is None else gap_after(before.last, history.attempt)
        attempt = replace(history.attempt, down_ns=down_ns, overlap_ns=overlap_ns)
        past = past_of(History(history.run, before.earlier, attempt))
        continue_run(past._replace(down_ns=down_ns + before.down_ns, startup_ns=before.unseen_ns))
        return _Own(before.earlier, down_ns, overlap_ns)

    def _resume(self, earlier: Earlier) -> None:
        """Count the steps that are done again as lost, once this process has set its first step."""
        if not self._resumed and (begin := first_step()) is not None:
            self._resumed = True
            repeat(lost_by(earlier, begin))

    def _history(self, start: _Own, *, ended: bool) -> History | None:
        """Return the history of the run up to now."""
        step = get_step()
        if step is not None:
            self._marks.notice(step)
        marks = ascending([*start.marks, *self._marks.snapshot()])  # before the ledger, whose time is later
        begin = first_step()
        book = ledger()
        if book is None:
            return None
        boot_ns, now_ns = since_boot_ns(), time.time_ns()
        last_ns = book.start_ns + book.elapsed_ns
        attempt = Attempt(
            name=self._name,
            activities=book.activities,
            last_ns=last_ns if abs(now_ns - last_ns) < _STEPPED_NS else now_ns,
            boot=self._boot,
            boot_ns=boot_ns,
            ended=ended,
            begin=begin,
            marks=marks,
            down_ns=start.down_ns,
            overlap_ns=start.overlap_ns,
        )
        return History(self._identity.run, start.earlier, attempt)

    def _is_rank_zero(self) -> bool:
        if (member := distributed_rank()) is not None:
            self._known_rank = member[0]
        if self._known_rank is not None:
            return self._known_rank == 0
        return is_rank_zero({**launch_attributes(), **self._ranks})

    def _refuse(self, error: FolderError) -> None:
        """Try again for a while: an earlier attempt may be about to end."""
        self._warn_once(error)
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if now - self._refused_since > _PATIENCE:
            self._give_up()

    def _withdraw(self, folder: RunFolder) -> None:
        """Restore the file: another process is rank zero."""
        if self._found is None:
            folder.remove()
        else:
            folder.store(self._found)
            if self._values is not None and self._values.found is not None:
                folder.replace(VALUES, self._values.found)
            folder.close()
        self._folder = None
        continue_run(Past(0, 0, 0))
        repeat(0)
        self._give_up()

    def _give_up(self) -> None:
        self._given_up = True
        self._marks.uninstall()

    def _warn_once(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("the ledger of the run cannot be stored: %s", error)
