"""The death of a process: facts from its record, its parent and the kernel, and the event ``process.died``."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from monitel.attributes import escape_surrogates
from monitel.blackbox.activity import Doing, Wait
from monitel.blackbox.forms import LogRecord
from monitel.blackbox.process import Owner
from monitel.blackbox.reading import Record
from monitel.process.crash_stacks import crash_signal
from monitel.training.activities import Stage

NAME = "process.died"
_INFO, _FATAL = 9, 21
_CREATION = "creation"  # of the record
_MOST_STACKS = 32 << 10  # characters; Loki accepts 64 KB of attributes per log record
_CURRENT = "Current thread"  # the beginning of its stack
_MOST_ENTRIES = 64  # waits and ranges in the event
_KERNEL_LOG = Path("/dev/kmsg")
_KILLED = re.compile(rb"^\d+,\d+,(\d{1,18}),[^;\n]*;[^\n]*\bKilled process (\d{1,10}) \(", re.MULTILINE)
_FIRST_NAMESPACE = "pid:[4026531836]"  # the log has the process ids of this namespace
_MOST_RECORDS = 100_000


@dataclass(frozen=True)
class End:
    """The end of a process, from its parent or from the stacks of a crash; by default it is unknown."""

    code: int | None = None  # None if a signal has ended it, or if it is unknown
    signal: int | None = None  # None if there was none, or if it is unknown
    time_ns: int = 0  # Unix; 0 if it is unknown
    out_of_memory: bool = False  # the kernel has killed it, because the memory of its cgroup or machine was exhausted

    @property
    def how(self) -> str:
        """The cause in words, e.g. ``"killed by SIGKILL"``."""
        if self.signal is not None:
            memory = ", because the memory was exhausted" if self.out_of_memory else ""
            return f"killed by {signal_name(self.signal)}{memory}"
        exit_code = "" if self.code is None else f"with exit code {self.code} "
        return f"ended {exit_code}without a shutdown"


class Deaths:
    """The ends of processes that their parent has observed, on this machine and in its namespace of process ids."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], End] = {}

    def add(self, pid: int, end: End, start: str = "") -> None:
        """Add the end of a process; ``start`` is its start time in ticks since the boot, empty if it is unknown."""
        self._ends[str(pid), start] = end

    def observe(self, pid: int, start: str, status: int | None, time_ns: int) -> None:
        """Add the end of a process, with its status as ``os.waitpid`` returns it; None if it is unknown."""
        code = signal = None
        if status is not None:
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
            signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        self.add(pid, End(code, signal, time_ns), start)

    def of(self, owner: Owner) -> End | None:
        if not owner.is_near:
            return None
        return self._ends.get((owner.pid, owner.start)) or self._ends.get((owner.pid, ""))

    def cause(self, owner: Owner) -> tuple[str, int] | None:
        """Return how a process ended, in words, and when, Unix ns; None if nobody has observed it."""
        end = self.of(owner)
        return (end.how, end.time_ns) if end is not None and end.time_ns else None


#: A time, Unix ns, at which a process is known to have lived, and its source, e.g. "heartbeat".
SignOfLife = tuple[int, str]


