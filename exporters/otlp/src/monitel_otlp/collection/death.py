"""The death of a process: facts from its black box, its parent and the kernel, and the event ``process.died``."""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monitel.attributes import escape_surrogates
from monitel.blackbox.forms import LogRecord
from monitel.blackbox.process import this_process
from monitel.crash_stacks import read_crash
from monitel_otlp.export.activity import Stage, since_snapshot_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.blackbox.process import Owner
    from monitel_otlp.messages.attributes import Plain
    from monitel_otlp.record import Record

_log = logging.getLogger("monitel.otlp")

NAME = "process.died"
_FATAL = 21
_CREATION = "creation"  # of the box
_MOST_STACKS = 32 << 10  # characters; Loki accepts 64 KB of attributes per log record
_SURVIVED_NS = 5 * 10**9  # a process that lives longer has survived its signal
_CURRENT = "Current thread"  # the beginning of its stack
_MOST_ENTRIES = 64  # waits and ranges in the event


@dataclass(frozen=True)
class End:
    """The end of a process, from its parent.

    Attributes:
        code: The exit code; None if a signal has ended the process, or if the code is unknown.
        signal: The number of the signal; None if there was none, or if it is unknown.
        time_ns: Time of the end, Unix ns; 0 if it is unknown.
        out_of_memory: The kernel has killed the process because the memory of its cgroup or machine was exhausted.
    """

    code: int | None = None
    signal: int | None = None
    time_ns: int = 0
    out_of_memory: bool = False


