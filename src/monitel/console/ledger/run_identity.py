"""The identity of a run: which processes are attempts of one run, and the name of its folder."""

from __future__ import annotations

import os
import re
import time
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOLDERS = _RUN, _AGENT, _PROCESS = "run-", "agent-", "process-"  # how the names of folders begin

_FIRST = 1  # process id of the process that takes over children whose parent has ended
_LOGS = re.compile(r"(.+)/attempt_\d+/\d+/[^/]+", re.DOTALL)  # torchrun's agent has a folder with a unique name


class RunIdentity(NamedTuple):
    """The identity of a run.

    Attributes:
        run: The run id; empty if there is none.
        prefix: The beginning of the folder's name, which no other run has; for a process without a run id, no other
            launcher.
        joins: This process continues an earlier run, if there is one.
    """

    run: str
    prefix: str
    joins: bool

    def folder(self, existing: Iterable[str]) -> str:
        """Return the name of the folder, given the names of all folders. It has no character of the run id."""
        if self.run:
            return self.prefix
        if self.joins and (found := [name for name in existing if name.startswith(self.prefix)]):
            return max(found)
        return f"{self.prefix}{time.time_ns():020d}-{token_hex(4)}"


def identify(attributes: Mapping[str, Any]) -> RunIdentity:
    """Return the run to which this process belongs.

    A run id is that of one run, however often the run is started. Without one each process is a run, except that
    torchrun's restarts continue the run of their agent.

    Args:
        attributes: Attributes of the resource.
    """
    given = attributes.get("training.run.id")
    run = "" if given is None else str(given)
    if run:
        return RunIdentity(run, f"{_RUN}{_digest(run)}", joins=True)
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "").strip()
    if logs := _LOGS.fullmatch(os.environ.get("TORCHELASTIC_ERROR_FILE", "")):
        return RunIdentity("", f"{_AGENT}{_digest(logs[1])[:16]}-", joins=True)
    if restarts.isdecimal():  # the parent is the agent, or a shell in which several jobs run
        return RunIdentity("", f"{_AGENT}{_digest(parent())[:16]}-", joins=restarts.strip("0") != "")
    return RunIdentity("", _PROCESS, joins=False)


def boot_id() -> str:
    """Return the id of this boot of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def parent() -> str:
    """Return the identity of the parent of this process."""
    pid = os.getppid()
    return process_name(pid, _parent_and_start(pid)[1])


def parent_of(pid: int, start: str) -> str:
    """Return the identity of the parent of another process, as :func:`parent` does in that process.

    Args:
        pid: The process id, in the namespace of this process.
        start: Start time of the process, in ticks since the boot.

    Returns:
        Empty if the process does not run, or if its parent has ended and the first process has taken its place.
    """
    parent_pid, started = _parent_and_start(pid)
    if started != start or parent_pid <= _FIRST:
        return ""
    return process_name(parent_pid, _parent_and_start(parent_pid)[1])


def process_name(pid: int | str, start: str) -> str:
    """Return the identity of a process of this machine by its id, and its start in ticks since the boot."""
    return f"{boot_id()} {pid} {start}"


def _parent_and_start(pid: int) -> tuple[int, str]:
    """Return the process id of the parent of a process, and the start of the process; empty if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[1]), fields[19].decode()
    except (OSError, IndexError, ValueError):
        return 0, ""


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
