"""Damaged files of a spool: undamaged records are read, and lost items are counted."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spools import drain, load, make_request, the_segment, write

from monitel_otlp.spool import segment_writer
from monitel_otlp.spool.spool import Spool


def test_truncated_record_loses_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the last record is cut at any byte, earlier records are read, and one line is logged."""
    folder = tmp_path / "spool"
    write(folder, make_request(1), make_request(2))
    whole = the_segment(folder).read_bytes()
    first = 8 + (len(whole) - 8) // 2  # a magic, and two records
    for end in range(first, len(whole)):
        the_segment(folder).write_bytes(whole[:end])
        caplog.clear()
        assert [make_request(1)] == load(folder)
        logged = [record.getMessage() for record in caplog.records]
        assert (0 if end == first else 1) == len(logged)
        assert all(f"byte {first}" in each for each in logged)


def test_damaged_byte_never_returns_a_wrong_request(tmp_path: Path) -> None:
    """A damaged record, and at most the records after it, are left out."""
    folder = tmp_path / "spool"
    given = [make_request(number) for number in range(3)]
    write(folder, *given)
    whole = the_segment(folder).read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        the_segment(folder).write_bytes(damaged)
        found = load(folder)
        assert found == [request for request in given if request in found]
        assert len(found) < len(given)


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


def test_damaged_body_loses_only_its_record(tmp_path: Path) -> None:
    """The header has a separate checksum, so the next record is found."""
    folder = tmp_path / "spool"
    write(folder, make_request(1), make_request(2, items=5), make_request(3))
    path = the_segment(folder)
    path.write_bytes(path.read_bytes().replace(b"body 2", b"BODY 2"))
    with closing(Spool(folder)) as spool:
        spool.load()
        assert [make_request(1), make_request(3)] == drain(spool)
        assert ({"disk": 5}, 1) == (spool.take_lost("metrics"), spool.problems)


def test_file_that_is_not_a_segment_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other segments are read, and the unknown file stays."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1)  # a segment for each request
    folder = tmp_path / "spool"
    write(folder, make_request(1), make_request(2), make_request(3))
    foreign = folder / "metrics-000002.spool"
    foreign.write_bytes(b"\xff" * 100)
    with closing(Spool(folder)) as spool:
        spool.load()
        assert [make_request(1), make_request(3)] == drain(spool)
        assert 1 == spool.problems
    assert b"\xff" * 100 == foreign.read_bytes()


@pytest.mark.parametrize(
    "position", [b"", b"garbage", b"1", b"7 12", b"\xff\xfe 3", b"1 100000", bytes(64), b"mtp\x02" * 16], ids=repr
)
def test_broken_position_means_the_beginning(tmp_path: Path, position: bytes) -> None:
    """The position may be beyond the end of a segment, for example after a restore from a backup."""
    folder = tmp_path / "spool"
    write(folder, make_request(1), make_request(2))
    (folder / "metrics.position").write_bytes(position)
    assert [make_request(1), make_request(2)] == load(folder)


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