class Deaths:
    """The ends of processes of this machine that somebody has observed, for :func:`collect_boxes`.

    Process ids are those of the process id namespace of this process.

    Example:
        >>> from monitel_otlp.collection.death import Deaths, End
        >>> deaths = Deaths()
        >>> deaths.add(4711, End(signal=9))
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], End] = {}
        self._viewer = this_process()

    def add(self, pid: int, end: End, start: str = "") -> None:
        """Add the end of a process.

        Args:
            pid: The process id.
            end: The end.
            start: Start time of the process in ticks since the boot, as in :class:`monitel.blackbox.process.Owner`;
                empty if it is unknown.
        """
        self._ends[str(pid), start] = end

    def of(self, owner: Owner) -> End | None:
        """Return the end of a process; None if nobody has observed it."""
        if (owner.boot, owner.namespace) != (self._viewer.boot, self._viewer.namespace):
            return None
        return self._ends.get((owner.pid, owner.start)) or self._ends.get((owner.pid, ""))

    def cause(self, owner: Owner) -> tuple[str, int] | None:
        """Return how a process ended, in words, and when, Unix ns; None if nobody has observed it."""
        end = self.of(owner)
        if end is None or not end.time_ns:
            return None
        return Death(owner, end, SignOfLife(end.time_ns, "parent")).how, end.time_ns


class SignOfLife(NamedTuple):
    """A time at which a process is known to have lived.

    Attributes:
        time_ns: The time, Unix ns.
        source: The event at that time, e.g. ``"heartbeat"``.
    """

    time_ns: int
    source: str


@dataclass(frozen=True)
class Death:
    """Everything known about the death of one process. All durations are seconds at the time of death.

    Attributes:
        owner: The process.
        end: The end, from its parent or from the crash handler; None if it is unknown.
        last_seen: The last sign of life.
        step: The last training step; None if there was none.
        step_age: Seconds since the step was set; None if it is unknown.
        activity: The activity of the training thread; empty if it is unknown.
        activity_age: Seconds since the activity began; None if it is unknown.
        stage: Stage of a step that the training thread was in; None if it is unknown.
        waits: Waits in flight: key and seconds.
        ranges: Open ranges, outermost first: name and seconds.
        stacks: Stacks of the threads at a crash, else of the main thread in the last second; empty if there are none.
        missing: Facts that the box does not hold: a description and a number.
    """

    owner: Owner
    end: End | None
    last_seen: SignOfLife
    step: int | None = None
    step_age: float | None = None
    activity: str = ""
    activity_age: float | None = None
    waits: tuple[tuple[str, float], ...] = ()
    ranges: tuple[tuple[str, float], ...] = ()
    stacks: str = ""
    missing: dict[str, int] = field(default_factory=dict)
    stage: Stage | None = None

    @property
    def time_ns(self) -> int:
        """Time of the death, Unix ns: the last sign of life, if nobody has observed the end."""
        observed = self.end.time_ns if self.end is not None else 0
        return max(observed, self.last_seen.time_ns)

    @property
    def how(self) -> str:
        """The cause in words, e.g. ``"killed by SIGKILL"``."""
        end = self.end
        if end is None or (end.signal is None and end.code is None):
            return "ended without a shutdown"
        if end.signal is None:
            return f"ended with exit code {end.code} without a shutdown"
        memory = ", because the memory was exhausted" if end.out_of_memory else ""
        return f"killed by {signal_name(end.signal)}{memory}"

    def __str__(self) -> str:
        at = ""
        if self.step is not None:
            age = "" if self.step_age is None else f", {self.step_age:.1f} s after it was set"
            at = f" at step {self.step:,}{age}"
        return f"process {self.owner.pid} on {self.owner.host}: {self.how}{at}"

    def event(self) -> LogRecord:
        """Return the event."""
        attributes: dict[str, Plain] = {
            "message": escape_surrogates(str(self)),
            "process.pid": int(self.owner.pid),
            **self._exit(),
        }
        if self.step is not None:
            attributes["training.step"] = self.step
        if self.step_age is not None:
            attributes["training.step.age"] = self.step_age
        if self.activity:
            attributes["training.activity"] = escape_surrogates(self.activity)
        if self.activity_age is not None:
            attributes["training.activity.duration"] = self.activity_age
        if self.stage is not None:
            attributes["training.stage"] = escape_surrogates(self.stage.name)
            attributes["training.stage.age"] = self.stage.age_ns / 1e9
            attributes["training.stage.waits"] = self.stage.waits
        for noun, found in (("wait.key", self.waits), ("range.name", self.ranges)):
            if found:
                names, seconds = zip(*found[:_MOST_ENTRIES], strict=True)
                attributes[f"{noun}s"] = [escape_surrogates(name) for name in names]
                attributes[f"{noun.partition('.')[0]}.durations"] = list(seconds)
        if self.stacks:
            attributes["code.stacktrace"] = escape_surrogates(_shortened(self.stacks))
        for what, number in self.missing.items():
            attributes[f"monitel.box.missing.{what}"] = number
        return LogRecord(self.time_ns, time.time_ns(), _FATAL, NAME, None, attributes)

    def _exit(self) -> dict[str, Plain]:
        end = self.end or End()
        reason = "unknown"
        found: dict[str, Plain] = {}
        if end.code is not None:
            reason, found["process.exit.code"] = "code", end.code
        if end.signal is not None:
            reason, found["process.exit.signal"] = "signal", signal_name(end.signal)
        if end.out_of_memory:
            reason = "out_of_memory"
        found["process.exit.reason"] = reason
        if self.time_ns:
            moment = datetime.fromtimestamp(self.time_ns // 1_000_000 / 1000, timezone.utc)
            found["process.exit.time"] = moment.isoformat(timespec="milliseconds")
        observed = end.time_ns >= self.last_seen.time_ns and end.time_ns > 0
        if source := "parent" if observed else self.last_seen.source:
            found["process.exit.time.source"] = source
        return found


def death_of(record: Record, deaths: Deaths) -> Death:
    """Return the death of a process, from its record and from the ends that its parent has observed. Never raises."""
    try:
        death = _described(record, deaths)
        death.event()
    except Exception:  # the description is of another version of monitel, or damaged
        _log.debug("the description of a death cannot be read", exc_info=True)
        return Death(record.owner, deaths.of(record.owner), SignOfLife(0, ""), stacks=record.stacks)
    return death


def _described(record: Record, deaths: Deaths) -> Death:
    page = record.page
    now_ns = time.time_ns()
    last_seen = max(sign for sign in _signs(record) if sign.time_ns <= now_ns or sign.source == _CREATION)
    last_seen = last_seen._replace(time_ns=min(last_seen.time_ns, now_ns))
    end = deaths.of(record.owner)
    crash = read_crash(record.stacks)
    survived = crash is not None and last_seen.time_ns - crash.time_ns > _SURVIVED_NS
    if crash is not None and not survived and (end is None or end.signal is end.code is None):
        end = replace(end or End(), signal=crash.signal)
    if (end is None or (end.code is None and end.signal in {None, signal.SIGKILL})) and killed_for_memory(record.owner):
        end = replace(end or End(), signal=signal.SIGKILL, out_of_memory=True)
    time_ns = max(last_seen.time_ns, 0 if end is None else end.time_ns)
    doing, snapshot_ns = record.doing, record.snapshot_ns
    step_age = None if page.step_ns is None else _age(page.unix_ns(page.step_ns), time_ns)
    since_snapshot = since_snapshot_ns(time_ns, snapshot_ns, None) / 1e9
    since_ns = since_snapshot_ns(time_ns, snapshot_ns, None if step_age is None else round(step_age * 1e9))
    waits = [(key, seconds + since_snapshot) for key, _, seconds in doing.get("waits", ())]
    if page.heartbeat_ns is not None:  # the page is newer than the snapshot
        waits = [(wait.key, _age(page.unix_ns(wait.start_ns), time_ns) or 0.0) for wait in page.waits]
    activity, activity_seconds = doing.get("activity") or ("", None)
    return Death(
        record.owner,
        end,
        last_seen,
        doing.get("step") if page.step is None else page.step,
        step_age,
        activity,
        None if activity_seconds is None else activity_seconds + since_ns / 1e9,
        tuple(sorted(waits, key=lambda wait: -wait[1])),
        tuple((name, seconds + since_snapshot) for name, seconds in doing.get("ranges", ())),
        record.stack if survived or not record.stacks else record.stacks,
        {"waits": page.waits_left_out} if page.waits_left_out else {},
        Stage.of(doing, since_ns),
    )


def _age(began_ns: int | None, time_ns: int) -> float | None:
    return None if began_ns is None else max(0, time_ns - began_ns) / 1e9


def _signs(record: Record) -> Iterator[SignOfLife]:
    """Yield the signs of life in a record. There is always one."""
    page = record.page
    yield SignOfLife(record.created_ns, _CREATION)
    if record.snapshot_ns is not None:
        yield SignOfLife(record.snapshot_ns, "heartbeat")
    if page.heartbeat_unix_ns is not None:
        yield SignOfLife(page.heartbeat_unix_ns, "heartbeat")
    if (crash := read_crash(record.stacks)) is not None:
        yield SignOfLife(crash.time_ns, "crash")
    for moment_ns, source in ((page.step_ns, "step"), *((wait.start_ns, "wait") for wait in page.waits)):
        if moment_ns is not None and (unix_ns := page.unix_ns(moment_ns)) is not None:
            yield SignOfLife(unix_ns, source)
    yield from (SignOfLife(event.observed_ns, "event") for event in record.events)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``"SIGKILL"``; for one without a name its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _shortened(text: str) -> str:
    """Return the beginning of stacks, and those of the thread that received the signal, which may come last."""
    if len(text) <= _MOST_STACKS:
        return text
    current = max(0, text.find(_CURRENT))
    least = min(current, _MOST_STACKS // 2)
    end = text[current : current + _MOST_STACKS - least] if current > least else ""
    begin = text[: _MOST_STACKS - len(end)]
    return f"{begin}\n... ({len(text) - len(begin) - len(end):,} more characters)\n{end}".rstrip("\n")


_KERNEL_LOG = Path("/dev/kmsg")
_KILLED = re.compile(rb"^\d+,\d+,(\d{1,18}),[^;\n]*;[^\n]*\bKilled process (\d{1,10}) \(", re.MULTILINE)
_FIRST_NAMESPACE = "4026531836"  # the log has the process ids of this namespace
_RECORD_BYTES = 8192  # the most that one read returns
_MOST_RECORDS = 100_000


def killed_for_memory(owner: Owner) -> bool:
    """Return True if the kernel logged that it killed a process because memory was exhausted.

    Many systems show the log only to root: then the result is False. The same holds for a process in a container with a
    separate process id namespace, and for a log that has been overwritten. Never raises.
    """
    if owner.namespace != _FIRST_NAMESPACE or owner.boot != this_process().boot:
        return False
    try:
        started_us = int(owner.start) * 1_000_000 // os.sysconf("SC_CLK_TCK")
        found = _KILLED.findall(_read_log())
    except (OSError, ValueError):
        return False
    return any(pid.decode() == owner.pid and int(time_us) >= started_us for time_us, pid in found)


def _read_log() -> bytes:
    descriptor = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    records = []
    try:
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BrokenPipeError:  # the kernel has overwritten the next record
                continue
            except BlockingIOError:
                break
            if not record:
                break
            if b"Killed" in record:
                records.append(record)
    finally:
        os.close(descriptor)
    return b"".join(records)
