"""The record of a process within it: readers of journals, parts of the snapshot, and problems."""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checks import warnings_with

from monitel.blackbox.box import Box
from monitel.blackbox.folder import Folder
from monitel.blackbox.record import EVENT
from monitel.blackbox.recovery import claim, look, read_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Box]]:
    """Return a function that makes a box below the folder of the test."""
    boxes = []

    def make(**identity: Any) -> Box:
        boxes.append(Box(tmp_path / "spool", tmp_path / "boxes", identity, mark="0123abcd"))
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
    record = look(Folder.open(tmp_path / "spool" / box.name))
    assert ["first"] == [item.value for item in record.items["logs"]]
    assert (box.name, str(tmp_path / "spool")) == (record.names[0]["name"], record.names[0]["spool"])
    assert box.name.endswith("-0123abcd")
    assert 1 == box.journals["logs"].account().on_disk


def test_journal_that_is_off_is_for_an_autopsy_only(make: Callable[..., Box], tmp_path: Path) -> None:
    """Its items are in the box, never on the disk, and a collector has nothing to deliver of them."""
    box = make(off=("logs",))
    assert box.spill(30.0)
    box.tend_disk(0.0)
    assert ["first"] == [item.value for item in look(Folder.open(tmp_path / "boxes" / box.name)).items["logs"]]
    assert not (tmp_path / "spool").exists()
    assert 0 == box.journals["logs"].account().recorded
    box.abandon()  # as if the process had been killed
    (name,) = (each.name for each in (tmp_path / "boxes").iterdir())
    (tmp_path / "boxes" / name).rename(tmp_path / "boxes" / (dead := "20260101T000000-1-1-000000"))
    record = claim(tmp_path / "boxes", tmp_path / "spool", dead)
    assert record is not None
    record.end({"logs": [(EVENT, "died")]})
    assert record.is_delivered
    record.remove()
    record.close()


def test_source_that_fails_is_left_out_of_the_snapshot(
    make: Callable[..., Box], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other parts are there, and it is logged once; so is a part that is not a plain value, and a flush."""
    box = make()
    box.sources |= {"good": lambda: 1, "bad": lambda: 1 / 0, "odd": object}
    box.flushes.append(lambda: int("flush"))
    box.snapshot()
    box.snapshot()
    snapshot = read_snapshot(Folder.open(tmp_path / "boxes" / box.name))
    assert snapshot is not None
    assert {"good", "next", "stack"} == {*snapshot.values}
    assert 3 == len(warnings_with(caplog, "black box"))


def test_box_that_cannot_be_made_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Everything works in anonymous memory, and what is recorded is counted as not safe."""
    (tmp_path / "boxes").write_text("a file")
    box = Box(tmp_path / "spool", tmp_path / "boxes", {})
    box.journals["logs"].append(EVENT, marshal.dumps("first", 2))
    box._retry_at_s = 0.0
    box._try_to_open()
    assert "boxes" in box.problem
    assert 1 == box.left_out == len(warnings_with(caplog, "does not survive a kill"))
    assert box.close(10.0)
    assert 1 == box.journals["logs"].account().on_disk
