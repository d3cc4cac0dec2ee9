"""The spool returns the requests that were written to it, after restarts, crashes and damage to files."""

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
from tests.support.spools import drain, load, make_request, write

from monitel_otlp.messages.request import SIGNALS, FrozenRequest
from monitel_otlp.spool import segment_writer
from monitel_otlp.spool.spool import Spool, SpoolError

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
    """Requests are read in order, signal by signal, with their weights and counts."""
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
def test_spool_is_a_queue_across_restarts(steps: list[tuple[str, FrozenRequest]]) -> None:
    """Each request is read once, in order, by this process or the next one; items add up."""
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
    """The mode of files is 0600, and that of folders 0700."""
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
def test_rejected_requests_are_kept_with_the_reason_and_taken_back(given: list[tuple[FrozenRequest, str]]) -> None:
    """No rejected request replaces another; taken back, they are unchanged and in the order of creation."""
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


def test_reason_may_be_any_text(tmp_path: Path) -> None:
    """A lone surrogate is escaped."""
    with closing(Spool(tmp_path / "spool")) as spool:
        path = spool.set_aside(make_request(1), "no \udcff")
    assert "no \\udcff" == path.with_suffix(".txt").read_text()


def test_segments_rotate_and_are_removed_after_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of files is limited, and disk space is freed while the spool is read."""
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


def test_size_limit_drops_the_oldest_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest segment of the largest signal is dropped; kept and dropped items add up to the written items."""
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


def test_request_larger_than_the_limit_is_dropped_and_counted(tmp_path: Path) -> None:
    """The items are counted with the reason ``spool_full``."""
    with closing(Spool(tmp_path / "spool", 500)) as spool:
        spool.append(make_request(1, body=b"x" * 1000, items=7))
        assert (None, {"spool_full": 7}) == (spool.oldest("metrics"), spool.take_lost("metrics"))


def test_signals_without_an_endpoint_are_not_limited(tmp_path: Path) -> None:
    """The limit applies only to signals with an endpoint."""
    with closing(Spool(tmp_path / "spool", 500, ["metrics"])) as spool:
        spool.append(make_request(1, "logs", body=b"x" * 1000))
        assert spool.oldest("logs") is not None


def test_request_that_is_being_sent_survives_its_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its removal removes no other request, and its items are counted once."""
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


def test_unacknowledged_request_of_a_dropped_segment_is_written_at_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the close the request is only in memory."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1)
    with closing(Spool(tmp_path / "spool", 500)) as spool:
        for number in range(3):
            spool.append(make_request(number, body=b"x" * 200))
            spool.oldest("metrics")
    assert [1, 2, 0] == [request.created_ns for request in load(tmp_path / "spool")]


def test_segments_of_version_0_1_are_read_from_their_position(tmp_path: Path) -> None:
    """Such segments have no magic number, and their position is a line of text."""
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


def test_other_files_in_the_folder_are_kept(tmp_path: Path) -> None:
    """Files with other names, and segments with unexpected names, are ignored."""
    folder = tmp_path / "spool"
    write(folder, make_request(1))
    others = [folder / "notes.txt", folder / "metrics-old.spool", folder / "metrics-1.spool", folder / "x-000001.raw"]
    for path in others:
        path.write_text("do not remove")
    with closing(Spool(folder)) as spool:
        spool.load()
        assert [make_request(1)] == drain(spool)
    assert set(others) == set(folder.iterdir())


def test_spool_is_locked_for_one_process(tmp_path: Path) -> None:
    """A second process receives an error, but can read the requests, and can load the folder after the close."""
    folder = tmp_path / "spool"
    with closing(Spool(folder)) as spool:
        spool.append(make_request(1))
        with pytest.raises(SpoolError, match=r"is in use by a running process or by another replay"):
            Spool(folder).load()
        assert [make_request(1)] == list(Spool(folder).peek())
    assert [make_request(1)] == load(folder)


def test_missing_folder_is_reported_and_not_created(tmp_path: Path) -> None:
    """A typo creates no folder."""
    with pytest.raises(SpoolError, match="there is no folder"):
        Spool(tmp_path / "typo").load()
    assert [] == list(Spool(tmp_path / "typo").peek())
    assert [] == list(tmp_path.iterdir())


def test_closed_spool_can_be_used_again(tmp_path: Path) -> None:
    """Its items are still counted, and reading continues at the same position."""
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
