"""Folders of the ledgers of runs: their names, and how many are kept."""

import os
import re
from itertools import combinations
from pathlib import Path

import pytest

from monitel.console.runs import read_runs
from monitel.runs import folder
from monitel.runs.folder import FILE, LEDGERS, RunFolder, identify
from monitel.runs.history import Attempt, History, RunTime

IDS = [
    *("1", "a", "A", "a/b", "a\\b", "../../etc/passwd", ".", "..", "\0"),
    *("é", "e\u0301", "\udc80", "\\udc80", "x" * 5000),
]


def folder_of(run: object) -> str:
    return identify({"training.run.id": run}).folder([])


def test_run_id_is_never_part_of_a_path() -> None:
    """Each id has another folder, whose short name is of lower-case letters and digits; a number is its digits."""
    assert all(re.fullmatch(r"run-[0-9a-f]{40}", folder_of(run)) for run in IDS)
    assert all(folder_of(one) != folder_of(other) for one, other in combinations(IDS, 2))
    assert folder_of("17") == folder_of(17)


def history(run: str = "run-7", step: int = 9, last: int = 10) -> History:
    return History(RunTime(run), Attempt("name", {"step": step}, last))


def write(root: Path, stored: History) -> Path:
    """Write the file of a run as a process does that ends, and return its path."""
    opened = RunFolder(root, identify({"training.run.id": stored.earlier.run}))
    opened.store(stored)
    opened.close()
    return opened.path / FILE


def test_oldest_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the runs with the oldest heartbeats go; runs in use and foreign files stay, but nothing open."""
    monkeypatch.setattr(folder, "RUNS", 3)
    busy = RunFolder(tmp_path, identify({"training.run.id": "busy"}))
    busy.store(history("busy"))
    os.utime(busy.path, ns=(0, 0))
    notes = tmp_path / LEDGERS / "notes"
    notes.mkdir()
    os.utime(notes, ns=(1, 1))
    opened: list[int] = []
    for number in range(6):
        path = write(tmp_path, history(f"run {number}", last=number))
        os.utime(path.parent, ns=(number + 2, number + 2))
        opened.append(sum(str(tmp_path) in os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()))
    found = [run.time.run for run in read_runs(tmp_path, [])]
    busy.close()
    assert {"busy", "run 4", "run 5"} == set(found)
    assert notes.is_dir()
    assert 1 == len({*opened})  # descriptors
