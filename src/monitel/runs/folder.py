"""The folders of runs below the spool root: which process belongs to which run, and the files of a run.

A file is replaced as a whole, so a reader always finds a complete one. Only the process with the lock of a folder
writes into it. Until a process begins, it stores its start beside the folders, so that the time of one that is killed
before its first step counts as ``startup`` instead of ``down``. That takes no lock, because a process that never begins
may live as long as the run, such as the parent of all ranks.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.blackbox.folder import Folder, FolderError, Lock, make_folder
from monitel.blackbox.process import Owner, process_start, this_process
from monitel.runs.history import History, RunTime, decode, encode
from monitel.runs.stored import LIMIT_BYTES, StoredError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from monitel.runs.history import Attempt

_log = logging.getLogger("monitel.otlp")

LEDGERS = "ledgers"
FILE = "ledger.json"
RUNS = 100  # runs that are kept
STARTS = 100  # starts that are kept

FOLDERS = _RUN, _AGENT, _PROCESS = "run-", "agent-", "process-"  # how the names of folders begin
_LOGS = re.compile(r"(.+)/attempt_\d+/\d+/[^/]+", re.DOTALL)  # torchrun's agent has a folder with a unique name


class RunIdentity(NamedTuple):
    """The identity of a run: which processes are attempts of it, and the name of its folder.

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
        found = [name for name in existing if self.joins and name.startswith(self.prefix)]
        return max(found, default=f"{self.prefix}{time.time_ns():020d}-{token_hex(4)}")


def identify(attributes: Mapping[str, Any]) -> RunIdentity:
    """Return the run to which this process belongs.

    A run id is that of one run, however often the run is started. Without one each process is a run, except that
    torchrun's restarts continue the run of their agent.

    Args:
        attributes: Attributes of the resource.
    """
    given = attributes.get("training.run.id")
    if given is not None and str(given):
        return RunIdentity(str(given), f"{_RUN}{_digest(str(given))}", joins=True)
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "").strip()
    if logs := _LOGS.fullmatch(os.environ.get("TORCHELASTIC_ERROR_FILE", "")):
        return RunIdentity("", f"{_AGENT}{_digest(logs[1])[:16]}-", joins=True)
    if restarts.isdecimal():  # the parent is the agent, or a shell in which several jobs run
        parent = f"{this_process().boot} {os.getppid()} {process_start(os.getppid())}"
        return RunIdentity("", f"{_AGENT}{_digest(parent)[:16]}-", joins=restarts.strip("0") != "")
    return RunIdentity("", _PROCESS, joins=False)


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


class RunFolder:
    """The locked folder of a run. A forked child must call :meth:`close`. All methods may raise OSError.

    Args:
        ledgers: The folder of all runs, which this object closes.
        name: Name of the folder of the run.

    Raises:
        FolderError: Another process uses the folder, or it is unsafe.
    """

    def __init__(self, ledgers: Folder, name: str) -> None:
        self.name, self._ledgers = name, ledgers
        make_folder(ledgers.path / name)
        self._folder = folder = Folder.open(ledgers.path / name)
        try:
            lock = Lock.take(folder)
            if lock is None:
                raise FolderError(f"{str(folder.path)!r} is in use by a running process")
        except BaseException:
            folder.close()
            raise
        self._lock = lock
        self._starts: list[str] = []
        self.path = folder.path

    def load(self) -> History | None:
        """Return the stored history; None if there is none. A file that cannot be used is kept under another name."""
        try:
            return decode(self._folder.read(FILE, LIMIT_BYTES + 1))
        except FileNotFoundError:
            return None
        except StoredError as error:
            reason = str(error)
        except PermissionError as error:  # a link, a device, or a file of another user
            reason = f"cannot be used: {error.strerror}"
        aside = f"unusable-{time.time_ns()}.json"
        self._folder.rename(FILE, aside)
        _log.warning("%s %s; it is now %s, and the ledger of the run starts anew", self.path / FILE, reason, aside)
        return None

    def store(self, history: History) -> None:
        """Replace the history. If that fails, the previous one is still there."""
        self._folder.replace(FILE, encode(history))
        while self._starts:
            self._ledgers.unlink(self._starts.pop())

    def starts(self, identity: RunIdentity) -> list[Attempt]:
        """Return the starts that failed, in the order of their ends. The next :meth:`store` removes all starts."""
        found, own = [], this_process()
        self._starts = _starts(self._ledgers, f"start-{identity.prefix}-")
        for name in self._starts:
            with suppress(OSError, StoredError, TypeError):  # the name is not that of a start
                if not Owner(*name.removesuffix(".json").split("-")[-len(own) :]).is_running(own):
                    found.append(decode(self._ledgers.read(name, LIMIT_BYTES + 1)).attempt)
        return sorted(found, key=lambda attempt: attempt.last_ns)

    def remove(self) -> None:
        """Remove the folder with its files."""
        try:
            self._folder.remove()
        finally:
            self.close()

    def close(self) -> None:
        """Release the folder, but not that of the parent in a forked child. Idempotent."""
        self._lock.close()
        self._folder.close()
        self._ledgers.close()


