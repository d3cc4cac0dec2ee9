"""The attempts of a run, and how their times add up.

A run is a sequence of attempts: processes that have the same run id, one after the other. Let attempt *k* have the
elapsed time ``e[k]``, divided into activities. Between its predecessor's last heartbeat and its start lies either the
gap ``d[k]``, which is ``down``, or the overlap ``o[k]``, which the predecessor has already counted; at least one of
them is zero. The time of the run is the sum of all ``e[k] + d[k] - o[k]``: from the first start to the last heartbeat.

The *line* of a run is its productive time by step, without repeated time: pairs of a step and the time in ``step``
before it, the last of them for the step after the last one. ``at(line, n)`` interpolates between them. An attempt that
begins at step *n* makes all later steps again. So

* ``repeated`` grows by ``total(line) - at(line, n)``, and ``step`` falls by the same time, once;
* the line is cut at *n*, and continues with the steps of the attempt.

Only an attempt that sets its step itself begins at a known step. Its time in ``step`` before that, and that of other
attempts, belongs to no step: nothing of it is ever repeated, and it repeats nothing. The first attempt begins at the
step that it counts first, even after attempts without a step.

The name ``repeated`` is that of texts and JSON; the counter ``training.time`` exports the time as ``lost``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from monitel.console.ledger.shares import REPEATED, STEP, RunTime
from monitel.console.stored import StoredError, load
from monitel.console.text import moment
from monitel.console.values import Attempted
from monitel.training_time import DOWN, Past

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Mark = tuple[int, int]  # a step, and the time in `step` before it

VERSION = 1
MARKS = 256  # marks of a line, at most

_EARLY = ("startup", "init", "compile", "checkpoint.load", "data")  # what a process does first
_TOLERANCE_NS = 10**8  # of the start of a process, which the system rounds down


@dataclass(frozen=True)
class Attempt:
    """One process of a run, up to its last heartbeat.

    Attributes:
        name: Unique name of the process.
        activities: Nanoseconds of each activity of the process.
        last_ns: Last heartbeat, nanoseconds since the Unix epoch.
        boot: Boot id of the machine; empty if it has none.
        boot_ns: Last heartbeat by the clock of the machine since its boot.
        ended: The process has ended its ledger.
        begin: The step at which the attempt begins; None if it is unknown.
        marks: Steps in ascending order, each with the time in ``step`` before it. ``begin`` is the first, unless the
            process has set a lower step later.
        down_ns: Time between the predecessor's last heartbeat and the start of this attempt.
        overlap_ns: Time that the predecessor's last heartbeat is after the start of this attempt.
        stages: Nanoseconds of each stage in all cycles of the training loop; empty if nothing measures them.
    """

    name: str
    activities: Mapping[str, int]
    last_ns: int
    boot: str = ""
    boot_ns: int = 0
    ended: bool = False
    begin: int | None = None
    marks: tuple[Mark, ...] = ()
    down_ns: int = 0
    overlap_ns: int = 0
    stages: Mapping[str, int] = field(default_factory=dict)

    @property
    def attempted(self) -> Attempted:
        """The name of the attempt and its steps."""
        return Attempted(self.name, self.begin, self.marks[-1][0] if self.marks else self.begin)

    @property
    def elapsed_ns(self) -> int:
        """The time of the process."""
        return sum(self.activities.values())

    @property
    def counted(self) -> dict[str, int]:
        """The activities without the overlap, which is taken from what a process does first."""
        found, left = dict(self.activities), self.overlap_ns
        for name in (*(each for each in _EARLY if each in found), *(each for each in found if each not in _EARLY)):
            taken = min(found[name], left)
            found[name] -= taken
            left -= taken
        return found


@dataclass(frozen=True)
class Earlier:
    """All earlier attempts of a run.

    Attributes:
        attempts: Their number.
        activities: Nanoseconds of each activity, with ``down`` and ``repeated``.
        line: The line of the run; empty if no step is known.
        stages: Nanoseconds of each stage.
    """

    attempts: int = 0
    activities: Mapping[str, int] = field(default_factory=dict)
    line: tuple[Mark, ...] = ()
    stages: Mapping[str, int] = field(default_factory=dict)

    @property
    def elapsed_ns(self) -> int:
        """From the first start to the last heartbeat."""
        return sum(self.activities.values())


@dataclass(frozen=True)
class History:
    """A run up to the last heartbeat of its last attempt."""

    run: str
    earlier: Earlier
    attempt: Attempt


def at(line: tuple[Mark, ...], step: int) -> int:
    """Return the time in ``step`` before a step, by interpolation; beyond the line, that of its end."""
    if not line or step <= line[0][0]:
        return line[0][1] if line else 0
    for (low, low_ns), (high, high_ns) in pairwise(line):
        if step < high:
            return low_ns + (step - low) * (high_ns - low_ns) // (high - low)
    return line[-1][1]


def repeated_by(earlier: Earlier, begin: int | None) -> int:
    """Return the time in ``step`` that is repeated when an attempt begins at a step."""
    return earlier.line[-1][1] - at(earlier.line, begin) if earlier.line and begin is not None else 0


def fold(history: History) -> Earlier:
    """Return the earlier attempts of the next one: all attempts so far."""
    earlier, attempt = history.earlier, history.attempt
    counted = attempt.counted
    found = summed(earlier.activities, counted)
    if attempt.down_ns:
        found[DOWN] = found.get(DOWN, 0) + attempt.down_ns
    if repeated_ns := repeated_by(earlier, attempt.begin):
        found[STEP] -= repeated_ns
        found[REPEATED] = found.get(REPEATED, 0) + repeated_ns
    line = _line_after(earlier, attempt, counted.get(STEP, 0))
    return Earlier(earlier.attempts + 1, found, line, summed(earlier.stages, attempt.stages))


def run_time(history: History) -> RunTime:
    """Return the time of the run."""
    total, last = fold(history), history.attempt
    start_ns = last.last_ns - total.elapsed_ns
    times = total.elapsed_ns, total.attempts, start_ns, last.last_ns
    return RunTime(history.run, total.activities, *times, last.ended, total.stages)


def past_of(history: History) -> Past:
    """Return the past of the last attempt, for its counters."""
    earlier, attempt = history.earlier, history.attempt
    before_ns = earlier.elapsed_ns + attempt.down_ns - attempt.overlap_ns
    return Past(before_ns, earlier.activities.get(STEP, 0), attempt.down_ns)


def gap(previous: Attempt, *, start_ns: int, boot: str, boot_start_ns: int, elapsed_ns: int) -> tuple[int, int]:
    """Return the time between an attempt and the next one, and their overlap. Neither is negative.

    On one machine without a restart in between, its clock since the boot is used, which nobody can set. Otherwise the
    difference of the wall clocks is used; a clock that was set back by more than the new process has lasted shows
    neither a gap nor an overlap.

    Args:
        previous: The attempt before.
        start_ns: Start of the new process, nanoseconds since the Unix epoch.
        boot: Boot id of its machine.
        boot_start_ns: Start by the clock of its machine since the boot.
        elapsed_ns: Time of the new process up to now.
    """
    if boot and boot == previous.boot:
        gap_ns = boot_start_ns - previous.boot_ns
    else:
        gap_ns = start_ns - previous.last_ns
        if -gap_ns > elapsed_ns:
            return 0, 0
    return max(gap_ns, 0), min(max(-gap_ns, 0), elapsed_ns)


def after(previous: Attempt | None, attempt: Attempt) -> Attempt:
    """Return an attempt with its gap to the one before, or its overlap with it."""
    if previous is None:
        return attempt
    elapsed_ns = attempt.elapsed_ns
    down_ns, overlap_ns = gap(
        previous,
        start_ns=attempt.last_ns - elapsed_ns,
        boot=attempt.boot,
        boot_start_ns=attempt.boot_ns - elapsed_ns,
        elapsed_ns=elapsed_ns,
    )
    return replace(attempt, down_ns=down_ns, overlap_ns=overlap_ns)


def joined(found: History | None, starts: Iterable[Attempt], own: History) -> tuple[History, Past]:
    """Return the run with a new attempt, and its past for the counters.

    A start that failed is an attempt if it lies between the last one and the new one. Any other start is that of a
    parent or a helper. Those without an activity have exported no ``training.time``.

    Args:
        found: The run so far; None if there is none.
        starts: The starts that failed, in the order of their ends.
        own: The new attempt, as if there were no other.
    """
    earlier, last = (Earlier(), None) if found is None else (fold(found), found.attempt)
    failed_ns = unseen_ns = 0
    for each in starts:
        start = after(last, each)
        overlap_ns = max(start.overlap_ns, after(start, own.attempt).overlap_ns)
        if start.name != own.attempt.name and overlap_ns <= _TOLERANCE_NS:
            earlier, last = fold(History(own.run, earlier, start)), start
            failed_ns += start.down_ns
            if not {*start.activities} - {"startup", "shutdown"}:
                unseen_ns += start.elapsed_ns - start.overlap_ns
    history = History(own.run, earlier, after(last, own.attempt))
    past = past_of(history)
    return history, past._replace(down_ns=past.down_ns + failed_ns, startup_ns=unseen_ns)


def ascending(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    """Return marks without those that do not rise, thinned out to at most ``MARKS``. First and last mark stay."""
    found: list[Mark] = []
    for step, before_ns in marks:
        if not found or (step > found[-1][0] and before_ns >= found[-1][1]):
            found.append((step, before_ns))
    while len(found) > MARKS:
        found = [*found[:-1:2], found[-1]]
    return tuple(found)


def _line_after(earlier: Earlier, attempt: Attempt, productive_ns: int) -> tuple[Mark, ...]:
    """Return the line after an attempt."""
    begin, marks = attempt.begin, attempt.marks
    if begin is None:
        if not marks or STEP in earlier.activities:
            return earlier.line
        begin = marks[0][0]
    marks = marks or ((begin, productive_ns),)
    base_ns, zero_ns = at(earlier.line, begin), min(marks[0][1], productive_ns)  # zero: before the first known step
    kept = [mark for mark in earlier.line if mark[0] < min(begin, marks[0][0])]
    own = [(step, base_ns + min(before_ns, productive_ns) - zero_ns) for step, before_ns in marks]
    end = marks[-1][0] + 1, base_ns + productive_ns - zero_ns
    return ascending([*kept, *own, end])


def summed(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of two mappings."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def encode(history: History) -> bytes:
    """Return the stored form of a history."""
    parts = {"earlier": vars(history.earlier), "attempt": vars(history.attempt)}
    return json.dumps({"version": VERSION, "run": history.run, **parts}, separators=(",", ":")).encode()


def decode(content: bytes) -> History:
    """Return a stored history.

    Raises:
        StoredError: The content is damaged, or has another version.
    """
    found = load(History, content, VERSION)
    try:
        moment(run_time(found).start_ns)
    except Exception:  # its numbers do not fit together
        raise StoredError("is damaged") from None
    return found
