"""The runs below a spool root, for commands."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from monitel.blackbox.folder import Folder, FolderError
from monitel.console.ledger.history import run_time
from monitel.console.ledger.run_folder import LEDGERS, read_history, read_values
from monitel.console.ledger.stored import StoredError
from monitel.console.values import ValuesError

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.console.ledger.history import History
    from monitel.console.ledger.shares import RunTime
    from monitel.console.values import Attempted, RunValues


class StoredRun(NamedTuple):
    """The files of a run.

    Attributes:
        time: Its time.
        last: The last attempt. Its name ends with its process id.
        attempt_start_ns: Start of the last attempt, Unix ns.
        values: Its values, with the last step of the ledger; None if there are none.
    """

    time: RunTime
    last: Attempted
    attempt_start_ns: int
    values: RunValues | None


def read_runs(root: Path) -> tuple[list[RunTime], list[str]]:
    """Read the ledgers of all runs, without locking or changing anything.

    Args:
        root: The folder that holds the spool folders.

    Returns:
        The runs in the order of their last heartbeats, and a message for each ledger that cannot be read. Without
        ledgers both are empty.
    """
    found, problems = _read(root, with_values=False)
    return [each.time for each in found], problems


def read_stored(root: Path) -> tuple[list[StoredRun], list[str]]:
    """Read the ledgers and the values of all runs, as :func:`read_runs` does."""
    return _read(root, with_values=True)


def _read(root: Path, *, with_values: bool) -> tuple[list[StoredRun], list[str]]:
    path = root / LEDGERS
    runs: list[StoredRun] = []
    problems: list[str] = []
    try:
        if not path.exists() and not path.is_symlink():
            return [], []
        with closing(Folder.open(path, foreign=True)) as ledgers:  # JSON is safe to read, and a check would write
            for name in sorted(ledgers.names()):
                try:
                    history = read_history(ledgers, name)
                    values = _values(ledgers, name, history, problems) if with_values else None
                    last = history.attempt
                    start_ns = last.last_ns - sum(last.activities.values())
                    runs.append(StoredRun(run_time(history), last.attempted, start_ns, values))
                except FileNotFoundError:
                    continue  # nothing is written yet, or the run was removed
                except (StoredError, FolderError, OSError) as error:
                    problems.append(_describe(path / name, error))
    except (FolderError, OSError) as error:
        problems.append(_describe(path, error))
    runs.sort(key=lambda run: run.time.last_ns)
    return runs, problems


def _values(ledgers: Folder, name: str, history: History, problems: list[str]) -> RunValues | None:
    """Return the values of a run; None if there are none, or if they are damaged or those of another run."""
    try:
        values = read_values(ledgers, name)
    except FileNotFoundError:
        return None
    except ValuesError as error:
        problems.append(f"the values in {str(ledgers.path / name)!r} {error}")
        return None
    return values.until(history.attempt.attempted) if values.run == history.run else None


def _describe(path: Path, error: Exception) -> str:
    """Return one line about an error; it does not contain what the file contains."""
    if isinstance(error, StoredError):
        return f"the ledger in {str(path)!r} {error}"
    if isinstance(error, FolderError):
        return str(error)
    reason = error.strerror if isinstance(error, OSError) else type(error).__name__
    return f"the ledger in {str(path)!r} cannot be read: {reason}"
