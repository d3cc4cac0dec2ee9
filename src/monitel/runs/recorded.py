"""The record of a process without an exporter: its box, the ledger of its run, and its end."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import monitel.runs.ended as ends  # before the end: a class that is made there would hide Ctrl-C from the exit status
from monitel.blackbox import silent
from monitel.process.exit import EXIT_TIMEOUT, LEAST, exit_timeout, finalize_with_children, is_child
from monitel.process.fork import register_at_fork
from monitel.process.launcher import is_launcher
from monitel.process.os_threads import in_main_thread
from monitel.process.sigterm import SigtermHandler, is_default
from monitel.run_events import end_on_sigterm, enter, preempt, withdraw
from monitel.runs.ledger import RunLedger
from monitel.runs.shares import print_last_line
from monitel.runs.values import latest
from monitel.training.counters import begin_run

_PRIORITY = 50  # of the finalizer: after the end of the run (60), before the record is removed (0)


class Recorded:
    """The record of this process until it ends, or until an exporter keeps one in its place.

    ``root`` is the folder of spools, or that of the run; the attributes are those of the launcher, and a name.
    """

    _current: Recorded | None = None
    is_over = False

    def __init__(self, root: Path, attributes: Mapping[str, Any]) -> None:
        goes_on = (earlier := Recorded._current) is not None and not earlier.is_over  # that of ``monitel run``
        if goes_on and earlier is not None:
            earlier._give_way()
            silent.release(earlier)
            withdraw(earlier, again=True)
        Recorded._current = self
        begin_run(str(attributes.get("training.run.id", "")), goes_on=goes_on)
        self._attributes = attributes
        self._ledger = ledger = RunLedger(root, attributes)
        recorder = silent.hold(self, attributes=attributes, store=str(ledger.store))
        if recorder is not None and not is_launcher(sys.orig_argv):
            ledger.draw(recorder)
            ledger.start(lambda: latest(recorder), recorder.stage_times)
            silent.at_end.append(self._give_way)
        atexit.register(self._close_at_exit)  # after run.ended
        enter(self)
        if in_main_thread() and is_default():
            SigtermHandler(self._terminate, _preempt, replaceable=True).install()

    def close(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Store the end of this process, unless an exporter does it. The disk may delay that. Idempotent."""
        if not self.is_over:
            deadline = time.monotonic() + timeout - LEAST
            self._end()
            self._ledger.finish(max(LEAST, timeout - 4 * LEAST))
            if (series := silent.release(self)) is None:  # there was no place for a record
                return
            run_time, store = self._ledger.run_time(), self._ledger.store
            left = max(LEAST, deadline - time.monotonic())
            how: dict[str, Any] = {"spool": Path(), "stored": False, "store": store, "timeout": left}
            is_stored = ends.store_end(self._attributes, series, {}, run_time, **how)
            if run_time is not None and not is_stored:
                print_last_line(run_time)
            silent.give_way()  # of another owner, which SIGTERM does not end

    def _close_at_exit(self) -> None:
        with exit_timeout() as left:
            self.close(left)

    def _give_way(self) -> None:
        if not self.is_over:
            self._end()
            self._ledger.withdraw()

    def _end(self) -> None:
        self.is_over = True
        atexit.unregister(self._close_at_exit)  # which would keep the memory and the files of the record

    def _terminate(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        _preempt(timeout)
        self.close(timeout)
        end_on_sigterm(max(LEAST, deadline - time.monotonic()))  # for TensorBoard


def _end_child() -> None:
    if is_child() and Recorded._current is not None:
        Recorded._current._close_at_exit()


def _leave_to_parent() -> None:
    if Recorded._current is not None:
        Recorded._current._end()
        Recorded._current = None


finalize_with_children(_end_child, priority=_PRIORITY)
register_at_fork(after_in_child=_leave_to_parent)


def _preempt(_timeout: float) -> None:
    if os.getpid() != 1:  # process 1 of a container lives on
        preempt()
