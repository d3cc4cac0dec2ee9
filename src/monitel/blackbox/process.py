"""The identity of a process, among those of all machines and of all times."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from monitel.blackbox.record import VERSION

_EXITING = 0x4  # flag of a process that has released its locks, or is about to


class Owner(NamedTuple):
    """The identity of a process. The values have no hyphen, so that names of files may consist of them."""

    host: str
    boot: str  # id of the boot of the machine; empty if the system has none
    namespace: str  # of process ids; empty if the system has none
    pid: str
    start: str  # in ticks since the boot; "0" if it is not known

    @classmethod
    def of(cls, identity: Mapping[str, Any]) -> Owner:
        return cls(
            re.sub(r"[^A-Za-z0-9.]", "_", identity["host"]),
            re.sub(r"\W", "", identity["boot"]),
            re.sub(r"\D", "", identity["namespace"]),
            str(int(identity["pid"])),
            identity["start"] or "0",
        )

    def is_near(self, viewer: Owner) -> bool:
        """Return True if both have the same boot and process id namespace: ids mean the same to both."""
        return bool(self.boot) and (self.boot, self.namespace) == (viewer.boot, viewer.namespace)

    def is_running(self, viewer: Owner) -> bool:
        """Return True if the process certainly runs, from the view of another process."""
        return self.is_near(viewer) and process_start(int(self.pid)) == self.start

    def has_ended(self, viewer: Owner) -> bool:
        """Return True if the process has certainly ended, from the view of another process."""
        if self.boot != viewer.boot:
            return self.host == viewer.host  # the machine has been restarted
        return self.is_near(viewer) and process_start(int(self.pid)) != self.start


def this_process() -> Owner:
    return Owner.of(process_facts())


def process_facts() -> dict[str, Any]:
    """Return what tells this process from all others, now and later."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115  it is not a path
    facts = {"version": VERSION, "pid": os.getpid(), "start": process_start(os.getpid()), "boot": boot}
    return {**facts, "namespace": namespace, "host": socket.gethostname(), "created_ns": time.time_ns()}


def process_start(pid: int) -> str:
    """Return the start time of a process in ticks since the boot; empty if it has ended, is ending, or is unknown."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return "" if fields[0] in {"Z", "X"} or int(fields[6]) & _EXITING else fields[19]
    return ""
