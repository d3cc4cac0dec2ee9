"""Collection of black boxes where a disk, or the memory of the boxes, is full."""

from __future__ import annotations

import errno
import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.spools import names
from tests.unit.blackbox.boxes.holders import mounted, needs_root
from tests.unit.blackbox.collection.dead_boxes import (
    SPOOL,
    box_with_requests,
    collect,
    cut_of,
    header_of,
    hidden,
    spooled_bodies,
    spooled_deaths,
)

from monitel_otlp.black_box.contents import Contents
from monitel_otlp.collection.recovered_spool import write_spool
from monitel_otlp.collection.target import NOTE
from monitel_otlp.spool.folder import Folder, write_at
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path


def test_box_stays_while_the_disk_is_full(boxes: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One problem is reported, nothing of the spool remains, and the next collector succeeds."""
    box = box_with_requests(boxes, runs / SPOOL)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("monitel_otlp.spool.segment_writer.write_at", full)
        (problem,) = collect(boxes).problems
    assert "No space left on device" in problem
    assert ([box.name], [], []) == (names(boxes), names(runs), hidden(runs))
    assert [] == collect(boxes).problems
    assert [b"1 metrics", b"1 traces"] == spooled_bodies(runs)


@pytest.mark.parametrize("writes", range(1, 5))
def test_disk_that_becomes_full_loses_and_doubles_nothing(
    boxes: Path, runs: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """A spool that is not complete is removed, including the last raw segment."""
    box_with_requests(boxes, runs / SPOOL)
    left = [writes]

    def write(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_at(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("monitel_otlp.spool.segment_writer.write_at", write)
        first = collect(boxes)
    assert (writes >= 3) == (not first.problems)
    collect(boxes)
    assert [b"1 metrics", b"1 traces"] == spooled_bodies(runs)
    assert 1 == len(spooled_deaths(runs))
    assert ([], []) == (names(boxes), hidden(runs))


@pytest.mark.parametrize("room", range(0, 60_000, 6_000))
def test_spool_with_a_part_of_the_events_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The disk becomes full between two blocks of raw items: the spool is complete, or is not used."""
    events: list[Any] = [(1, 1, 9, "event", None, {"number": number}, 0, b"", b"", 0) for number in range(1000)]
    contents = Contents(header_of(tmp_path / SPOOL), cut_of(), events=events)
    left = [room]

    def write(descriptor: int, content: bytes, offset: int) -> None:
        if len(content) > left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(content)
        write_at(descriptor, content, offset)

    monkeypatch.setattr("monitel_otlp.spool.segment_writer.write_at", write)
    with closing(Spool(tmp_path / "spool")) as spool:
        try:
            assert 1000 == write_spool(contents, None, spool)
        except OSError:
            return
        assert 1000 == sum(request.items for request in spool.requests())


def test_full_memory_does_not_stop_the_collection(boxes: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note in the box is needed only for a spool at an unusual place."""
    box_with_requests(boxes, runs / SPOOL)
    real = Folder.write_new

    def write_new(folder: Folder, name: str, content: bytes) -> None:
        if name == NOTE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(folder, name, content)

    monkeypatch.setattr(Folder, "write_new", write_new)
    assert [] == collect(boxes).problems
    assert [b"1 metrics", b"1 traces"] == spooled_bodies(runs)


@needs_root
def test_boxes_in_full_memory_are_collected(tmp_path: Path, runs: Path) -> None:
    """The claim and the new name of a box need no memory."""
    with mounted(tmp_path / "memory", "size=256k,mode=1777") as memory:
        box_with_requests(memory / "boxes", runs / SPOOL)
        with suppress(OSError), (memory / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        assert [] == collect(memory / "boxes").problems
        assert [] == names(memory / "boxes")
    assert [b"1 metrics", b"1 traces"] == spooled_bodies(runs)
