"""The kernel's log of processes that it killed because memory was exhausted."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.blackbox.process import this_process

if TYPE_CHECKING:
    from monitel.blackbox.process import Owner

_KERNEL_LOG = Path("/dev/kmsg")
_KILLED = re.compile(rb"^\d+,\d+,(\d{1,18}),[^;\n]*;[^\n]*\bKilled process (\d{1,10}) \(", re.MULTILINE)
_FIRST_NAMESPACE = "4026531836"  # the log has the process ids of this namespace
_MOST_RECORDS = 100_000


def killed_for_memory(owner: Owner) -> bool:
    """Return True if the kernel logged that it killed a process because memory was exhausted.

    Many systems show the log only to root, and it is overwritten after a while: then the result is False.
    """
    if owner.namespace != _FIRST_NAMESPACE or owner.boot != this_process().boot:
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
