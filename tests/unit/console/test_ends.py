"""The folder of a run: complete files of this user only."""

import os
from pathlib import Path

import pytest
from tests.unit.console.made_processes import ended

from monitel.blackbox.account import Account
from monitel.blackbox.folder import FolderError
from monitel.console.summary import summary_lines
from monitel.runs.ended import encode, read_ends, write_end
from monitel.runs.stored import LIMIT_BYTES
from monitel.text import Screen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (found := tmp_path / "run").mkdir(mode=0o700)
    return found


def test_damaged_reports_do_not_hide_the_others(folder: Path) -> None:
    """Each has one message; a FIFO blocks nobody, and links are not followed."""
    write_end(folder, ended(3))
    (folder / "report-1-1-00.json").write_bytes(b"{")
    (folder / "report-2-1-00.json").write_bytes(b"")
    (folder / "report-3-1-00.json").write_bytes(encode(ended(1))[:-1] + b" " * LIMIT_BYTES + b"}")
    os.mkfifo(folder / "report-4-1-00.json", 0o600)
    secret = folder / "secret"
    secret.write_bytes(encode(ended(2)))
    (folder / "report-5-1-00.json").symlink_to(secret)
    (folder / "report-6-1-00.json").mkdir()
    (folder / "report-7-1-00.json").hardlink_to(secret)
    (folder / "other").write_bytes(b"other")
    (folder / ".a1-report-8-1-00.json").write_bytes(b"unfinished")
    found, problems = read_ends(folder)
    assert ([3], 7) == ([each.rank for each in found], len(problems))
    assert all(f"report-{number}-" in problem for number, problem in enumerate(problems, 1))


def test_items_of_an_earlier_pipeline_of_a_process_are_in_the_summary(folder: Path) -> None:
    """Delivered and lost items, and those in the spool of that pipeline."""
    (spool := folder / "first").mkdir()
    first = Account(110, delivered=70, on_disk=10, dropped={"queue_full": 30})
    for seen, path, account in ((1, spool, first), (2, folder / "second", Account(100, delivered=100))):
        write_end(folder, ended(seen_ns=seen, spool=str(path), accounts={"metrics": account}))
    processes, _ = read_ends(folder)
    lines = [line.strip() for line in summary_lines(processes, (), Screen(1000))[1:]]
    assert [
        "exported  170 windows and numbers, 0 events",
        f"on disk   10 items, deliver with: monitel replay {folder}",
        "lost      30 items (queue_full 30)",
    ] == lines


def test_nothing_is_written_into_a_folder_that_others_can_write_to(folder: Path, tmp_path: Path) -> None:
    """Nor through a link, nor into a file."""
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(folder)
    file.touch()
    for path in (link, file, tmp_path / "missing"):
        with pytest.raises((FolderError, OSError)):
            write_end(path, ended())
    folder.chmod(0o777)
    with pytest.raises(FolderError):
        write_end(folder, ended())
    assert [] == [*folder.glob("*report*")]
