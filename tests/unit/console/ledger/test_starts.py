"""Starts of processes that ended before their first step: which count, and how many are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.spools import names

from monitel_otlp.ledger import starts
from monitel_otlp.ledger.history import Attempt
from monitel_otlp.ledger.run_folder import LEDGERS, open_run
from monitel_otlp.ledger.run_identity import identify
from monitel_otlp.ledger.starts import Start
from monitel_otlp.spool.lock import Owner, this_process

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

IDENTITY = identify({"training.run.id": "run-7"})


def starts_in(root: Path) -> list[str]:
    """Return the files of starts."""
    return [path.name for path in root.glob(f"{LEDGERS}/*/start-*")]


def start(begin: int, end: int, name: str = "other") -> Attempt:
    """Return a start from one second to another one."""
    return Attempt(name, {"startup": (end - begin) * 10**9}, end * 10**9)


def test_starts_that_overlap_do_not_count() -> None:
    """Simultaneous starts of ranks count once. A start that overlaps another attempt does not count."""
    own = start(40, 50, "own")
    earlier, last, down_ns, unseen_ns = starts.fold_starts(
        None, [start(1, 10), start(2, 11), start(15, 20), start(30, 45), own], own
    )
    assert (2, {"startup": 14 * 10**9, "down": 5 * 10**9}) == (earlier.attempts, dict(earlier.activities))
    assert (5 * 10**9, 14 * 10**9) == (down_ns, unseen_ns)
    assert last is not None
    assert (20 * 10**9, (20 * 10**9, 0)) == (last.last_ns, starts.gap_after(last, own))


def store(root: Path, process: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a start as a process does."""
    with monkeypatch.context() as patch:
        patch.setattr(starts, "this_process", lambda: process)
        Start(root / LEDGERS, IDENTITY).store(start(1, 2))


def test_starts_are_limited_in_number_and_removed_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails in startup forever does not fill the disk; damaged files and those of living processes wait."""
    own = this_process()
    for number in range(starts.LIMIT + 10):
        store(tmp_path, own._replace(start=str(number)), monkeypatch)
    assert starts.LIMIT == len(starts_in(tmp_path))
    opened = open_run(tmp_path, IDENTITY)
    damaged, removed, *_ = sorted(starts_in(tmp_path))
    (opened.path / damaged).write_bytes(b"{")
    assert starts.LIMIT - 1 == len(opened.starts("run-7"))
    assert [] == opened.starts("run-8")
    (opened.path / removed).unlink()
    store(tmp_path, own, monkeypatch)
    assert starts.LIMIT - 2 == len(opened.starts("run-7"))  # this process still runs
    opened.remove()
    assert [] == names(tmp_path / LEDGERS)
