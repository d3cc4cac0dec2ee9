"""The folder of a run below the spool root, with its files and a lock.

A file is replaced as a whole, so a reader always finds a complete one. Only the process with the lock writes.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from monitel.blackbox.folder import Folder, FolderError, Lock, make_folder
from monitel.console.ledger.run_identity import FOLDERS
from monitel.console.ledger.starts import read_starts, remove_starts
from monitel.console.ledger.stored import LIMIT_BYTES, StoredError, decode, encode
from monitel.console.values import LIMIT_BYTES as VALUES_LIMIT_BYTES
from monitel.console.values import VALUES
from monitel.console.values import decode as decode_values

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.console.ledger.history import Attempt, History
    from monitel.console.ledger.run_identity import RunIdentity
    from monitel.console.values import RunValues

_log = logging.getLogger("monitel.otlp")

LEDGERS = "ledgers"
FILE = "ledger.json"
RUNS = 100  # runs that are kept


class RunFolder:
    """The locked folder of a run. A forked child must call :meth:`close`.

    Args:
        ledgers: The folder of all runs, which this object closes.
        name: Name of the folder of the run.

    Raises:
        FolderError: Another process uses the folder, or it is unsafe.
        OSError: The folder cannot be made, or the lock cannot be written.
    """

    def __init__(self, ledgers: Folder, name: str) -> None:
        self._ledgers = ledgers
        self._folder = folder = ledgers.subfolder(name, create=True)
        try:
            lock = Lock.take(folder)
            if lock is None:
                raise FolderError(f"{str(folder.path)!r} is in use by a running process")
        except BaseException:
            folder.close()
            raise
        self._lock = lock
        self._has_starts = False
        self.name = name
        self.path = folder.path

    def load(self, run: str) -> History | None:
        """Return the stored history; None if there is none. A file that cannot be used is kept under another name.

        Raises:
            OSError: The file cannot be read now.
        """
        try:
            history = decode(self._folder.read(FILE, LIMIT_BYTES + 1))
        except FileNotFoundError:
            return None
        except StoredError as error:
            reason = str(error)
        except PermissionError as error:  # a link, a device, or a file of another user
            reason = f"cannot be used: {error.strerror}"
        else:
            if history.run == run:
                return history
            reason = "belongs to another run"
        aside = f"unusable-{time.time_ns()}.json"
        self._folder.rename(FILE, aside)
        _log.warning("%s %s; it is now %s, and the ledger of the run starts anew", self.path / FILE, reason, aside)
        return None

    def store(self, history: History) -> None:
        """Replace the file.

        Raises:
            OSError: The write failed, and the previous file is still there.
        """
        self.replace(FILE, encode(history))
        if self._has_starts:
            remove_starts(self._folder)
            self._has_starts = False

    def values(self) -> bytes | None:
        """Return the content of the file of the values; None if it cannot be read."""
        with suppress(OSError):
            return self._folder.read(VALUES, VALUES_LIMIT_BYTES + 1)
        return None

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file as a whole.

        Raises:
            OSError: The write failed, and the previous file is still there.
        """
        new = f"{name}.new"
        try:
            self._folder.write_new(new, content)
        except FileExistsError:  # from a process that was killed
            self._folder.unlink(new)
            self._folder.write_new(new, content)
        self._folder.rename(new, name)

    def is_new(self) -> bool:
        """Return True if there is no file yet."""
        try:
            self._folder.status(FILE)
        except FileNotFoundError:
            return True
        return False

    def starts(self, run: str) -> list[Attempt]:
        """Return the starts of the processes that have not begun. The next :meth:`store` removes them."""
        self._has_starts = True
        return read_starts(self._folder, run)

    def remove(self) -> None:
        """Remove the files, the starts, the lock and the folder. Files under other names stay."""
        remove_starts(self._folder)
        for name in (FILE, VALUES):
            self._folder.unlink(name)
            self._folder.unlink(f"{name}.new")
        self._folder.unlink("lock")
        self._lock.close()
        self._folder.close()
        self._ledgers.remove_subfolder(self.name)
        self._ledgers.close()

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
        name = identity.folder(existing)
        opened = RunFolder(ledgers, name)
    except BaseException:
        ledgers.close()
        raise
    if opened.is_new():
        _prune(root, [each for each in existing if each != name])
    return opened


def read_history(ledgers: Folder, name: str) -> History:
    """Read the file of a run, which another process may be writing.

    Raises:
        StoredError: The file is damaged, or has another version.
        FolderError: The folder is unsafe.
        OSError: The file cannot be read.
    """
    with closing(ledgers.subfolder(name, create=False)) as folder:
        return decode(folder.read(FILE, LIMIT_BYTES + 1))


def read_values(ledgers: Folder, name: str) -> RunValues:
    """Read the values of a run, which another process may be writing.

    Raises:
        ValuesError: The file is damaged, or has another version.
        FolderError: The folder is unsafe.
        OSError: The file cannot be read.
    """
    with closing(ledgers.subfolder(name, create=False)) as folder:
        return decode_values(folder.read(VALUES, VALUES_LIMIT_BYTES + 1))


def _prune(root: Path, existing: list[str]) -> None:
    """Remove the runs whose last heartbeats are the oldest. A run that is in use stays."""
    made = [name for name in existing if name.startswith(FOLDERS)]
    surplus = len(made) + 1 - RUNS
    if surplus <= 0:
        return
    with suppress(OSError, FolderError), closing(Folder.open(root / LEDGERS)) as ledgers:
        made.sort(key=lambda name: ledgers.status(name).st_mtime_ns)  # each heartbeat renames a file in it
        for name in made:
            with suppress(OSError, FolderError):
                RunFolder(Folder.open(root / LEDGERS), name).remove()
                surplus -= 1
            if not surplus:
                break
