"""Counters of the training, which sources and adapters share, and the time of the run by activity, with the goodput.

A run may have several attempts: processes, one after the other. An exporter that stores the ledger of a run calls
:func:`continue_run` and :func:`repeat`. A process may have several runs: an exporter calls :func:`begin_run` for each.
Counters go on: they are those of the process.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from monitel.counter import (
    Counter,
    CounterReading,
    PlainCounter,
    before_reading,
    counters,
    forget_counters,
    own_counter,
    plain_counters,
)
from monitel.process.failures import warn_once
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock
from monitel.training import activities, step
from monitel.training.activities import Ledger

#: Unit and description of each of these counters.
COUNTERS = {
    "training.steps": ("{step}", "Applied optimizer steps"),
    "training.steps.skipped": ("{step}", "Optimizer steps skipped by gradient scaling"),
    "training.samples": ("{sample}", "Samples in training"),
    "training.tokens": ("{token}", "Tokens in training"),
    "training.recompilations": ("{recompilation}", "Compilations of code that was compiled before"),
    "training.recompilation.time": ("s", "Time of compilations of code that was compiled before"),
    "training.time": ("s", "Wall-clock time by activity"),
}
#: The options by which torch's instrumentation counts them, too.
_OPTIONS = {"training.samples": "samples_per_step", "training.tokens": "tokens_per_step"}

#: The counter of the time by activity.
NAME = "training.time"
DOWN, LOST = "down", "lost"

#: Name, unit and description of the gauge.
GOODPUT = "training.goodput", "1", "Share of productive steps in the time of the run"


def training_counter(name: str, attributes: Mapping[str, str] | None = None) -> Counter:
    """Return one of these counters by its name and attributes, with its unit and description."""
    return own_counter(name, *COUNTERS[name], attributes)


def begin_counters(*, tokens: bool) -> None:
    """Create the counters at the start of the training, from which they count; that of tokens on request."""
    training_counter("training.steps")
    training_counter("training.samples")
    if tokens:
        training_counter("training.tokens")


def count_work(name: str, number: int = 1) -> None:
    """Count steps, samples or tokens, unless the running instrumentation of torch counts them."""
    instrumentation = sys.modules.get("monitel.torch.instrumentation")
    running = None if instrumentation is None else instrumentation._running
    counted = running and "steps" in running.sources and (name not in _OPTIONS or running._options[_OPTIONS[name]])
    if number and not counted:
        training_counter(name).add(number)


class Past(NamedTuple):
    """The earlier attempts of this process's run."""

    elapsed_ns: int  # from the start of the first attempt to the start of this process
    productive_ns: int  # time in step, without what is lost
    down_ns: int  # from the end of the last attempt to the start of this process


class Before(NamedTuple):
    """The totals of this process when its run began."""

    time_ns: int = 0  # Unix; 0 for a run that begins with the process
    activities: Mapping[str, int] = {}  # nanoseconds of each
    counters: Mapping[Counter, float] = {}  # the total of each

    @property
    def plain(self) -> tuple[int, list[PlainCounter]] | None:
        """The plain value ``before`` in :mod:`monitel.blackbox.forms`."""
        return (self.time_ns, plain_counters(self.counters.items())) if self.time_ns else None

    def ledger(self) -> Ledger | None:
        """Return the ledger of this process since then; None without one."""
        if (book := activities.ledger()) is None or not self.activities:
            return book
        rests = {name: time_ns - self.activities.get(name, 0) for name, time_ns in book.activities.items()}
        before_ns = sum(self.activities.values())
        return book._replace(
            elapsed_ns=book.elapsed_ns - before_ns,
            activities={name: time_ns for name, time_ns in rests.items() if time_ns},
            start_ns=book.start_ns + before_ns,
        )


_NO_PAST = Past(0, 0, 0)
_NOTHING = Before()
_log = logging.getLogger("monitel")
_past = _NO_PAST
_before = _NOTHING
_run: str | None = None  # id of the run of this process; empty for a run without one
_lost_ns = 0
_shown = 0, 0  # in the last reading of the counters, the time in ``step`` and the part of it that is lost too
_lock = RLock()


def begin_run(run: str, *, goes_on: bool = False) -> None:
    """Begin a run in this process, unless it is the run that the process has already, or goes on without an id.

    The first one has begun with the process, but not in an interactive session, such as a notebook.
    """
    global _run, _before
    earlier, _run = _run, run
    if (earlier is None and not hasattr(sys, "ps1")) or goes_on or (run and run == earlier):
        return
    activities.begin_startup()
    book, totals = activities.ledger(), {each.counter: each.total for each in counters()}
    _before = Before(time.time_ns(), {} if book is None else book.activities, totals)
    step.begin_again()
    continue_run(_NO_PAST)
    repeat(0)


def before() -> Before:
    """Return the totals of this process when its run began."""
    return _before


def continue_run(past: Past) -> None:
    """Continue a run: the time since its last attempt is ``down``."""
    global _past
    _past = past


def repeat(lost_ns: int) -> None:
    """Count time of earlier attempts as lost, because this process makes their last steps again.

    A counter cannot fall, so ``training.time`` shows time in ``step`` that no reading has shown yet as ``lost``, until
    it is this long.
    """
    global _lost_ns
    _lost_ns = lost_ns


def goodput() -> float | None:
    """Return the share of ``step``, less what is lost, in the time of the run; None before the first step."""
    book = _before.ledger()
    if book is None or "step" not in book.activities:
        return None
    productive_ns = _past.productive_ns + book.activities["step"] - _lost_ns
    return max(productive_ns, 0) / max(_past.elapsed_ns + book.elapsed_ns, productive_ns, 1)


def _read() -> tuple[Ledger | None, int]:
    """Return the ledger, and the part of the time in ``step`` that the counters show as lost."""
    global _shown
    while True:
        shown = step_before_ns, lost_before_ns = _shown
        book = activities.ledger()
        step_ns = 0 if book is None else book.activities.get("step", 0)
        lost_ns = lost_before_ns + max(0, min(_lost_ns - lost_before_ns, step_ns - step_before_ns))
        new = step_ns, lost_ns
        with _lock:  # without a call: a signal handler that has interrupted an activity waits for no other thread
            unchanged = _shown is shown  # else another thread has read, and perhaps shown more as lost
            if unchanged:
                _shown = new
        if unchanged:
            return book, lost_ns


def _follow_ledger() -> list[CounterReading]:
    """Set the counters to the ledger's totals, if there has been an activity or a step."""
    book, lost_ns = _read()
    if book is None or not {*book.activities} - {"startup", "shutdown"}:
        return []
    totals = dict(book.activities)
    if lost_ns:
        totals["step"] -= lost_ns
    for name, past_ns in ((LOST, lost_ns), (DOWN, _past.down_ns)):
        if past_ns:
            totals[name] = totals.get(name, 0) + past_ns  # a program may use the name itself
    found = []
    for name, total_ns in totals.items():
        made = training_counter(NAME, {"training.activity": name})
        if made.unit != COUNTERS[NAME][0]:
            message = "a counter %r with the unit %r exists: the ledger is not exported; rename it"
            warn_once(_log, message, NAME, made.unit)
            return []
        found.append(made._follow(total_ns / 1e9, book.start_ns))
    return found


def _forget() -> None:
    """Start without a past and without counters, in a forked child."""
    global _lock, _shown, _run, _before
    _lock = RLock()
    _shown = 0, 0
    _run, _before = None, _NOTHING
    continue_run(_NO_PAST)
    repeat(0)
    forget_counters(NAME)


before_reading(_follow_ledger)
register_at_fork(after_in_child=_forget)
