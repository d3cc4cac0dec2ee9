"""The spool returns what was written to it, whatever happened to the process or to the files."""

from __future__ import annotations

import stat
import struct
import tempfile
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel_otlp.request import SIGNALS, FrozenRequest
from monitel_otlp.spool import segment_writer
from monitel_otlp.spool.spool import Spool, SpoolError

from .spools import drain, load, make_request, the_segment, write

requests = st.builds(
    FrozenRequest,
    st.sampled_from(SIGNALS),
    st.binary(max_size=300),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=40),
    st.integers(0, 2**32 - 1),
)


@given(st.lists(requests, max_size=12))
def test_every_field_of_a_request_is_kept(given: list[FrozenRequest]) -> None:
    """Requests come back in order, signal by signal, with their weights and counts."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "spool"
        write(folder, *given)
        expected = [request for signal in SIGNALS for request in given if request.signal == signal]
        if not given:
            assert not folder.exists()
            return
        assert expected == list(Spool(folder).peek())
        assert expected == load(folder)


@given(st.lists(st.tuples(st.sampled_from(["put", "read", "remove", "restart"]), requests), max_size=30))
def test_a_spool_is_a_queue_across_restarts(steps: list[tuple[str, FrozenRequest]]) -> None:
    """Requests that are put, read, removed and left to the next process come in order, each once; items add up."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_writer, "SEGMENT_BYTES", 500)
        folder = Path(root) / "spool"
        expected: dict[str, list[FrozenRequest]] = {signal: [] for signal in SIGNALS}
        own: list[FrozenRequest] = []
        spool = Spool(folder)
        for step, request in steps:
            waiting = expected[request.signal]
            if step == "put":
                spool.append(request)
                waiting.append(request)
                own.append(request)
            elif step == "restart":
                spool.close()
                spool = Spool(folder)
                own.clear()
                if folder.exists():
                    spool.load()
            else:
                assert (waiting[0] if waiting else None) == spool.oldest(request.signal)
                if step == "remove" and waiting:
                    assert spool.remove_oldest(request.signal)
                    own = [each for each in own if each is not waiting[0]]
                    del waiting[0]
            for signal in SIGNALS:
                assert sum(each.items for each in own if each.signal == signal) == spool.items(signal)
        assert [request for signal in SIGNALS for request in expected[signal]] == list(spool.requests())
        assert {} == spool.take_lost("metrics") | spool.take_lost("logs") | spool.take_lost("traces")
        spool.close()
        assert any(expected.values()) == folder.exists()


def test_only_the_owner_can_read_a_spool(tmp_path: Path) -> None:
    """Files are 0600 and the folders 0700."""
    with closing(Spool(tmp_path / "runs" / "spool")) as spool:
        spool.append(make_request(1))
        spool.set_aside(make_request(2, body=b""), "HTTP 400")
        spool.set_aside(FrozenRequest("logs", b"", 3, 4, b"\1\0\0\0"), "HTTP 400")
        spool.append(make_request(3))
        spool.remove_oldest("metrics")
        modes = {
            path.name if path.is_dir() else path.suffix: stat.S_IMODE(path.stat().st_mode)
            for path in [spool.folder, *spool.folder.rglob("*")]
        }
    files = dict.fromkeys([".spool", ".position", "", ".binpb", ".txt", ".items"], 0o600)
    assert files | {"spool": 0o700, "rejected": 0o700} == modes