def open_run(root: Path, identity: RunIdentity) -> RunFolder:
    """Open and lock the folder of a run, and make it if it is missing. If it is new, the oldest runs are removed.

    Args:
        root: The folder that holds the spool folders.
        identity: The run.

    Raises:
        FolderError: Another process uses the folder, or it is unsafe.
        OSError: The folder cannot be made, or the lock cannot be written.
    """
    make_folder(root / LEDGERS)
    ledgers = Folder.open(root / LEDGERS)
    try:
        existing = ledgers.names()
        opened = RunFolder(ledgers, identity.folder(existing))
        if opened.name not in existing:
            _prune(ledgers, [name for name in existing if name.startswith(FOLDERS)])
    except BaseException:
        ledgers.close()
        raise
    return opened


def _prune(ledgers: Folder, existing: list[str]) -> None:
    """Remove the runs whose last heartbeats are the oldest. A run that is in use stays."""
    surplus = len(existing) + 1 - RUNS
    with suppress(OSError):
        for name in _oldest_first(ledgers, existing) if surplus > 0 else ():  # each heartbeat renames a file in it
            with suppress(OSError, FolderError):
                with closing(Folder.open(ledgers.path)) as parent:  # which RunFolder leaves open if the run is in use
                    RunFolder(parent, name).remove()
                surplus -= 1
            if not surplus:
                break


def correct_status(root: Path, pid: int, began_ns: int, status: str) -> None:
    """Replace the status with which an attempt has ended, because its parent has seen another end. Never raises.

    Args:
        root: The folder that holds the spool folders.
        pid: The process id of the attempt.
        began_ns: A time at which the process ran, Unix ns.
        status: The status.
    """
    with suppress(OSError, FolderError), closing(Folder.open(root / LEDGERS)) as ledgers:
        for name in ledgers.names():
            with suppress(OSError, FolderError, StoredError), closing(Folder.open(ledgers.path / name)) as folder:
                found = decode(folder.read(FILE, LIMIT_BYTES + 1))
                attempt, lock = found.attempt, None
                if attempt.status and attempt.last_ns >= began_ns and attempt.name.endswith(f"-{pid}"):
                    lock = Lock.take(folder)
                if lock is not None:
                    with closing(lock):
                        folder.replace(FILE, encode(replace(found, attempt=replace(attempt, status=status))))


def store_start(root: Path, identity: RunIdentity, attempt: Attempt) -> None:
    """Store the start of this process, unless the run is not known, or it is a child of multiprocessing.

    Raises:
        OSError, FolderError: The folder is unsafe, or the write failed.
    """
    processes = sys.modules.get("multiprocessing.process")
    if not identity.joins or (processes is not None and processes.parent_process() is not None):
        return
    make_folder(root / LEDGERS)
    with closing(Folder.open(root / LEDGERS)) as ledgers:
        ledgers.replace(_start(identity), encode(History(RunTime(identity.run), attempt)))
        with suppress(OSError):
            for name in _oldest_first(ledgers, _starts(ledgers))[:-STARTS]:
                ledgers.unlink(name)


def remove_start(root: Path, identity: RunIdentity) -> None:
    """Remove the start of this process, if there is one. Idempotent."""
    with suppress(OSError, FolderError), closing(Folder.open(root / LEDGERS)) as ledgers:
        ledgers.unlink(_start(identity))


def _start(identity: RunIdentity) -> str:
    return f"start-{identity.prefix}-{'-'.join(this_process())}.json"


def _starts(ledgers: Folder, begin: str = "start-") -> list[str]:
    return [name for name in ledgers.names() if name.startswith(begin) and name.endswith(".json")]


def _oldest_first(ledgers: Folder, names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: ledgers.status(name).st_mtime_ns)
