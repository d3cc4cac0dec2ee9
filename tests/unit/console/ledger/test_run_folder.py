"""The file of a run's ledger: in a safe and separate folder, locked, replaced as a whole, and never trusted blindly."""

from __future__ import annotations

import json
import os
import re
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from monitel_otlp.ledger import run_folder
from monitel_otlp.ledger.history import MARKS, Attempt, Earlier, History, run_time
from monitel_otlp.ledger.reading import read_runs
from monitel_otlp.ledger.run_folder import FILE, LEDGERS, open_run
from monitel_otlp.ledger.run_identity import identify
from monitel_otlp.ledger.stored import LIMIT_BYTES, decode, encode
from monitel_otlp.spool.folder import SpoolError

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = identify({"training.run.id": "run-7"})
IDS = [
    "1",
    "a",
    "A",
    "a/b",
    "a\\b",
    "../../etc/passwd",
    ".",
    "..",
    "\0",
    "é",
    "e\u0301",
    "\udc80",
    "\\udc80",
    "x" * 5000,
]


def folder_of(run: object) -> str:
    """Return the name of the folder of a run."""
    return identify({"training.run.id": run}).folder([])


def test_run_id_is_never_part_of_a_path() -> None:
    """Each id has another folder, whose short name is of lower-case letters and digits; a number is its digits."""
    assert all(re.fullmatch(r"run-[0-9a-f]{40}", folder_of(run)) for run in IDS)
    assert all(folder_of(one) != folder_of(other) for one, other in combinations(IDS, 2))
    assert folder_of("17") == folder_of(17)


def history(run: str = "run-7", step: int = 9, last: int = 10) -> History:
    """Return a history with one attempt."""
    return History(run, Earlier(), Attempt("name", {"step": step}, last))


def write(root: Path, stored: History) -> Path:
    """Write the file of a run as a process does that ends, and return its path."""
    opened = open_run(root, identify({"training.run.id": stored.run} if stored.run else {}))
    opened.store(stored)
    opened.close()
    return opened.path / FILE


def test_two_processes_never_write_one_file(tmp_path: Path) -> None:
    """While a process has the folder, another one does not get it; reading needs no lock."""
    first = open_run(tmp_path, IDENTITY)
    first.store(history())
    with pytest.raises(SpoolError, match="in use"):
        open_run(tmp_path, IDENTITY)
    assert ["run-7"] == [run.run for run in read_runs(tmp_path)[0]]
    first.close()
    open_run(tmp_path, IDENTITY).close()


@pytest.mark.parametrize("kind", ["truncated", "newer", "symbolic link", "fifo"])
def test_unusable_file_is_kept_aside_and_logged(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Never is it followed, overwritten or deleted; readers return the other runs, and the run gets a new file."""
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    path = write(tmp_path, history())
    write(tmp_path, history("run-8"))
    stored = json.loads(path.read_bytes())
    path.unlink()
    if kind == "truncated":
        path.write_bytes(json.dumps(stored).encode()[:-20])
    elif kind == "newer":
        path.write_text(json.dumps({**stored, "version": 99}), encoding="utf-8")
    elif kind == "symbolic link":
        path.symlink_to(victim)
    else:
        os.mkfifo(path)
    runs, problems = read_runs(tmp_path)
    assert (["run-8"], 1, False) == ([run.run for run in runs], len(problems), "precious" in problems[0])
    before = os.lstat(path)
    opened = open_run(tmp_path, IDENTITY)
    assert opened.load("run-7") is None
    assert 1 == caplog.text.count("the ledger of the run starts anew")
    opened.store(history())
    assert history() == opened.load("run-7")
    opened.close()
    (aside,) = path.parent.glob("unusable-*.json")
    assert (before.st_ino, before.st_mode) == (os.lstat(aside).st_ino, os.lstat(aside).st_mode)
    assert "precious" == victim.read_text(encoding="utf-8")


def test_oldest_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the runs with the oldest heartbeats go; runs in use and foreign files stay."""
    monkeypatch.setattr(run_folder, "RUNS", 3)
    busy = open_run(tmp_path, identify({"training.run.id": "busy"}))
    busy.store(history("busy"))
    os.utime(busy.path, ns=(0, 0))
    notes = tmp_path / LEDGERS / "notes"
    notes.mkdir()
    os.utime(notes, ns=(1, 1))
    for number in range(6):
        path = write(tmp_path, history(f"run {number}", last=number))
        os.utime(path.parent, ns=(number + 2, number + 2))
    found = [run.run for run in read_runs(tmp_path)[0]]
    busy.close()
    assert {"busy", "run 4", "run 5"} == set(found)
    assert notes.is_dir()


HISTORY = History(
    "run \udc80/\n'",
    Earlier(2, {"startup": 3, "step": 5, "lost": 4, "eigene Größe": 1}, ((0, 0), (7, 5))),
    Attempt("name", {"step": 6}, 99, "boot", 98, True, 5, ((5, 0), (2**63 - 1, 6)), 7, 1),
)


def test_largest_history_comes_back_and_fits() -> None:
    """Ids and names that UTF-8 cannot hold are stored; the most marks and names are far below the limit of a file."""
    assert HISTORY == decode(encode(HISTORY))
    line = tuple((2**62 + step, 2**40 + step) for step in range(MARKS))
    activities = {"step": 2**62} | {f"{number} " + "\N{SNOWMAN}" * 1000: 2**62 for number in range(64)}
    history = History("x" * 1000, Earlier(1, activities, line), Attempt("", activities, 1, marks=line))
    assert len(encode(history)) < LIMIT_BYTES
    assert run_time(history).elapsed_ns == run_time(decode(encode(history))).elapsed_ns
