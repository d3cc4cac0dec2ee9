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

_UNSET = "none"  # torchrun's run id without --rdzv-id on several nodes: the same for all jobs
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

    A run id is that of one run, however often the run is started. Without one, and with torchrun's default ``none``,
    each process is a run, except that torchrun's restarts continue the run of their agent.

    Args:
        attributes: Attributes of the resource.
    """
    given = attributes.get("training.run.id")
    run = "" if given is None else str(given)
    if run and run != _UNSET:
        return RunIdentity(run, f"{_RUN}{_digest(run)}", joins=True)
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "").strip()
    if logs := _LOGS.fullmatch(os.environ.get("TORCHELASTIC_ERROR_FILE", "")):
        return RunIdentity("", f"{_AGENT}{_digest(logs[1])[:16]}-", joins=True)
    if restarts.isdecimal():  # the parent is the agent, or a shell in which several jobs run
        return RunIdentity("", f"{_AGENT}{_digest(_parent())[:16]}-", joins=restarts.strip("0") != "")
    return RunIdentity("", _PROCESS, joins=False)


def boot_id() -> str:
    """Return the id of this boot of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _parent() -> str:
    """Return the identity of the parent of this process."""
    parent = os.getppid()
    try:
        fields = Path(f"/proc/{parent}/stat").read_bytes().rpartition(b")")[2].split()
        started = fields[19].decode()
    except (OSError, IndexError, ValueError):
        started = ""
    return f"{boot_id()} {parent} {started}"


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