@given(st.lists(requests.map(lambda request: (request, request.body[:5].decode("latin-1"))), max_size=5))
def test_refused_requests_are_kept_with_the_reason_and_taken_back(given: list[tuple[FrozenRequest, str]]) -> None:
    """No refused request replaces another. Taken back, each is as it was, in the order of creation."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "spool"
        with closing(Spool(folder)) as spool:
            for request, reason in given:
                path = spool.set_aside(request, reason)
                assert (request.body, reason.encode()) == (path.read_bytes(), path.with_suffix(".txt").read_bytes())
        if not given:
            return
        with closing(Spool(folder)) as spool:
            spool.take_back()
            found = list(spool.requests())
        by_age = sorted((request for request, _ in given), key=lambda request: request.created_ns)
        assert len(given) == len(found)
        for signal in SIGNALS:
            of_signal = [request.created_ns for request in found if request.signal == signal]
            assert [request.created_ns for request in by_age if request.signal == signal] == of_signal
        assert {*by_age} == {*found}
        assert not (folder / "rejected").exists()


def test_a_reason_may_be_any_text(tmp_path: Path) -> None:
    """A lone surrogate, which UTF-8 cannot hold, is escaped."""
    with closing(Spool(tmp_path / "spool")) as spool:
        path = spool.set_aside(make_request(1), "no \udcff")
    assert "no \\udcff" == path.with_suffix(".txt").read_text()


def test_segments_rotate_and_are_removed_once_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files do not grow forever, and the disk space is freed while the spool is read."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1000)
    folder = tmp_path / "spool"
    with closing(Spool(folder)) as spool:
        for number in range(20):
            spool.append(make_request(number, body=b"x" * 200))
        segments = sorted(folder.glob("metrics-*.spool"))
        assert 5 == len(segments)
        assert all(path.stat().st_size <= 1000 for path in segments)
        assert [make_request(number, body=b"x" * 200) for number in range(20)] == drain(spool)
        assert (0, []) == (spool.size_bytes, list(folder.glob("metrics*")))
    assert not folder.exists()


def test_the_oldest_give_way_to_the_size_limit_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest signal loses its oldest segment; kept and dropped items are together what was written."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1000)
    with closing(Spool(tmp_path / "spool", 5000)) as spool:
        spool.append(make_request(0, "logs", items=5))
        for number in range(50):
            spool.append(make_request(number, body=b"x" * 200, items=10))
            assert spool.size_bytes <= 5000
        left = [request.created_ns for request in spool.requests() if request.signal == "metrics"]
        assert list(range(50 - len(left), 50)) == left
        assert 10 < len(left) < 25
        assert len(left) * 10 == spool.items("metrics")
        assert {"spool_full": (50 - len(left)) * 10} == spool.take_lost("metrics")
        assert ({}, {}) == (spool.take_lost("metrics"), spool.take_lost("logs"))
        assert [0] == [request.created_ns for request in spool.requests() if request.signal == "logs"]


def test_a_request_larger_than_the_limit_is_dropped_and_counted(tmp_path: Path) -> None:
    """It takes the place of the older ones, which the limit does not leave room for either."""
    with closing(Spool(tmp_path / "spool", 500)) as spool:
        spool.append(make_request(1, body=b"x" * 1000, items=7))
        assert (None, {"spool_full": 7}) == (spool.oldest("metrics"), spool.take_lost("metrics"))


def test_signals_without_an_endpoint_are_not_limited(tmp_path: Path) -> None:
    """They have nowhere else to go."""
    with closing(Spool(tmp_path / "spool", 500, ["metrics"])) as spool:
        spool.append(make_request(1, "logs", body=b"x" * 1000))
        assert spool.oldest("logs") is not None


def test_a_request_under_way_outlives_its_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing it afterwards removes no other request, and its items are counted once."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1)
    with closing(Spool(tmp_path / "spool", 700)) as spool:
        first = make_request(0, body=b"x" * 200, items=10)
        spool.append(first)
        assert first == spool.oldest("metrics")
        for number in range(1, 6):
            spool.append(make_request(number, body=b"x" * 200, items=10))
        assert first == spool.oldest("metrics")
        items = spool.items("metrics")
        assert {"spool_full": 60 - items} == spool.take_lost("metrics")
        assert spool.remove_oldest("metrics")
        assert items - 10 == spool.items("metrics")
        assert [4, 5] == [request.created_ns for request in drain(spool)]
        assert (0, {}) == (spool.items("metrics"), spool.take_lost("metrics"))


def test_a_request_whose_segment_was_dropped_is_written_again_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in memory alone by then, and nobody has acknowledged it."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1)
    with closing(Spool(tmp_path / "spool", 500)) as spool:
        for number in range(3):
            spool.append(make_request(number, body=b"x" * 200))
            spool.oldest("metrics")
    assert [1, 2, 0] == [request.created_ns for request in load(tmp_path / "spool")]


def test_a_torn_record_costs_itself_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cut at every byte of the last record: the records before it are there, and one line is logged."""
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


def test_a_damaged_byte_never_gives_a_wrong_request(tmp_path: Path) -> None:
    """Each byte is flipped in turn: the damaged record is left out, and so is at most what follows it."""
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
    """Any bytes in place of any part of a segment: other segments are read, and lost items are counted exactly."""
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


