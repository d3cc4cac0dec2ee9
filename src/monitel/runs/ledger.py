"""The ledger of the run of this process: a heartbeat each second, in a thread that may hang with the disk."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from monitel.attributes import whole
from monitel.blackbox.folder import AVAILABLE, Folder, FolderError
from monitel.blackbox.process import this_process
from monitel.clock import since_boot_ns
from monitel.counter import find_counter
from monitel.process.exit import is_child
from monitel.process.launcher import distributed_rank, is_rank_zero, launch_attributes
from monitel.process.worker import Worker
from monitel.run_events import final_status
from monitel.runs import folder
from monitel.runs.curves import Curves
from monitel.runs.folder import CURVES, InUseError, discard, identify, load, open_run, store, store_of
from monitel.runs.history import STEP, Attempt, History, Mark, RunTime, ascending, summed
from monitel.runs.stored import StoredError
from monitel.runs.values import CurrentValues, RunValues
from monitel.training.activities import total_ns
from monitel.training.counters import Past, before, continue_run, repeat
from monitel.training.step import first_step, get_step, made_steps, unwatch, watch

if TYPE_CHECKING:
    from monitel.blackbox.recorder import Recorder

_log = logging.getLogger("monitel.otlp")

FIRST_PAUSE, HEARTBEAT = 0.1, 1.0  # seconds; the pauses double
_CURVES_PAUSE = 30.0  # seconds between two writes of the curves, at most; these pauses double, too

_STEPPED_NS = 10**9  # difference of two clocks that shows that one of them was set
_NOT_YET = {"startup", "init", "shutdown"}  # before the rank is known, and after the end
_RANKS = ("training.rank", "training.local_rank", "training.node_rank")
_STEPS = ("training.steps", "training.steps.skipped")

_process = token_hex(8)


class RunLedger:
    """Stores the ledger of a run in rank zero, from its first step or activity, and continues earlier attempts.

    If the disk fails or hangs, the ledger of this process is still complete in memory. ``root`` is the folder that
    holds the spools, ``attributes`` are those of the resource.
    """

    def __init__(self, root: Path, attributes: Mapping[str, Any], *, forked: bool = False) -> None:
        self._root = root.absolute()
        self._attributes = attributes
        self._forked = forked
        self._ranks = {name: rank for name in _RANKS if (rank := whole(str(attributes.get(name)))) is not None}
        self._known_rank: int | None = None  # in torch.distributed, even after its end
        self._identity = identify(attributes)
        self.store = store_of(self._root, self._identity)  # the folder of the run; other ranks have the same, if any
        self.curves = Curves()
        self.is_started = folder.started is not None
        self._before = before()
        self._name = f"{_process}{self._before.time_ns or ''}-{os.getpid()}"
        first = 0.0 if self.is_started else FIRST_PAUSE  # a run with a folder is one, even if it is killed at once
        self._worker = Worker("monitel-otlp-ledger", self._beat, first=first, ended=self._end)
        self._pause = self._curves_pause = FIRST_PAUSE
        self._curves_due = 0.0  # monotonic seconds
        self._marks: tuple[Mark, ...] = ()
        self._begun = False  # the process has set a step itself
        self._stages: Callable[[], Mapping[str, int]] = dict
        self._status = ""  # until the end: how the process ends
        self._folder: Folder | None = None
        self._found: History | None = None  # what the file held before this process
        self._place: History | None = None  # the run when this process, or an earlier pipeline of it, joined it
        self._values: CurrentValues | None = None
        self._resumed = self._refused = self._given_up = self._warned = False

    def start(self, latest: Callable[[], RunValues | None], stages: Callable[[], Mapping[str, int]]) -> None:
        """Start the heartbeat with the values and the nanoseconds of the stages so far, unless this is another rank."""
        if self._is_rank_zero():
            self._values = CurrentValues(self._attributes, latest)
            self._stages = stages
            watch(self._on_first_step)
            if not self._forked:  # a helper needs no thread
                self._start_worker()

    def draw(self, recorder: Recorder) -> None:
        """Let a recorder collect the numbers for the curves, unless this is another rank."""
        recorder.points = self.curves.new if self._is_rank_zero() else None

    def run_time(self) -> RunTime | None:
        """Return the time of the run up to now; None without activities or steps, and in ranks other than zero.

        It touches no file. Any thread may call it.
        """
        if not self._is_rank_zero() or (history := self._history(self._place)) is None:
            return None
        is_shown = self.is_started or {*history.attempt.activities} - {"startup", "shutdown"}
        return history.time if is_shown else None

    def finish(self, timeout: float) -> None:
        """Store the end of this process; wait for that at most ``timeout`` seconds."""
        self._status = final_status()
        unwatch(self._on_first_step)
        self._worker.stop()
        self._worker.join(time.monotonic() + timeout)

    def withdraw(self) -> None:
        """Store nothing more: another pipeline of this process takes the place of this one."""
        self._given_up = True
        unwatch(self._on_first_step)
        self._worker.stop()

    def in_child(self) -> RunLedger | None:
        """Leave the ledger to the parent, in a forked child; return one for the child if the parent has not begun.

        A run that :func:`monitel.start` has begun is that of the parent.
        """
        folder, self._folder, self._given_up = self._folder, None, True
        if folder is not None:
            folder.close()
        is_free = self._place is None and not self.is_started
        return RunLedger(self._root, self._attributes, forked=True) if is_free else None

    def _on_first_step(self, _step: int) -> None:
        unwatch(self._on_first_step)
        self._start_worker()
        self._worker.wake()

    def _start_worker(self) -> None:
        if AVAILABLE:  # else the ledger of this process is only in memory
            self._worker.start()

    def _beat(self) -> float | None:
        """Store a heartbeat; return the pause until the next one."""
        if self._given_up:
            return None
        self._store()
        pause, self._pause = self._pause, min(2 * self._pause, HEARTBEAT)
        return pause

    def _end(self) -> None:
        """Store the end of this process, in the thread of the heartbeat."""
        try:
            if not self._given_up:
                self._store()
            if self._folder is not None:
                self._folder.close()
        except Exception as error:  # the thread ends here, and nothing else may
            self._warn_once(error)
        self._given_up = True

    def _store(self) -> None:
        try:
            folder = self._folder = self._folder or self._opened()
            if folder is None:
                return
            if not self._is_rank_zero():  # torch.distributed was initialized after the first activity
                self._withdraw(folder)
            elif (history := self._history(self._place)) is not None:
                if not self._resumed and history.attempt.begin is not None:
                    self._resumed = True
                    repeat(history.earlier.repeated_by(history.attempt.begin))
                if self._values is not None:
                    values = self._values.after(history.values, last=self._status != "")
                    history = replace(history, values=values)
                store(folder, history)
                self._store_curves(folder)
        except (OSError, FolderError) as error:
            self._warn_once(error)
            if isinstance(error, FileNotFoundError) and self._folder is not None:
                self._folder.close()  # it was removed; the next heartbeat makes it again
                self._folder = None

    def _store_curves(self, folder: Folder) -> None:
        """Take the new numbers, and store the curves if that is due: the file grows to megabytes."""
        curves, step = self.curves, get_step()
        curves.take()
        spent_ns = sum(total_ns(each) - self._before.activities.get(each, 0) for each in (STEP, "data"))
        curves.note_steps(self._made_steps(), spent_ns, step)
        if (now := time.monotonic()) >= self._curves_due or self._status:
            self._curves_pause = min(2 * self._curves_pause, _CURVES_PAUSE)
            self._curves_due = now + self._curves_pause
            folder.replace(CURVES, b"".join(curves.encode()))

    def _opened(self) -> Folder | None:
        """Open the folder of the run, and join the earlier attempts; return None if that is not due, or refused."""
        book = self._before.ledger()
        if book is None or not (self.is_started or {*book.activities} - _NOT_YET):
            return None
        if not self._is_rank_zero():
            self._given_up = True
            return None
        try:
            folder = open_run(self.store, self._identity.run)
        except InUseError as error:  # an earlier attempt has not ended yet
            if self._forked or is_child():
                _log.info("the ledger of the run is that of another process: %s", error)
                self._given_up = True
            elif self._refused:
                self._warn_once(error)
            self._refused = True
            return None
        try:
            self._found = found = load(folder)
            if found is not None and (self._forked or is_child()) and self._was_beside(found.attempt):
                folder.close()
                self._given_up = True
                return None
            if found is not None or self._place is None:
                self._place = self._join(found)
            with suppress(FileNotFoundError, StoredError):  # a damaged file begins anew
                self.curves.go_on(folder.read(CURVES))
        except BaseException:
            folder.close()
            raise
        self._pause = FIRST_PAUSE
        return folder

    def _was_beside(self, last: Attempt) -> bool:
        """Return True if this process had begun before the last attempt ended: it does not restart that one."""
        mine = self._history(None)
        return mine is not None and last.name != self._name and mine.attempt.after(last).overlap_ns > 0

    def _join(self, found: History | None) -> History:
        """Return the run with this process, whose counters continue it."""
        if found is not None and found.attempt.name == self._name:  # an earlier pipeline of this process
            return found
        place = self._history(None)
        assert place is not None  # because it has begun
        place = replace(place, attempt=replace(place.attempt, marks=(), stages={}))  # those of this pipeline are added
        if found is not None:
            place = History(found.time, place.attempt.after(found.attempt), found.values.ended)
        continue_run(place.past)
        return place

    def _history(self, place: History | None) -> History | None:
        """Return the history up to now of the run as this process has joined it, if it has; None without a ledger."""
        self._mark_step()
        place = place or History(RunTime(self._identity.run), Attempt(self._name, {}, 0))
        marks = ascending([*place.attempt.marks, *self._marks])  # before the ledger, whose time is later
        begin, stages = first_step(), summed(place.attempt.stages, self._stages())
        book = self._before.ledger()
        if book is None:
            return None
        now_ns, last_ns = time.time_ns(), book.start_ns + book.elapsed_ns
        attempt = replace(
            place.attempt,
            activities=book.activities,
            last_ns=last_ns if abs(now_ns - last_ns) < _STEPPED_NS else now_ns,
            boot=this_process().boot,
            boot_ns=since_boot_ns(),
            status=self._status,
            begin=begin,
            marks=marks,
            steps=self._made_steps(),
            stages=stages,
        )
        return replace(place, attempt=attempt)

    def _mark_step(self) -> None:
        """Note the time in ``step`` before the present step, as if that had begun at this moment."""
        step, first = get_step(), first_step()
        now_ns = total_ns(STEP) - self._before.activities.get(STEP, 0)
        if first is not None and not self._begun:  # what a source has counted, it has counted from 1
            self._begun, self._marks = True, ((first, now_ns if self._marks else 0),)
        earlier = self._marks[-1][0] if self._marks else None
        if step is not None and step != earlier:
            self._marks = ascending([*(mark for mark in self._marks if mark[0] < step), (step, now_ns)])

    def _made_steps(self) -> int:
        counted = [each for name in _STEPS if (each := find_counter(name)) is not None]
        made = sum(each.total - self._before.counters.get(each, 0) for each in counted)
        return int(made) or made_steps()

    def _is_rank_zero(self) -> bool:
        if (member := distributed_rank()) is not None:
            self._known_rank = member[0]
        if self._known_rank is not None:
            return self._known_rank == 0
        return is_rank_zero({**launch_attributes(), **self._ranks})

    def _withdraw(self, folder: Folder) -> None:
        """Restore the file: another process is rank zero."""
        if self._found is None:
            discard(folder)
        else:
            store(folder, self._found)
        folder.close()
        self._folder = None
        continue_run(Past(0, 0, 0))
        repeat(0)
        self._given_up = True

    def _warn_once(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("the ledger of the run cannot be stored: %s", error)
