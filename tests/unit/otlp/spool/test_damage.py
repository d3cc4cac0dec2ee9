"""Damaged files of a spool: undamaged records are read, and lost items are counted."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spools import drain, load, make_request, write

from monitel_otlp.spool import segment_writer
from monitel_otlp.spool.spool import Spool


@given(st.data())
def test_garbage_is_skipped_and_counted(data: st.DataObject) -> None:
    """If any part of a segment is replaced by any bytes, others are read, and lost items are counted exactly."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_writer, "SEGMENT_BYTES", 200)
        given = [make_request(number, body=b"x" * 50, items=number + 1) for number in range(9)]
        with closing(Spool(Path(root) / "spool")) as spool:
            for request in given:
                spool.append(request)
            path = data.draw(st.sampled_from(sorted(spool.folder.glob("*.spool"))))
            content = bytearray(path.read_bytes())
            begin = data.draw(st.integers(0, len(content)))
            garbage = data.draw(st.binary(max_size=60))
            content[begin : begin + data.draw(st.integers(0, 60))] = garbage
            path.write_bytes(content)
            found = drain(spool)
            assert [request for request in given if request in found] == found
            lost = spool.take_lost("metrics")
            assert sum(request.items for request in given if request not in found) == lost.get("disk", 0)
            assert 0 == spool.items("metrics")
            assert 6 <= len(found)


def test_broken_position_means_the_beginning(tmp_path: Path) -> None:
    """The position may be beyond the end of a segment, for example after a restore from a backup."""
    folder = tmp_path / "spool"
    for position in (b"", b"garbage", b"1 100000", b"\xff\xfe 3", bytes(64), b"mtp\x02" * 16):
        write(folder, make_request(1), make_request(2))
        (folder / "metrics.position").write_bytes(position)
        with closing(Spool(folder)) as spool:
            spool.load()
            assert [make_request(1), make_request(2)] == drain(spool), position


def test_half_written_position_means_the_previous_one(tmp_path: Path) -> None:
    """The file has two slots that are written alternately, so that either one may be damaged."""
    folder = tmp_path / "spool"
    write(folder, *map(make_request, range(5)))
    with closing(Spool(folder)) as spool:
        spool.load()
        for _ in range(3):
            spool.remove_oldest("metrics")
    position = folder / "metrics.position"
    whole = position.read_bytes()
    assert 64 == len(whole)
    found = []
    for begin in (0, 32):
        position.write_bytes(whole[:begin] + bytes(32) + whole[begin + 32 :])
        found.append([request.created_ns for request in load(folder)])
    assert [[2, 3, 4], [3, 4]] == sorted(found)
