"""The ledger of the run of this process: a heartbeat each second, in a thread that may hang with the disk."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from monitel.blackbox.folder import AVAILABLE, FolderError
from monitel.blackbox.process import this_process
from monitel.clock import since_boot_ns
from monitel.counter import find
from monitel.process.fork import register_at_fork
from monitel.process.launcher import distributed_rank, is_rank_zero, launch_attributes
from monitel.process.os_threads import Lock
from monitel.process.worker import Worker
from monitel.run_events import failed, status
from monitel.runs.folder import InUseError, RunFolder, identify, remove_start, store_start
from monitel.runs.history import MARKS, STEP, Attempt, History, RunTime, ascending, joined, summed
from monitel.runs.values import CurrentValues
from monitel.training.activities import total_ns
from monitel.training.counters import Past, before, continue_run, repeat
from monitel.training.step import first_step, get_step, made_steps, unwatch, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from monitel.runs.history import Mark
    from monitel.runs.values import RunValues

_log = logging.getLogger("monitel.otlp")

HEARTBEAT = 1.0  # seconds

_FORK_PATIENCE = 0.1  # seconds that a fork waits
_STEPPED_NS = 10**9  # difference of two clocks that shows that one of them was set
_NOT_YET = {"startup", "init", "shutdown"}  # before the rank is known, and after the end
_RANKS = ("training.rank", "training.local_rank", "training.node_rank")
_STEPS = ("training.steps", "training.steps.skipped")

_process = token_hex(8)
_opening = Lock()  # held while a lock is taken whose descriptor a forked child would inherit
_forking = False


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
        self._ranks = {name: int(rank) for name in _RANKS if (rank := str(attributes.get(name))).isdecimal()}
        self._known_rank: int | None = None  # in torch.distributed, even after its end
        self._identity = identify(attributes)
        self._before = before()
        self._name = f"{_process}{self._before.time_ns or ''}-{os.getpid()}"
        self._boot = this_process().boot
        self._worker = Worker("monitel-otlp-ledger", self._beat, first=HEARTBEAT, ended=self._end)
        self._marks = StepMarks(self._worker.wake)
        self._stages: Callable[[], Mapping[str, int]] = dict
        self._has_start = False
        self._status = ""  # until the end: how the process ends
        self._folder: RunFolder | None = None
        self._found: History | None = None  # what the file held before this process
        self._place: History | None = None  # the run when this process, or an earlier pipeline of it, joined it
        self._values: CurrentValues | None = None
        self._resumed = False
        self._refused = self._given_up = False
        self._warned = False

    def start(self, latest: Callable[[], RunValues | None], stages: Callable[[], Mapping[str, int]]) -> None:
        """Start the heartbeat with the values and the nanoseconds of the stages so far, unless this is another rank."""
        if self._is_rank_zero():
            self._values = CurrentValues(self._attributes, latest)
            self._stages = stages
            self._marks.install()
            if AVAILABLE:  # else the ledger of this process is only in memory
                self._worker.start()

    def run_time(self) -> RunTime | None:
        """Return the time of the run up to now; None without activities or steps, and in ranks other than zero.

        It touches no file. Any thread may call it.
        """
        if not self._is_rank_zero() or (history := self._history(self._place)) is None:
            return None
        return history.time if {*history.attempt.activities} - {"startup", "shutdown"} else None

    def finish(self, timeout: float) -> None:
        """Store the end of this process; wait for that at most ``timeout`` seconds."""
        self._status = status()
        if self._status == "completed" and failed():  # as without run events
            self._status = "failed"
        if self._worker.started:
            self._worker.stop()
            self._worker.join(time.monotonic() + timeout)

    def abandon(self) -> None:
        """Leave the ledger to the parent, in a forked child."""
        folder, self._folder, self._given_up = self._folder, None, True
        if folder is not None:
            folder.close()

    def _beat(self) -> float | None:
        """Store a heartbeat; return the pause until the next one."""
        if self._given_up:
            return None
        self._store()
        return HEARTBEAT

    def _end(self) -> None:
        """Store the end of this process, in the thread of the heartbeat."""
        if self._given_up:
            return
        try:
            self._store()
            if self._folder is not None:
                self._folder.close()
        except Exception as error:  # the thread ends here, and nothing else may
            self._warn_once(error)
        self._give_up()

    def _store(self) -> None:
        try:
            folder = self._folder = self._folder or self._opened()
            if folder is None:
                self._store_start()
            elif not self._is_rank_zero():
                self._withdraw(folder)  # torch.distributed was initialized after the first activity
            elif (history := self._history(self._place)) is not None:
                if not self._resumed and history.attempt.begin is not None:
                    self._resumed = True
                    repeat(history.earlier.repeated_by(history.attempt.begin))
                if self._values is not None:
                    values = self._values.after(history.values, last=self._status != "")
                    history = replace(history, values=values)
                folder.store(history)
        except (OSError, FolderError) as error:
            self._warn_once(error)
            if isinstance(error, FileNotFoundError) and self._folder is not None:
                self._folder.close()  # it was removed; the next heartbeat makes it again
                self._folder = None

    def _store_start(self) -> None:
        """Store the start of this process until it has begun. A process that ends well without that was a helper."""
        if self._given_up or self._has_begun() or self._status == "completed":
            if self._has_start:
                self._has_start = False
                remove_start(self._root, self._identity)
        elif self._is_rank_zero() and (history := self._history(None)) is not None:
            self._has_start = True
            store_start(self._root, self._identity, history.attempt)

    def _has_begun(self) -> bool:
        book = self._before.ledger()
        return book is not None and bool({*book.activities} - _NOT_YET)

    def _opened(self) -> RunFolder | None:
        """Open the folder of the run, and join the earlier attempts; return None if that is not due, or refused."""
        if not self._has_begun():
            return None
        if not self._is_rank_zero():
            self._give_up()
            return None
        with _opening:
            try:
                folder = RunFolder(self._root, self._identity)
            except FolderError as error:  # an earlier attempt has not ended yet
                if isinstance(error, InUseError) and error.by_sibling:  # it does the same as the other one
                    _log.info("the ledger of the run is that of another child of the same process")
                    self._give_up()
                elif self._refused:
                    self._warn_once(error)
                self._refused = True
                return None
            try:
                self._found = found = folder.load()
                if found is not None or self._place is None:
                    self._place = self._join(found, folder)
            except BaseException:
                folder.close()
                raise
            return folder

    def _join(self, found: History | None, folder: RunFolder) -> History:
        """Return the run with this process, whose counters continue it."""
        if found is not None and found.attempt.name == self._name:  # an earlier pipeline of this process
            return found
        own = self._history(None)
        assert own is not None  # because it has begun
        place, past = joined(found, folder.starts(), self._identity.run, own.attempt)
        continue_run(past)
        return replace(place, attempt=replace(place.attempt, marks=(), stages={}))  # those of this pipeline are added

    def _history(self, place: History | None) -> History | None:
        """Return the history up to now of the run as this process has joined it, if it has; None without a ledger."""
        if (step := get_step()) is not None:
            self._marks.notice(step)
        place = place or History(RunTime(self._identity.run), Attempt(self._name, {}, 0))
        marks = ascending([*place.attempt.marks, *self._marks.snapshot()])  # before the ledger, whose time is later
        begin, stages = first_step(), summed(place.attempt.stages, self._stages())
        book = self._before.ledger()
        if book is None:
            return None
        now_ns, last_ns = time.time_ns(), book.start_ns + book.elapsed_ns
        attempt = replace(
            place.attempt,
            activities=book.activities,
            last_ns=last_ns if abs(now_ns - last_ns) < _STEPPED_NS else now_ns,
            boot=self._boot,
            boot_ns=since_boot_ns(),
            status=self._status,
            begin=begin,
            marks=marks,
            steps=self._made_steps(),
            stages=stages,
        )
        return replace(place, attempt=attempt)

    def _made_steps(self) -> int:
        counted = [each for name in _STEPS if (each := find(name)) is not None]
        made = sum(each.total - self._before.counters.get(each, 0) for each in counted)
        return int(made) or made_steps()

    def _is_rank_zero(self) -> bool:
        if (member := distributed_rank()) is not None:
            self._known_rank = member[0]
        if self._known_rank is not None:
            return self._known_rank == 0
        return is_rank_zero({**launch_attributes(), **self._ranks})

    def _withdraw(self, folder: RunFolder) -> None:
        """Restore the file: another process is rank zero."""
        if self._found is None:
            folder.remove()
        else:
            folder.store(self._found)
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


class StepMarks:
    """Records the steps of this process with the time in ``step`` before each, thinned out except for the last one.

    The training thread takes no lock for it.
    """

    def __init__(self, began: Callable[[], object] = lambda: None) -> None:
        self._began = began  # called in the training thread when the process sets its first step itself
        self._before_step, self._zero_ns = before().step, before().activities.get(STEP, 0)
        self._marks: list[Mark] = []
        self._spacing_ns = 0
        first = first_step()
        self._begun = first is not None
        if first is not None:
            self._record_at(first, 0)

    def install(self) -> None:
        """Record each step from now on."""
        watch(self.record)

    def uninstall(self) -> None:
        """Record no more steps. Idempotent."""
        unwatch(self.record)

    def record(self, step: int) -> None:
        """Record that a step begins now, in the thread that sets it."""
        if is_first := not self._begun and first_step() is not None:
            self._begun, self._marks = True, []  # a source has counted them from 1, wherever the run resumes
        self._record_at(step, total_ns(STEP) - self._zero_ns)
        if is_first:
            self._began()

    def notice(self, step: int) -> None:
        """Record the current step if nobody has recorded it. Any thread may call it."""
        if step > self._marks[-1][0] if self._marks else step != self._before_step:
            self._record_at(step, total_ns(STEP) - self._zero_ns)

    def snapshot(self) -> list[Mark]:
        """Return the marks so far. Any thread may call it."""
        return list(self._marks)

    def _record_at(self, step: int, before_ns: int) -> None:
        marks = self._marks
        if marks and step == marks[-1][0]:
            return  # the same step again
        if marks and step < marks[-1][0]:
            marks = self._marks = [mark for mark in marks if mark[0] < step]
        if len(marks) > 1 and marks[-1][1] - marks[-2][1] < self._spacing_ns:
            marks[-1] = step, before_ns
        else:
            marks.append((step, before_ns))
            if len(marks) >= MARKS:
                self._marks = [*marks[:-1:2], marks[-1]]
                self._spacing_ns = 2 * (before_ns - marks[0][1]) // MARKS


def _before_fork() -> None:
    global _forking
    _forking = _opening.acquire(timeout=_FORK_PATIENCE)


def _after_fork() -> None:
    if _forking:
        _opening.release()


def _in_child() -> None:
    global _opening
    _opening = Lock()


register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
