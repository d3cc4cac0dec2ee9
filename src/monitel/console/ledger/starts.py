"""Processes of a run that have not begun yet: each stores its start, for the attempt that begins next.

A process that is killed during its start has no ledger. Its file shows that the time was ``startup``, not ``down``. No
lock is held for it, because a process that never begins may live as long as the run: for instance the parent of all
ranks.
"""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from monitel.blackbox.folder import Folder, FolderError, make_folder
from monitel.blackbox.process import Owner, this_process
from monitel.console.ledger.history import Attempt, Earlier, History, fold, gap
from monitel.console.ledger.stored import LIMIT_BYTES, StoredError, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from monitel.console.ledger.run_identity import RunIdentity

LIMIT = 100  # starts that are kept for a run

_TOLERANCE_NS = 10**8  # of the start of a process, which the system rounds down
_FIRST, _LAST = "start", ".json"


class Start:
    """The stored start of this process.

    Args:
        ledgers: Path of the folder of all runs.
        identity: The run.
    """

    def __init__(self, ledgers: Path, identity: RunIdentity) -> None:
        self._ledgers = ledgers
        self._identity = identity
        self._name = _name_of(this_process())
        self._stored = False

    def store(self, attempt: Attempt) -> None:
        """Replace the file, unless the run is not known, or the process is a child of multiprocessing.

        Raises:
            OSError: The write failed.
            FolderError: The folder is unsafe.
        """
        if not self._identity.joins or _is_child():
            return
        make_folder(self._ledgers)
        with closing(Folder.open(self._ledgers)) as ledgers:
            name = self._identity.folder(ledgers.names())
            with closing(ledgers.subfolder(name, create=True)) as folder:
                if not self._stored and len(_names(folder)) >= LIMIT:
                    return
                new = f"{self._name}.new"
                folder.unlink(new)
                folder.write_new(new, encode(History(self._identity.run, Earlier(), attempt)))
                folder.rename(new, self._name)
                self._stored = True

    def remove(self) -> None:
        """Remove the file, if there is one. Idempotent."""
        if not self._stored:
            return
        self._stored = False
        with suppress(OSError, FolderError), closing(Folder.open(self._ledgers)) as ledgers:
            name = self._identity.folder(ledgers.names())
            with closing(ledgers.subfolder(name, create=False)) as folder:
                folder.unlink(self._name)
            ledgers.remove_subfolder(name)  # fails unless it is empty


def read_starts(folder: Folder, run: str) -> list[Attempt]:
    """Return the starts of a run in the order of their ends, without those that cannot be read or still run."""
    found, own = [], this_process()
    for name in _names(folder):
        fields = name.removesuffix(_LAST).split("-")[1:]
        if len(fields) != len(own) or Owner(*fields).is_running(own):
            continue
        with suppress(OSError, StoredError):
            history = decode(folder.read(name, LIMIT_BYTES + 1))
            if history.run == run:
                found.append(history.attempt)
    return sorted(found, key=lambda attempt: attempt.last_ns)


def remove_starts(folder: Folder) -> None:
    """Remove the starts of all processes."""
    for name in folder.names():
        if name.startswith(f"{_FIRST}-"):
            with suppress(OSError):  # a folder, which monitel has not made
                folder.unlink(name)


class Before(NamedTuple):
    """Everything before this process.

    Attributes:
        earlier: All attempts.
        last: The last of them; None if there is none.
        down_ns: Time before the starts that counted.
        unseen_ns: Time of the starts that exported no ``training.time``, because they had no activity.
    """

    earlier: Earlier
    last: Attempt | None
    down_ns: int
    unseen_ns: int


def fold_starts(found: History | None, starts: Iterable[Attempt], own: Attempt) -> Before:
    """Return everything before this process.

    A start counts if it lies between the last attempt and this process. Any other one is that of a parent or a helper.

    Args:
        found: The stored history.
        starts: The starts, in the order of their ends.
        own: This process.
    """
    earlier, last = (Earlier(), None) if found is None else (fold(found), found.attempt)
    total_down_ns = unseen_ns = 0
    for start in starts:
        down_ns, overlap_ns = (0, 0) if last is None else gap_after(last, start)
        if start.name != own.name and max(overlap_ns, gap_after(start, own)[1]) <= _TOLERANCE_NS:
            last = replace(start, down_ns=down_ns, overlap_ns=overlap_ns)
            earlier = fold(History("", earlier, last))
            total_down_ns += down_ns
            if not {*start.activities} - {"startup", "shutdown"}:
                unseen_ns += sum(start.activities.values()) - overlap_ns
    return Before(earlier, last, total_down_ns, unseen_ns)


def gap_after(previous: Attempt, following: Attempt) -> tuple[int, int]:
    """Return the time between two attempts, and their overlap."""
    elapsed_ns = sum(following.activities.values())
    return gap(
        previous,
        start_ns=following.last_ns - elapsed_ns,
        boot=following.boot,
        boot_start_ns=following.boot_ns - elapsed_ns,
        elapsed_ns=elapsed_ns,
    )


def _names(folder: Folder) -> list[str]:
    return [name for name in folder.names() if name.startswith(f"{_FIRST}-") and name.endswith(_LAST)]


def _name_of(process: Owner) -> str:
    return f"{'-'.join((_FIRST, *process))}{_LAST}"


def _is_child() -> bool:
    """Return True in a child of multiprocessing, whose parent stores its own start."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None
