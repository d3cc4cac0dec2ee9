"""Details of checkpoints: paths, sizes of files and folders, and loads in parts."""

import os
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import monitel
from monitel.training import checkpoints


class Unprintable:
    def __fspath__(self) -> str:
        raise RuntimeError("no path")


os.PathLike.register(Unprintable)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("s3://me:hidden@bucket/last?token=hidden", ["s3://***@bucket/last?token=***"]),
        ("x" * 5000, ["x" * 1000]),
        (Unprintable(), []),
    ],
)
def test_path_is_shown_if_there_is_one(events: list[Any], path: object, shown: list[str]) -> None:
    """Without secrets and of limited length. None of these has a size."""
    with checkpoints.Checkpoint(checkpoints.SAVE, path):
        pass
    assert shown == [event.data["checkpoint.path"] for event in events]
    assert not [event for event in events if "checkpoint.size" in event.data]


def test_open_file(events: list[Any], tmp_path: Path) -> None:
    """The size includes what is still in the file's buffer; of a load it is that of the whole file."""
    with (tmp_path / "file.pt").open("wb") as file, checkpoints.Checkpoint(checkpoints.SAVE, file):
        file.write(b"x" * 100)
    with (tmp_path / "file.pt").open("rb") as again, checkpoints.Checkpoint(checkpoints.LOAD, again):
        again.read(10)
    assert [(str(tmp_path / "file.pt"), 100)] * 2 == [
        (event.data["checkpoint.path"], event.data["checkpoint.size"]) for event in events
    ]


def write(path: Path, size: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_size_of_folder(events: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files of this save count, and no linked folder; all files of a load count, unless there are too many."""
    monkeypatch.setattr(checkpoints, "_MAX_SIZE_NS", 60 * 10**9)
    os.utime(write(tmp_path / "earlier/weights", 1000), (1, 1))
    with checkpoints.Checkpoint(checkpoints.SAVE, tmp_path, others="checkpoint-"):
        write(tmp_path / "checkpoint-7/weights", 5000)
        write(tmp_path / "new/weights", 20)
        write(tmp_path / "state", 3)
        (tmp_path / "new" / "again").symlink_to(tmp_path)
    for most in (checkpoints._MAX_FILES, 3):
        monkeypatch.setattr(checkpoints, "_MAX_FILES", most)
        with checkpoints.Checkpoint(checkpoints.LOAD, tmp_path):
            pass
    assert [23, 6023, None] == [event.data.get("checkpoint.size") for event in events]


def test_parts_of_a_load(events: list[Any]) -> None:
    """The event has the time of all parts, and what is between them does not count."""
    load = checkpoints.Checkpoint(checkpoints.LOAD, "parts", logs=False)
    for _ in range(2):
        with load:
            Event().wait(0.02)
        monitel.set_step(5)
        Event().wait(0.02)
    load.step = 3
    load.log()
    (event,), book = events, monitel.ledger()
    assert book is not None
    assert 3 == event.step
    assert 0.04 <= event.data["checkpoint.duration"] <= book.activities["checkpoint.load"] / 1e9
