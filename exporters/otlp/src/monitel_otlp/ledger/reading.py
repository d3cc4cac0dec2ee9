"""The runs below a spool root, for commands."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from monitel_otlp.ledger.history import run_time
from monitel_otlp.ledger.run_folder import LEDGERS, read_history
from monitel_otlp.ledger.stored import StoredError
from monitel_otlp.spool.folder import Folder, SpoolError

if TYPE_CHECKING:
    from pathlib import Path

    from monitel_otlp.ledger.run_time import RunTime


def read_runs(root: Path) -> tuple[list[RunTime], list[str]]:
    """Read the ledgers of all runs, without locking or changing anything.

    Args:
        root: The folder that holds the spool folders.

    Returns:
        The runs in the order of their last heartbeats, and a message for each ledger that cannot be read. Without
        ledgers both are empty.
    """
    path = root / LEDGERS
    runs: list[RunTime] = []
    problems: list[str] = []
    try:
        if not path.exists() and not path.is_symlink():
            return [], []
        with closing(Folder.open(path, foreign=True)) as ledgers:  # JSON is safe to read, and a check would write
            for name in sorted(ledgers.names()):
                try:
                    runs.append(run_time(read_history(ledgers, name)))
                except FileNotFoundError:
                    continue  # nothing is written yet, or the run was removed
                except (StoredError, SpoolError, OSError) as error:
                    problems.append(_describe(path / name, error))
    except (SpoolError, OSError) as error:
        problems.append(_describe(path, error))
    runs.sort(key=lambda run: run.last_ns)
    return runs, problems


def _describe(path: Path, error: Exception) -> str:
    """Return one line about an error; it does not contain what the file contains."""
    if isinstance(error, StoredError):
        return f"the ledger in {str(path)!r} {error}"
    if isinstance(error, SpoolError):
        return str(error)
    reason = error.strerror if isinstance(error, OSError) else type(error).__name__
    return f"the ledger in {str(path)!r} cannot be read: {reason}"
