"""Processes that the kernel has killed because memory was exhausted, from the log of the kernel."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from monitel_otlp.spool.lock import this_process

if TYPE_CHECKING:
    from monitel_otlp.spool.lock import Owner

_LOG = Path("/dev/kmsg")
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
    descriptor = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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
