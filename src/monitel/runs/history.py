"""The time of a run: its attempts, and how their times add up.

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

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from monitel.runs.stored import StoredError, dump, load
from monitel.runs.values import RunValues
from monitel.training.counters import DOWN, Past

Mark = tuple[int, int]  # a step, and the time in `step` before it

VERSION = 2
MARKS = 256  # marks of a line, at most
#: The name of the time of steps that a later attempt has made again.
REPEATED = "repeated"
STEP = "step"

_EARLY = ("startup", "init", "compile", "checkpoint.load", "data")  # what a process does first
TOLERANCE_NS = 10**8  # of the start of a process, which the system rounds down


class _Elapsed:
    activities: Mapping[str, int]
    last_ns: int

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds from the start to the last heartbeat."""
        return sum(self.activities.values())

    @property
    def start_ns(self) -> int:
        """The start, nanoseconds since the Unix epoch."""
        return self.last_ns - self.elapsed_ns


@dataclass(frozen=True)
class Attempt(_Elapsed):
    """One process of a run, up to its last heartbeat. Times are nanoseconds."""

    name: str  # unique; it ends with the process id
    activities: Mapping[str, int]
    last_ns: int  # last heartbeat since the Unix epoch
    boot: str = ""  # id of the boot of the machine; empty if it has none
    boot_ns: int = 0  # last heartbeat by the clock of the machine since its boot
    status: str = ""  # ``completed``, ``failed``, ``interrupted`` or ``preempted``; empty before the end
    begin: int | None = None  # the step at which it begins; None if it is unknown
    marks: tuple[Mark, ...] = ()  # ascending; the first is `begin`, unless the process has set a lower step later
    steps: int = 0  # that were made, repeated and skipped ones included
    down_ns: int = 0  # between the last heartbeat of its predecessor and its start
    overlap_ns: int = 0  # for which its predecessor went on after its start
    stages: Mapping[str, int] = field(default_factory=dict)  # in all cycles of the training loop

    @property
    def last_step(self) -> int | None:
        """The last step; None if there is none."""
        return self.marks[-1][0] if self.marks else self.begin

    @property
    def counted(self) -> dict[str, int]:
        """The activities without the overlap, which is taken from what a process does first."""
        found, left = dict(self.activities), self.overlap_ns
        for name in (*(each for each in _EARLY if each in found), *(each for each in found if each not in _EARLY)):
            taken = min(found[name], left)
            found[name] -= taken
            left -= taken
        return found

    def after(self, previous: Attempt | None) -> Attempt:
        """Return the attempt with its gap to the one before, or its overlap with it. Neither is negative.

        On one machine without a restart in between, its clock since the boot is used, which nobody can set. Otherwise
        the difference of the wall clocks is used; a clock that was set back by more than this process has lasted shows
        neither a gap nor an overlap.
        """
        if previous is None:
            return self
        if self.boot and self.boot == previous.boot:
            gap_ns = self.boot_ns - self.elapsed_ns - previous.boot_ns
        else:
            gap_ns = self.start_ns - previous.last_ns
            gap_ns = 0 if -gap_ns > self.elapsed_ns else gap_ns
        return replace(self, down_ns=max(gap_ns, 0), overlap_ns=min(max(-gap_ns, 0), self.elapsed_ns))


@dataclass(frozen=True)
class RunTime(_Elapsed):
    """The time of a run up to the last heartbeat, or the end, of its last attempt. Times are nanoseconds."""

    run: str = ""  # its id; empty without one
    activities: Mapping[str, int] = field(default_factory=dict)  # with ``down`` and ``repeated``
    attempts: int = 0
    last_ns: int = 0  # since the Unix epoch
    status: str = ""  # of the last attempt
    stages: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    last_step: int | None = None
    line: tuple[Mark, ...] = ()  # empty if no step is known

    @property
    def goodput(self) -> float | None:
        """The share of ``step``, without what is repeated, in the elapsed time; None before the first step."""
        steps_ns, elapsed_ns = self.activities.get(STEP), self.elapsed_ns
        return None if steps_ns is None or not elapsed_ns else steps_ns / elapsed_ns

    @property
    def waiting(self) -> dict[str, float]:
        """The shares of the cycles that wait for other ranks and for data, as a verdict has them."""
        cycles_ns = sum(self.stages.values())
        stages = {"other ranks": "sync", "data": "data"} if cycles_ns > 0 else {}
        return {name: self.stages[stage] / cycles_ns for name, stage in stages.items() if stage in self.stages}

    def repeated_by(self, begin: int | None) -> int:
        """Return the time in ``step`` that is repeated when an attempt begins at a step."""
        return self.line[-1][1] - at(self.line, begin) if self.line and begin is not None else 0


@dataclass(frozen=True)
class History:
    """A run up to the last heartbeat of its last attempt."""

    earlier: RunTime  # the attempts before the last one
    attempt: Attempt
    values: RunValues = field(default_factory=RunValues)

    @property
    def time(self) -> RunTime:
        """The time of the run, which is that of the earlier attempts of the next one."""
        earlier, attempt = self.earlier, self.attempt
        counted = attempt.counted
        found = summed(earlier.activities, counted)
        if attempt.down_ns:
            found[DOWN] = found.get(DOWN, 0) + attempt.down_ns
        if repeated_ns := earlier.repeated_by(attempt.begin):
            found[STEP] -= repeated_ns
            found[REPEATED] = found.get(REPEATED, 0) + repeated_ns
        last_step = earlier.last_step if attempt.last_step is None else attempt.last_step
        line = _line_after(earlier, attempt, counted.get(STEP, 0))
        steps, stages = earlier.steps + attempt.steps, summed(earlier.stages, attempt.stages)
        ended = attempt.last_ns, attempt.status
        return RunTime(earlier.run, found, earlier.attempts + 1, *ended, stages, steps, last_step, line)

    @property
    def past(self) -> Past:
        """The past of the last attempt, for its counters."""
        earlier, attempt = self.earlier, self.attempt
        before_ns = earlier.elapsed_ns + attempt.down_ns - attempt.overlap_ns
        return Past(before_ns, earlier.activities.get(STEP, 0), attempt.down_ns)


def at(line: tuple[Mark, ...], step: int) -> int:
    """Return the time in ``step`` before a step, by interpolation; beyond the line, that of its end."""
    if not line or step <= line[0][0]:
        return line[0][1] if line else 0
    for (low, low_ns), (high, high_ns) in pairwise(line):
        if step < high:
            return low_ns + (step - low) * (high_ns - low_ns) // (high - low)
    return line[-1][1]


def ascending(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    """Return marks without those that do not rise, thinned out to at most ``MARKS``. First and last mark stay."""
    found: list[Mark] = []
    for step, before_ns in marks:
        if not found or (step > found[-1][0] and before_ns >= found[-1][1]):
            found.append((step, before_ns))
    while len(found) > MARKS:
        found = [*found[:-1:2], found[-1]]
    return tuple(found)


def _line_after(earlier: RunTime, attempt: Attempt, productive_ns: int) -> tuple[Mark, ...]:
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
    """Return the sums of the values of two mappings."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def encode(history: History) -> bytes:
    """Return the stored form of a history."""
    content = dump({"version": VERSION, "earlier": history.earlier, "attempt": history.attempt})
    return content[:-1] + b',"values":' + history.values.stored + b"}"


def decode(content: bytes) -> History:
    """Return a stored history; raises StoredError if it is damaged, or has another version."""
    found = load(History, content, VERSION)
    try:
        time.localtime(found.time.start_ns / 1e9)
    except Exception:  # its numbers do not fit together
        raise StoredError("is damaged") from None
    return found
