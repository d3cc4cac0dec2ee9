"""The folders of runs below the spool root: which process belongs to which run, and the files of a run.

A file is replaced as a whole, so a reader always finds a complete one. Only the process with the lock of a folder
writes into it.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from monitel.blackbox.folder import Folder, FolderError, make_folder
from monitel.runs.history import History, decode, encode
from monitel.runs.stored import LIMIT_BYTES, StoredError

_log = logging.getLogger("monitel.otlp")

LEDGERS = "ledgers"
FILE = "ledger.json"
RUNS = 100  # runs that are kept

_FOLDERS = _RUN, _AGENT, _PROCESS = "run-", "agent-", "process-"  # how the names of folders begin
_LOGS = re.compile(r"(.+)/attempt_\d+/\d+/[^/]+", re.DOTALL)  # torchrun's agent has a folder with a unique name


class InUseError(FolderError):
    """Raised for the folder of a run that another process uses."""


class RunIdentity(NamedTuple):
    """The identity of a run: the processes with the same one are attempts of it."""

    run: str  # its id; empty without one
    folder: str  # the name of its folder, which has no character of the run id


def identify(attributes: Mapping[str, Any]) -> RunIdentity:
    """Return the run to which this process belongs.

    A run id is that of one run, however often the run is started. Without one each process is a run, except that
    torchrun's restarts continue the run of their agent.
    """
    given = attributes.get("training.run.id")
    if given is not None and str(given):
        return RunIdentity(str(given), f"{_RUN}{_digest(str(given))}")
    if logs := _LOGS.fullmatch(os.environ.get("TORCHELASTIC_ERROR_FILE", "")):
        return RunIdentity("", f"{_AGENT}{_digest(logs[1])}")
    return RunIdentity("", f"{_PROCESS}{time.time_ns():020d}-{token_hex(4)}")


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def open_run(root: Path, identity: RunIdentity) -> Folder:
    """Return the folder of a run below the folder of spools, locked; it is made if it is missing.

    If it is new, the oldest runs are removed. InUseError is raised if another process uses it.
    """
    make_folder(root / LEDGERS)
    with closing(Folder.open(root / LEDGERS)) as ledgers:
        existing = ledgers.names()
        name = identity.folder
        make_folder(ledgers.path / name)
        folder = Folder.open(ledgers.path / name)
        try:
            if not folder.lock():
                words = f"{str(folder.path)!r} is in use by a running process"
                advice = f" with the same run id, {identity.run!r}: two jobs need two ids" if identity.run else ""
                raise InUseError(words + advice)
            if name not in existing:
                _prune(ledgers, [each for each in existing if each.startswith(_FOLDERS)])
        except BaseException:
            folder.close()
            raise
    return folder


def load(folder: Folder) -> History | None:
    """Return the stored history; None if there is none. A file that cannot be used is kept under another name."""
    try:
        return decode(folder.read(FILE, LIMIT_BYTES + 1))
    except FileNotFoundError:
        return None
    except StoredError as error:
        reason = str(error)
    except PermissionError as error:  # a link, a device, or a file of another user
        reason = f"cannot be used: {error.strerror}"
    aside = f"unusable-{time.time_ns()}.json"
    folder.rename(FILE, aside)
    _log.warning("%s %s; it is now %s, and the ledger of the run starts anew", folder.path / FILE, reason, aside)
    return None


def store(folder: Folder, history: History) -> None:
    """Replace the history. If that fails, the previous one is still there."""
    folder.replace(FILE, encode(history))


def _prune(ledgers: Folder, existing: list[str]) -> None:
    """Remove the runs whose last heartbeats are the oldest. A run that is in use stays."""
    surplus = len(existing) + 1 - RUNS
    # Each heartbeat renames a file.
    oldest_first = sorted(existing, key=lambda name: ledgers.status(name).st_mtime_ns) if surplus > 0 else []
    for name in oldest_first:
        with suppress(OSError, FolderError), closing(Folder.open(ledgers.path / name)) as folder:
            if folder.lock():
                folder.remove()
                surplus -= 1
        if not surplus:
            break


def stored_runs(root: Path, problems: list[str], *, check: bool = False) -> Iterator[tuple[Folder, History]]:
    """Yield the folder and the history of each run below the folder of spools, without locking or changing anything.

    A message is added to the problems for each file that cannot be read, which does not have its content. Folders of
    other users are not checked: JSON is safe to read, and a check would write.
    """
    path = root / LEDGERS
    try:
        with closing(Folder.open(path, check=check)) as ledgers:
            for path in sorted(ledgers.path / each for each in ledgers.names() if each.startswith(_FOLDERS)):
                try:
                    with closing(Folder.open(path, check=check)) as folder:
                        yield folder, decode(folder.read(FILE, LIMIT_BYTES + 1))
                except FileNotFoundError:
                    continue  # nothing is written yet, or the run was removed
                except (StoredError, FolderError, OSError) as error:
                    problems.append(_describe(path, error))
    except FileNotFoundError:
        return
    except (FolderError, OSError) as error:
        problems.append(_describe(path, error))


def _describe(path: Path, error: Exception) -> str:
    if isinstance(error, FolderError):
        return str(error)
    reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
    return f"the ledger in {str(path)!r} {reason}"


def correct_status(root: Path, pid: int, began_ns: int, status: str) -> None:
    """Store the status with which the attempt of a process id has ended, as its parent has seen it. Never raises."""
    with suppress(OSError, FolderError):
        for folder, found in stored_runs(root, [], check=True):
            attempt = found.attempt
            if attempt.last_ns >= began_ns and attempt.name.endswith(f"-{pid}") and folder.lock():
                store(folder, replace(found, attempt=replace(attempt, status=status)))