def test_a_damaged_body_costs_its_record_only(tmp_path: Path) -> None:
    """The header has a checksum of its own, so the next record is found."""
    folder = tmp_path / "spool"
    write(folder, make_request(1), make_request(2, items=5), make_request(3))
    path = the_segment(folder)
    path.write_bytes(path.read_bytes().replace(b"body 2", b"BODY 2"))
    with closing(Spool(folder)) as spool:
        spool.load()
        assert [make_request(1), make_request(3)] == drain(spool)
        assert ({"disk": 5}, 1) == (spool.take_lost("metrics"), spool.problems)


def test_a_file_that_is_not_a_segment_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are delivered; the file stays, because nobody can tell what it is."""
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


def test_segments_of_version_0_1_are_read_from_the_place_that_was_reached(tmp_path: Path) -> None:
    """They have no magic, and the position is a line of text."""
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    records = []
    for number in range(3):
        body, tail = b"body %d" % number, struct.pack("<IQ", 1, number)
        records.append(struct.pack("<II", len(body), zlib.crc32(body, zlib.crc32(tail))) + tail + body)
    (folder / "metrics-000004.spool").write_bytes(b"".join(records))
    (folder / "metrics.position").write_text(f"4 {len(records[0])}")
    (folder / "metrics.fresh").write_text("4 0")
    (folder / "lock").touch()
    assert [make_request(1), make_request(2)] == load(folder)
    with closing(Spool(folder)) as spool:
        spool.append(make_request(3))
        assert spool.remove_oldest("metrics")
    with closing(Spool(folder)) as spool:
        spool.load()
        assert [make_request(2), make_request(3)] == drain(spool)
    assert not folder.exists()


@pytest.mark.parametrize(
    "position", [b"", b"garbage", b"1", b"7 12", b"\xff\xfe 3", b"1 100000", bytes(64), b"mtp\x02" * 16], ids=repr
)
def test_a_broken_position_means_the_beginning(tmp_path: Path, position: bytes) -> None:
    """Including one beyond the end of a segment that was restored from a backup."""
    folder = tmp_path / "spool"
    write(folder, make_request(1), make_request(2))
    (folder / "metrics.position").write_bytes(position)
    assert [make_request(1), make_request(2)] == load(folder)


def test_a_torn_position_means_the_one_before(tmp_path: Path) -> None:
    """The file has two slots that are written in turn: any 32 bytes of it may be garbage."""
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


def test_other_files_in_the_folder_do_not_matter(tmp_path: Path) -> None:
    """Notes beside the segments, or a segment with a strange name, stay where they are."""
    folder = tmp_path / "spool"
    write(folder, make_request(1))
    others = [folder / "notes.txt", folder / "metrics-old.spool", folder / "metrics-1.spool", folder / "x-000001.raw"]
    for path in others:
        path.write_text("do not remove")
    with closing(Spool(folder)) as spool:
        spool.load()
        assert [make_request(1)] == drain(spool)
    assert set(others) == set(folder.iterdir())


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """The second one gets an error; it can look all the same, and have the folder afterwards."""
    folder = tmp_path / "spool"
    with closing(Spool(folder)) as spool:
        spool.append(make_request(1))
        with pytest.raises(SpoolError, match=r"is in use: its process is running, or another replay is"):
            Spool(folder).load()
        assert [make_request(1)] == list(Spool(folder).peek())
    assert [make_request(1)] == load(folder)


def test_a_missing_folder_is_reported_and_not_made(tmp_path: Path) -> None:
    """A typo makes no folder."""
    with pytest.raises(SpoolError, match="there is no folder"):
        Spool(tmp_path / "typo").load()
    assert [] == list(Spool(tmp_path / "typo").peek())
    assert [] == list(tmp_path.iterdir())


def test_a_closed_spool_can_be_used_again(tmp_path: Path) -> None:
    """Its own items are still counted, and the reading goes on where it was."""
    spool = Spool(tmp_path / "spool")
    for number in range(3):
        spool.append(make_request(number))
    spool.remove_oldest("metrics")
    spool.close()
    assert (2, None) == (spool.items("metrics"), spool.oldest("metrics"))
    spool.append(make_request(3))
    assert 3 == spool.items("metrics")
    assert [make_request(1), make_request(2), make_request(3)] == drain(spool)
    spool.close()
    assert not spool.folder.exists()
