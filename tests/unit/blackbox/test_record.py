"""The record of a process within it: readers of journals, parts of the snapshot, and problems."""

import errno
import marshal
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.checks import warnings_with

from monitel.blackbox import process
from monitel.blackbox.box import Box
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.reading import read_record, read_snapshot
from monitel.blackbox.record import EVENT
from monitel.blackbox.recovery import Dead, claim


@pytest.fixture
def make(own_boxes: Path, tmp_path: Path) -> Iterator[Callable[..., Box]]:
    boxes = []

    def make(**identity: Any) -> Box:
        boxes.append(Box(tmp_path / "spool", own_boxes, identity, mark="0123abcd"))
        boxes[-1].open()
        boxes[-1].journals["logs"].append(EVENT, marshal.dumps("first", 2))
        return boxes[-1]

    yield make
    for box in boxes:
        box.close(10.0)


def test_journal_without_an_endpoint_is_on_disk_after_a_spill(make: Callable[..., Box], tmp_path: Path) -> None:
    """The spool folder has its items, and the names, while the process runs."""
    box = make()
    box.journals["logs"].reader = "disk"
    box.start()
    assert box.spill(30.0)
    record = Dead(None, Folder.open(tmp_path / "spool" / box.name))
    assert ["first"] == [item.value for item in record.items("logs")]
    assert (box.name, str(tmp_path / "spool")) == (record.names[0]["name"], record.names[0]["spool"])
    assert box.name.endswith("-0123abcd")
    assert 1 == box.journals["logs"].account().on_disk


def test_journal_that_is_off_is_for_an_autopsy_only(make: Callable[..., Box], own_boxes: Path, tmp_path: Path) -> None:
    """Its items are in the box, never on the disk, and a collector has nothing to deliver of them."""
    box = make(off=("logs",))
    assert box.spill(30.0)
    box.tend_disk(0.0)
    assert b"first" in Folder.open(own_boxes / box.name).read("logs-1.log")
    assert not (tmp_path / "spool").exists()
    assert 0 == box.journals["logs"].account().recorded
    box.abandon()  # as if the process had been killed
    (name,) = (each.name for each in (own_boxes).iterdir())
    (own_boxes / name).rename(own_boxes / (dead := "20260101T000000-1-1-000000"))
    record = claim(own_boxes, tmp_path / "spool", dead)
    assert record is not None
    record.end({"logs": [(EVENT, "died")]})
    assert record.is_delivered
    record.remove()
    record.close()


def test_source_that_fails_is_left_out_of_the_snapshot(
    make: Callable[..., Box], own_boxes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other parts are there, and it is logged once; so is a part that is not a plain value, and a flush."""
    box = make()
    box.sources |= {"good": lambda: 1, "bad": lambda: 1 / 0, "odd": object}
    box.flushes.append(lambda: int("flush"))
    box.snapshot()
    box.snapshot()
    snapshot = read_snapshot(Folder.open(own_boxes / box.name))
    assert snapshot is not None
    assert {"good", "next", "stack"} == {*snapshot.values}
    assert 3 == len(warnings_with(caplog, "black box"))


def test_full_disk_stops_no_delivery(make: Callable[..., Box], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items on the disk are loaded, and removed when it is settled."""
    box, plain = make(), Folder.open_file
    logs, metrics = box.journals["logs"], box.journals["metrics"]
    box.tend_disk(0.0)
    (path,) = (tmp_path / "spool").glob("*/logs-*.log")

    def open_file(self: Folder, name: str, flags: int) -> int:
        if flags & os.O_CREAT and self.path.parent.name == "spool":
            raise OSError(errno.ENOSPC, "the disk is full")
        return plain(self, name, flags)

    monkeypatch.setattr(Folder, "open_file", open_file)
    metrics.append(EVENT, marshal.dumps("kept", 2))
    assert [] == logs.read()
    box.tend_disk(0.0)
    (item,) = logs.read()
    logs.settle(item.last, 1)
    box.tend_disk(0.0)
    assert ("the disk is full" in box.disk_problem, False) == (True, path.exists())
    monkeypatch.undo()
    box.tend_disk(0.0)
    assert ("", 1) == (box.disk_problem, metrics.account().on_disk)


def test_definitions_are_decoded_once(make: Callable[..., Box], own_boxes: Path) -> None:
    """A record that was read before has those that it had; the file of another process has none of them."""
    box, other = make(), make()
    box.names.define([("one", ["one"])])
    with closing(Folder.open(own_boxes / box.name)) as folder:
        earlier = read_record(folder, journals=())
        box.names.define([("two", ["two"])])
        found = read_record(folder, journals=(), earlier=earlier)
    assert [["one"], ["two"]] == [*found.names[1:]]
    assert [True, True] == [found.names[number] is each for number, each in enumerate(earlier.names)]
    with closing(Folder.open(own_boxes / other.name)) as folder:
        assert [other.name] == [each["name"] for each in read_record(folder, journals=(), earlier=earlier).names]


def test_record_of_another_version_is_left_alone(
    make: Callable[..., Box], own_boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its files have another content."""
    monkeypatch.setattr(process, "VERSION", 2)
    box = make()
    box._slots["totals"].write(marshal.dumps("other", 2))
    box.abandon()  # as if the process had been killed
    path = (own_boxes / box.name).rename(own_boxes / "20260101T000000-1-1-000000")
    with pytest.raises(FolderError, match="expected version 1 of the record, got 2"):
        claim(path.parent, tmp_path / "spool", path.name)
    assert path.exists()
