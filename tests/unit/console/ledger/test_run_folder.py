"""The folder of a run: safe, locked, replaced as a whole, and limited in number."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest
from tests.support.spools import names

from monitel_otlp.ledger import run_folder
from monitel_otlp.ledger.history import Attempt, Earlier, History
from monitel_otlp.ledger.reading import read_runs
from monitel_otlp.ledger.run_folder import FILE, LEDGERS, RunFolder, open_run
from monitel_otlp.ledger.run_identity import RunIdentity, identify
from monitel_otlp.spool.discovery import find_spools
from monitel_otlp.spool.folder import Folder, SpoolError

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = identify({"training.run.id": "run-7"})


def history(run: str = "run-7", step: int = 9, last: int = 10) -> History:
    """Return a history with one attempt."""
    return History(run, Earlier(), Attempt("name", {"step": step}, last))


def write(root: Path, stored: History) -> Path:
    """Write the file of a run as a process does that ends, and return its path."""
    opened = open_run(root, identify({"training.run.id": stored.run} if stored.run else {}))
    opened.store(stored)
    opened.close()
    return opened.path / FILE


def test_next_attempt_reads_the_file(tmp_path: Path) -> None:
    """The file holds the last history, in a folder that only its owner can enter."""
    root = tmp_path / "new" / "spool"
    write(root, history(step=1))
    path = write(root, history())
    opened = open_run(root, IDENTITY)
    assert history() == opened.load("run-7")
    opened.close()
    assert [0o700, 0o700, 0o600] == [stat.S_IMODE(each.stat().st_mode) for each in (root / LEDGERS, path.parent, path)]
    assert {FILE, "lock"} == set(names(path.parent))


def test_root_may_be_a_symbolic_link_and_the_folders_may_not(tmp_path: Path) -> None:
    """As for the spool, the parents of the folder may be links; the folders that monitel makes are never followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = write(tmp_path / "link", history())
    assert 1 == len(read_runs(tmp_path / "link")[0])
    victim = tmp_path / "victim"
    path.parent.rename(victim)
    path.parent.symlink_to(victim)
    with pytest.raises(SpoolError, match="symbolic link"):
        open_run(tmp_path / "link", IDENTITY)
    path.parent.unlink()
    path.parent.parent.rmdir()
    path.parent.parent.symlink_to(victim)
    with pytest.raises(SpoolError, match="symbolic link"):
        open_run(tmp_path / "link", IDENTITY)
    runs, problems = read_runs(tmp_path / "link")
    assert ([], 1) == (runs, len(problems))
    assert {FILE, "lock"} == set(names(victim))


def test_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """Another user who can write to the folder of all runs could replace a run by anything."""
    path = write(tmp_path, history())
    path.parent.parent.chmod(0o777)
    with pytest.raises(SpoolError, match="other users can write"):
        open_run(tmp_path, IDENTITY)


def test_two_processes_never_write_one_file(tmp_path: Path) -> None:
    """While a process has the folder, another one does not get it; reading needs no lock."""
    first = open_run(tmp_path, IDENTITY)
    first.store(history())
    with pytest.raises(SpoolError, match="in use"):
        open_run(tmp_path, IDENTITY)
    assert ["run-7"] == [run.run for run in read_runs(tmp_path)[0]]
    first.close()
    open_run(tmp_path, IDENTITY).close()


def make_unusable(path: Path, kind: str) -> None:
    """Replace the file of a run."""
    stored = json.loads(path.read_bytes())
    path.unlink()
    if kind == "truncated":
        path.write_bytes(json.dumps(stored).encode()[:-20])
    elif kind == "newer":
        path.write_text(json.dumps({**stored, "version": 99}), encoding="utf-8")
    elif kind == "another run":
        path.write_text(json.dumps({**stored, "run": "run-8"}), encoding="utf-8")
    elif kind == "symbolic link":
        path.symlink_to(path.parent.parent.parent / "victim")
    elif kind == "hard link":
        os.link(path.parent.parent.parent / "victim", path)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["truncated", "newer", "another run", "symbolic link", "hard link", "fifo", "folder"])
def test_unusable_file_is_kept_aside_and_logged(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be used is never followed, overwritten or deleted, and the run gets a new file."""
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    path = write(tmp_path, history())
    make_unusable(path, kind)
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


@pytest.mark.parametrize("kind", ["truncated", "newer", "symbolic link", "fifo", "folder"])
def test_unusable_file_does_not_hide_the_other_runs(kind: str, tmp_path: Path) -> None:
    """A reader reports the file that it cannot read, and returns the other runs."""
    (tmp_path / "victim").write_text("secret", encoding="utf-8")
    make_unusable(write(tmp_path, history()), kind)
    write(tmp_path, history("run-8", last=30))
    write(tmp_path, history("", last=20))
    runs, problems = read_runs(tmp_path)
    assert ["", "run-8"] == [run.run for run in runs]
    assert 1 == len(problems)
    assert "secret" not in problems[0]


def test_leftover_of_a_killed_write_is_replaced(tmp_path: Path) -> None:
    """A temporary file or a link in its place is removed, not followed."""
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    path = write(tmp_path, history())
    (path.parent / "ledger.json.new").symlink_to(victim)
    write(tmp_path, history(step=8))
    assert "precious" == victim.read_text(encoding="utf-8")
    assert 8 == json.loads(path.read_bytes())["attempt"]["activities"]["step"]


def test_failed_write_keeps_the_previous_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves the previous file complete, and the next write succeeds."""
    opened = open_run(tmp_path, IDENTITY)
    opened.store(history())
    with monkeypatch.context() as patch:
        patch.setattr("monitel_otlp.spool.folder.os.pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full"):
            opened.store(history(step=11))
    assert history() == opened.load("run-7")
    opened.store(history(step=12))
    assert history(step=12) == opened.load("run-7")
    opened.close()


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


def test_commands_for_spools_do_not_see_ledgers(tmp_path: Path) -> None:
    """The search for spools, and the delivery of earlier spools, find nothing in the folder of the ledgers."""
    opened = RunFolder(
        Folder.open(write(tmp_path, history()).parent.parent),
        RunIdentity("", "process-", joins=False).folder([]),
    )
    opened.store(history(""))
    opened.close()
    found = find_spools(tmp_path)
    assert ([], [], []) == (found.folders, found.refused, found.problems)
    assert [] == list(tmp_path.glob("*-*"))  # as the delivery of earlier spools looks for them
