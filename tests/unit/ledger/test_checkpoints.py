"""Details of checkpoints: paths, sizes of files and folders, and loads in parts."""

import os
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import monitel
from monitel.training import checkpoints


def total(name: str) -> float:
    book = monitel.ledger()
    assert book is not None
    return book.activities.get(name, 0) / 1e9


def wait() -> None:
    Event().wait(0.02)


class Unprintable:
    def __fspath__(self) -> str:
        raise RuntimeError("no path")


os.PathLike.register(Unprintable)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("s3://me:hidden@bucket/last?token=hidden", "s3://***@bucket/last?token=***"),
        ("x" * 5000, "x" * 1000),
        (Unprintable(), None),
    ],
)
def test_path_is_shown_if_there_is_one(events: list[Any], path: object, shown: str | None) -> None:
    """Without secrets, as text that UTF-8 can hold, and of limited length. None of these has a size."""
    with checkpoints.Checkpoint(checkpoints.SAVE, path):
        pass
    assert ([] if shown is None else [shown]) == [event.data["checkpoint.path"] for event in events]
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


def test_size_of_folder(events: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files of this save count, and no linked folder; all files of a load count, unless there are too many."""
    monkeypatch.setattr(checkpoints, "_MAX_SIZE_NS", 60 * 10**9)
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "weights").write_bytes(b"x" * 1000)
    os.utime(tmp_path / "earlier" / "weights", (1, 1))
    with checkpoints.Checkpoint(checkpoints.SAVE, tmp_path, others="checkpoint-"):
        (tmp_path / "checkpoint-7").mkdir()
        (tmp_path / "checkpoint-7" / "weights").write_bytes(b"x" * 5000)
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "weights").write_bytes(b"x" * 20)
        (tmp_path / "state").write_bytes(b"x" * 3)
        (tmp_path / "new" / "again").symlink_to(tmp_path)
    with checkpoints.Checkpoint(checkpoints.LOAD, tmp_path):
        pass
    monkeypatch.setattr(checkpoints, "_MAX_FILES", 3)
    with checkpoints.Checkpoint(checkpoints.LOAD, tmp_path):
        pass
    assert [23, 6023, None] == [event.data.get("checkpoint.size") for event in events]


def test_parts_of_a_load(events: list[Any]) -> None:
    """The event has the time of all parts, and what is between them does not count."""
    load = checkpoints.Checkpoint(checkpoints.LOAD, "parts", logs=False)
    for _ in range(2):
        with load:
            wait()
        monitel.set_step(5)
        wait()
    load.step = 3
    load.log()
    (event,) = events
    assert 3 == event.step
    assert 0.04 <= event.data["checkpoint.duration"] <= total("checkpoint.load")
