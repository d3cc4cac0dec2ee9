"""The identity of a process, among those of all machines and of all times."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from monitel.blackbox.record import VERSION
from monitel_run.folder import PROCESS, START, kernel_fields

_EXITING = 0x4  # flag of a process that has released its locks, or is about to


class Owner(NamedTuple):
    """The identity of a process."""

    host: str
    boot: str  # id of the boot of the machine; empty if the system has none
    namespace: str  # of process ids; empty if the system has none
    pid: str
    start: str  # in ticks since the boot; "0" if it is not known

    @classmethod
    def of(cls, identity: Mapping[str, Any]) -> Owner:
        host, boot, namespace = (str(identity[key]) for key in ("host", "boot", "namespace"))
        return cls(host, boot, namespace, str(int(identity["pid"])), identity["start"] or "0")

    @property
    def is_near(self) -> bool:
        """True if it has the boot and the process id namespace of this process: ids mean the same to both."""
        return bool(self.boot) and (self.boot, self.namespace) == _place(os.getpid())

    @property
    def lives_on(self) -> bool:
        """True if the process certainly runs, from the view of this process: without its lock, it has called exec."""
        return self.is_near and process_start(int(self.pid)) == self.start

    @property
    def has_ended(self) -> bool:
        """True if the process has certainly ended, from the view of this process."""
        if self.boot != _place(os.getpid())[0]:
            return self.host == socket.gethostname()  # the machine has been restarted
        return self.is_near and process_start(int(self.pid)) != self.start


def this_process() -> Owner:
    return Owner.of(process_facts())


def process_facts() -> dict[str, Any]:
    """Return what tells this process from all others, now and later."""
    boot, namespace = _place(os.getpid())
    start, parent = process_start(os.getpid()), f"{os.getppid()}-{process_start(os.getppid()) or 0}"
    recorded = os.environ.get(PROCESS, "").partition(" ")[0]  # its child may be the server that has forked this one
    parent = parent if recorded in {"", f"{os.getpid()}-{start or 0}"} else recorded
    facts = {"version": VERSION, "pid": os.getpid(), "start": start, "boot": boot, "parent": parent}
    return {**facts, "namespace": namespace, "host": socket.gethostname(), "created_ns": time.time_ns()}


@lru_cache(maxsize=1)
def _place(_pid: int) -> tuple[str, str]:
    """Return the boot and the process id namespace of this process, whose id is given."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return boot, os.readlink("/proc/self/ns/pid")  # noqa: PTH115  it is not a path
    return "", ""


def process_start(pid: int) -> str:
    """Return the start time of a process in ticks since the boot; empty if it has ended, is ending, or is unknown."""
    fields = kernel_fields(pid)
    return "" if not fields or fields[0] in {"Z", "X"} or int(fields[6]) & _EXITING else fields[START]