@dataclass(frozen=True)
class Death:
    """Everything known about the death of one process."""

    owner: Owner
    end: End = End()
    last_seen: SignOfLife = (0, "")
    doing: Doing = Doing()  # noqa: RUF009  immutable
    stacks: str = ""  # of the threads at a crash, else that of the main thread in the last second
    exception: tuple[str, str, str] | None = None  # type, message and place of the last one that was not caught

    @property
    def time_ns(self) -> int:
        """Time of the death, Unix ns: the last sign of life, if nobody has observed the end."""
        return max(self.end.time_ns, self.last_seen[0])

    def __str__(self) -> str:
        step, age_ns = self.doing[:2]
        age = "" if age_ns is None else f", {age_ns / 1e9:.1f} s after it was set"
        at = "" if step is None else f" at step {step:,}{age}"
        return f"process {self.owner.pid} on {self.owner.host}: {self.end.how}{at}"

    @classmethod
    def of(cls, owner: Owner, event: LogRecord) -> Death:
        """Return the death that :meth:`event` has described; raises for senseless values."""
        known = event.attributes
        memory = known.get("process.exit.reason") == "out_of_memory"
        end = End(known.get("process.exit.code"), _signal_number(known.get("process.exit.signal")), 0, memory)
        stage = None
        if (name := known.get("training.stage")) is not None:
            age_ns = _ns(known["training.stage.age"]) or 0
            stage = Stage(str(name), bool(known["training.stage.waits"]), age_ns)
        waits, ranges = (
            tuple(Wait(str(key), _ns(age) or 0) for key, age in zip(known[keys], known[ages], strict=True))
            if keys in known
            else ()
            for keys, ages in (("wait.keys", "wait.durations"), ("range.names", "range.durations"))
        )
        doing = Doing(
            known.get("training.step"),
            _ns(known.get("training.step.age")),
            str(known.get("training.activity", "")),
            _ns(known.get("training.activity.duration")),
            stage,
            waits,
            ranges,
        )
        exception = None
        if (kind := known.get("exception.type")) is not None:
            place = f"{known.get('code.file.path', '')}:{known.get('code.line.number', '')}".strip(":")
            exception = str(kind), str(known.get("exception.message", "")), place
        stacks = str(known.get("code.stacktrace", ""))
        return cls(owner, end, (event.time_ns, ""), doing, stacks, exception)

    def event(self) -> LogRecord:
        doing = self.doing
        known: dict[str, Any] = {
            "message": str(self),
            "process.pid": int(self.owner.pid),
            **self._exit(),
            "training.step": doing.step,
            "training.step.age": _seconds(doing.step_age_ns),
            "training.activity": doing.activity or None,
            "training.activity.duration": _seconds(doing.activity_age_ns),
        }
        if doing.stage is not None:
            known["training.stage"] = doing.stage.name
            known["training.stage.age"], known["training.stage.waits"] = doing.stage.age_ns / 1e9, doing.stage.waits
        for noun, found in (("wait.key", doing.waits), ("range.name", doing.ranges)):
            if found:
                known[f"{noun}s"] = [escape_surrogates(each.key) for each in found[:_MOST_ENTRIES]]
                known[f"{noun.partition('.')[0]}.durations"] = [each.age_ns / 1e9 for each in found[:_MOST_ENTRIES]]
        known["code.stacktrace"] = _shortened(self.stacks) or None
        known["exception.type"], known["exception.message"], place = self.exception or (None, None, "")
        file, _, line = place.rpartition(":")
        known["code.file.path"], known["code.line.number"] = file or None, int(line) if line.isdecimal() else None
        attributes = {
            key: escape_surrogates(value) if isinstance(value, str) else value
            for key, value in known.items()
            if value is not None
        }
        is_ordinary = doing.step is None and self.end.signal == signal.SIGTERM  # of a helper
        severity = _INFO if is_ordinary else _FATAL
        return LogRecord(self.time_ns, time.time_ns(), severity, NAME, None, attributes)

    def _exit(self) -> dict[str, Any]:
        end = self.end
        reason = "code" if end.code is not None else "unknown" if end.signal is None else "signal"
        observed = end.time_ns >= self.last_seen[0] and end.time_ns > 0
        moment = datetime.fromtimestamp(self.time_ns // 1_000_000 / 1000, timezone.utc)
        return {
            "process.exit.code": end.code,
            "process.exit.signal": None if end.signal is None else signal_name(end.signal),
            "process.exit.reason": "out_of_memory" if end.out_of_memory else reason,
            "process.exit.time": moment.isoformat(timespec="milliseconds") if self.time_ns else None,
            "process.exit.time.source": ("parent" if observed else self.last_seen[1]) or None,
        }


def death_of(record: Record, deaths: Deaths) -> Death:
    """Return the death of a process, from its record and from the ends that its parent has observed."""
    end, crash = deaths.of(record.owner) or End(), crash_signal(record.stacks)
    if crash is not None and end.signal is end.code is None:
        end = replace(end, signal=crash)
    if end.code is None and end.signal in {None, signal.SIGKILL} and killed_for_memory(record.owner):
        end = replace(end, signal=signal.SIGKILL, out_of_memory=True)
    now_ns = time.time_ns()
    last_ns, source = max(each for each in _signs(record) if each[0] <= now_ns or each[1] == _CREATION)
    last_ns = min(last_ns, now_ns)
    doing = record.doing_at(max(last_ns, end.time_ns))
    stacks = record.stacks if crash is not None and end.signal == crash else record.stack
    return Death(record.owner, end, (last_ns, source), doing, stacks, record.exception)


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def _signs(record: Record) -> Iterator[SignOfLife]:
    page = record.page
    yield record.created_ns, _CREATION
    if record.snapshot is not None:
        yield record.time_ns, "heartbeat"
    if page.heartbeat_unix_ns is not None:
        yield page.heartbeat_unix_ns, "heartbeat"
    for moment_ns, source in ((page.step_ns, "step"), *((wait.start_ns, "wait") for wait in page.waits)):
        if moment_ns is not None and (unix_ns := page.unix_ns(moment_ns)) is not None:
            yield unix_ns, source
    yield from ((event.observed_ns, "event") for event in record.events)


def signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _signal_number(name: str | None) -> int | None:
    """Return the number of the signal that :func:`signal_name` has named."""
    if name is None:
        return None
    number = name.removeprefix("signal ")
    return int(number) if number.isdecimal() else signal.Signals[name]


def _shortened(text: str) -> str:
    """Return the beginning of stacks, and those of the thread that received the signal, which may come last."""
    if len(text) <= _MOST_STACKS:
        return text
    current = max(0, text.find(_CURRENT))
    least = min(current, _MOST_STACKS // 2)
    end = text[current : current + _MOST_STACKS - least] if current > least else ""
    begin = text[: _MOST_STACKS - len(end)]
    return f"{begin}\n... ({len(text) - len(begin) - len(end):,} more characters)\n{end}".rstrip("\n")


def killed_for_memory(owner: Owner) -> bool:
    """Return True if the kernel logged that it killed a process because memory was exhausted.

    Many systems show the log only to root, and it is overwritten after a while: then the result is False.
    """
    if owner.namespace != _FIRST_NAMESPACE or not owner.is_near:
        return False
    with suppress(OSError, ValueError):
        started_us, found = int(owner.start) * 1_000_000 // os.sysconf("SC_CLK_TCK"), _KILLED.findall(_read_log())
        return any(pid.decode() == owner.pid and int(time_us) >= started_us for time_us, pid in found)
    return False


def _read_log() -> bytes:
    descriptor, records = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), []
    try:
        for _ in range(_MOST_RECORDS):
            with suppress(BrokenPipeError):  # the kernel has overwritten the next record
                record = os.read(descriptor, 8192)
                if not record:
                    break
                if b"Killed" in record:
                    records.append(record)
    except BlockingIOError:
        pass  # that was the last one
    finally:
        os.close(descriptor)
    return b"".join(records)
