"""The folders of runs below the spool root: which process belongs to which run, the files of a run, and their readers.

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
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.blackbox.box import process_start
from monitel.blackbox.folder import Folder, FolderError, Lock, make_folder
from monitel.blackbox.process import Owner, this_process
from monitel.console.ledger.history import Earlier, History, decode, encode, run_time
from monitel.console.stored import LIMIT_BYTES, StoredError
from monitel.console.values import VALUES
from monitel.console.values import decode as decode_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from monitel.console.ledger.history import Attempt
    from monitel.console.ledger.shares import RunTime
    from monitel.console.values import Attempted, RunValues

_log = logging.getLogger("monitel.otlp")

LEDGERS = "ledgers"
FILE = "ledger.json"
RUNS = 100  # runs that are kept
STARTS = 100  # starts that are kept

_FOLDERS = _RUN, _AGENT, _PROCESS = "run-", "agent-", "process-"  # how the names of folders begin
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
        self._folder = folder = ledgers.subfolder(name, create=True)
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

    def load(self, run: str) -> History | None:
        """Return the stored history; None if there is none. A file that cannot be used is kept under another name."""
        try:
            history = decode(self._folder.read(FILE, LIMIT_BYTES + 1))
            if history.run == run:
                return history
            reason = "belongs to another run"
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
        self.replace(FILE, encode(history))
        while self._starts:
            self._ledgers.unlink(self._starts.pop())

    def values(self) -> bytes | None:
        """Return the content of the file of the values; None if it cannot be read."""
        with suppress(OSError):
            return self._folder.read(VALUES, LIMIT_BYTES + 1)
        return None

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file as a whole. If that fails, the previous one is still there."""
        self._folder.replace(name, content)

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
            _prune(ledgers, [name for name in existing if name.startswith(_FOLDERS)])
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
        ledgers.replace(_start(identity), encode(History(identity.run, Earlier(), attempt)))
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


class StoredRun(NamedTuple):
    """The files of a run.

    Attributes:
        time: Its time.
        last: The last attempt. Its name ends with its process id.
        attempt_start_ns: Start of the last attempt, Unix ns.
        values: Its values, with the last step of the ledger; None if there are none.
        held: The process of the last attempt holds the lock; None for one of another machine, or before the last boot.
    """

    time: RunTime
    last: Attempted
    attempt_start_ns: int
    values: RunValues | None
    held: bool | None = None


def read_stored(root: Path) -> tuple[list[StoredRun], list[str]]:
    """Read the ledgers and the values of all runs, without locking or changing anything.

    Args:
        root: The folder that holds the spool folders.

    Returns:
        The runs in the order of their last heartbeats, and a message for each file that cannot be read. Without
        ledgers both are empty.
    """
    path = root / LEDGERS
    runs: list[StoredRun] = []
    problems: list[str] = []
    try:
        with closing(Folder.open(path, foreign=True)) as ledgers:  # JSON is safe to read, and a check would write
            for name in sorted(each for each in ledgers.names() if each.startswith(_FOLDERS)):
                try:
                    with closing(ledgers.subfolder(name, create=False)) as folder:
                        runs.append(_read(folder, problems))
                except FileNotFoundError:
                    continue  # nothing is written yet, or the run was removed
                except (StoredError, FolderError, OSError) as error:
                    problems.append(_describe(path / name, error))
    except (FolderError, OSError) as error:
        problems += [] if isinstance(error, FileNotFoundError) else [_describe(path, error)]
    return sorted(runs, key=lambda run: run.time.last_ns), problems


def _read(folder: Folder, problems: list[str]) -> StoredRun:
    history = decode(folder.read(FILE, LIMIT_BYTES + 1))
    last, values = history.attempt, None
    try:
        values = decode_values(folder.read(VALUES, LIMIT_BYTES + 1))
        values = values.until(last.attempted) if values.run == history.run else None
    except FileNotFoundError:
        pass
    except StoredError as error:
        problems.append(f"the file {VALUES} in {str(folder.path)!r} {error}")
    held = Lock.is_held(folder) if last.boot and last.boot == this_process().boot else None
    return StoredRun(run_time(history), last.attempted, last.last_ns - last.elapsed_ns, values, held)


def _describe(path: Path, error: Exception) -> str:
    """Return one line about an error; it does not contain what the file contains."""
    if isinstance(error, FolderError):
        return str(error)
    reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
    return f"the ledger in {str(path)!r} {reason}"
