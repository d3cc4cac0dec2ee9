"""The spool: what is put on disk comes back, whatever happened to the process or to the file."""

from __future__ import annotations

import stat
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel_otlp.spool import segments as segments_module
from monitel_otlp.request import SIGNALS, FrozenRequest
from monitel_otlp.spool.spool import Spool, SpoolError


def frozen(number: int, signal: str = "metrics", body: bytes | None = None, items: int = 1) -> FrozenRequest:
    """A request that can be told from others."""
    return FrozenRequest(signal, body if body is not None else b"body %d" % number, items, number)


def written(folder: Path, *requests: FrozenRequest, limit_bytes: int | None = None) -> None:
    """Write requests as a process does that then ends."""
    with closing(Spool(folder, limit_bytes)) as spool:
        for request in requests:
            spool.append(request)


def loaded(folder: Path) -> list[FrozenRequest]:
    """What another process finds."""
    with closing(Spool(folder)) as spool:
        spool.load()
        return list(spool.requests())


def drained(folder: Path) -> list[FrozenRequest]:
    """What another process reads and removes, of the metrics."""
    found = []
    with closing(Spool(folder)) as spool:
        spool.load()
        while (request := spool.oldest("metrics")) is not None:
            found.append(request)
            spool.remove_oldest("metrics")
    return found


def the_segment(folder: Path) -> Path:
    """The only segment."""
    (path,) = folder.glob("*.spool")
    return path


requests = st.builds(
    FrozenRequest,
    st.sampled_from(SIGNALS),
    st.binary(max_size=300),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
)


@given(st.lists(requests, max_size=12))
def test_what_goes_in_comes_out(given: list[FrozenRequest]) -> None:
    """Every field, in order, signal by signal; the size is that of the files."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "spool"
        written(folder, *given)
        expected = [request for signal in SIGNALS for request in given if request.signal == signal]
        if not given:
            assert not folder.exists()
            return
        assert expected == list(Spool(folder).peek())
        assert expected == loaded(folder)


@given(st.lists(st.tuples(st.sampled_from(["put", "read", "remove", "restart"]), requests), max_size=30))
def test_a_spool_is_a_queue_over_any_restarts(steps: list[tuple[str, FrozenRequest]]) -> None:
    """Requests put, read, removed and left to the next process come in order, each once."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments_module, "SEGMENT_BYTES", 500)
        folder = Path(root) / "spool"
        expected: dict[str, list[FrozenRequest]] = {signal: [] for signal in SIGNALS}
        spool = Spool(folder)
        for step, request in steps:
            waiting = expected[request.signal]
            if step == "put":
                spool.append(request)
                waiting.append(request)
            elif step == "restart":
                spool.close()
                spool = Spool(folder)
                if folder.exists():
                    spool.load()
            else:
                assert (waiting[0] if waiting else None) == spool.oldest(request.signal)
                if step == "remove" and waiting:
                    spool.remove_oldest(request.signal)
                    del waiting[0]
        assert [request for signal in SIGNALS for request in expected[signal]] == list(spool.requests())
        spool.close()
        assert any(expected.values()) == folder.exists()


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    """Files are 0600 and the folder is 0700."""
    with closing(Spool(tmp_path / "runs" / "spool")) as spool:
        spool.append(frozen(1))
        spool.set_aside(frozen(2, body=b""), "HTTP 400")
        spool.oldest("metrics")
        spool.append(frozen(3))
        spool.remove_oldest("metrics")
        modes = {
            path.name if path.is_dir() else path.suffix: stat.S_IMODE(path.stat().st_mode)
            for path in [spool.folder, *spool.folder.rglob("*")]
        }
        expected = {".spool": 0o600, ".position": 0o600, "": 0o600, ".binpb": 0o600, ".txt": 0o600}
        assert expected | {"spool": 0o700, "rejected": 0o700} == modes
        spool.close()


def test_what_is_set_aside_never_takes_the_place_of_another(tmp_path: Path) -> None:
    """Parts of one request were all created at once, and a replay may set aside more of them."""
    for body in (b"one part", b"another"):
        with closing(Spool(tmp_path)) as spool:
            spool.set_aside(frozen(1, body=body), "HTTP 400")
    assert {b"one part", b"another"} == {path.read_bytes() for path in tmp_path.glob("rejected/*.binpb")}


def test_segments_rotate_and_go_when_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file grows for ever, and the disk gets its space back while the spool is read."""
    monkeypatch.setattr(segments_module, "SEGMENT_BYTES", 1000)
    with closing(Spool(tmp_path / "spool")) as spool:
        for number in range(20):
            spool.append(frozen(number, body=b"x" * 200))
        segments = sorted((tmp_path / "spool").glob("metrics-*.spool"))
        assert 5 == len(segments)
        assert all(path.stat().st_size <= 1000 for path in segments)
        for number in range(20):
            assert frozen(number, body=b"x" * 200) == spool.oldest("metrics")
            spool.remove_oldest("metrics")
        assert (0, []) == (spool.size_bytes, list((tmp_path / "spool").glob("*.spool")))
    assert not (tmp_path / "spool").exists()


def test_the_oldest_give_way_to_the_size_limit_and_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the signal that takes most; what is left and what was dropped are together what was put."""
    monkeypatch.setattr(segments_module, "SEGMENT_BYTES", 1000)
    with closing(Spool(tmp_path / "spool", 5000)) as spool:
        spool.append(frozen(0, "logs", items=5))
        for number in range(50):
            spool.append(frozen(number, body=b"x" * 200, items=10))
            assert spool.size_bytes <= 5000
        left = [request.created_ns for request in spool.requests() if request.signal == "metrics"]
        assert list(range(50 - len(left), 50)) == left
        assert 10 < len(left) < 25
        assert (50 - len(left)) * 10 == spool.take_dropped("metrics")
        assert (0, 0) == (spool.take_dropped("metrics"), spool.take_dropped("logs"))
        assert [0] == [request.created_ns for request in spool.requests() if request.signal == "logs"]


def test_a_torn_record_costs_itself_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cut at every byte of the last record: those before it are there, and it is told."""
    folder = tmp_path / "spool"
    written(folder, frozen(1), frozen(2))
    first = len(the_segment(folder).read_bytes()) // 2
    whole = the_segment(folder).read_bytes()
    for end in range(first, len(whole)):
        the_segment(folder).write_bytes(whole[:end])
        caplog.clear()
        assert [frozen(1)] == loaded(folder)
        damaged = [record.getMessage() for record in caplog.records]
        assert (0 if end == first else 1) == len(damaged)
        assert all(f"damaged from byte {first} on" in each for each in damaged)


def test_a_damaged_byte_never_gives_a_wrong_request(tmp_path: Path) -> None:
    """Each byte of the last record flipped: it is left out, those before it are there."""
    folder = tmp_path / "spool"
    written(folder, frozen(1), frozen(2))
    whole = the_segment(folder).read_bytes()
    for position in range(len(whole) // 2, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        the_segment(folder).write_bytes(damaged)
        assert [frozen(1)] == loaded(folder)


def test_what_comes_after_a_damaged_segment_is_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage ends one file, not the replay."""
    monkeypatch.setattr(segments_module, "SEGMENT_BYTES", 1)  # a segment for each request
    folder = tmp_path / "spool"
    written(folder, frozen(1), frozen(2), frozen(3))
    (folder / "metrics-000002.spool").write_bytes(b"\xff" * 100)
    assert [frozen(1), frozen(3)] == drained(folder)


@pytest.mark.parametrize("position", [b"", b"garbage", b"1", b"7 12", b"\xff\xfe 3"])
def test_a_position_that_makes_no_sense_costs_nothing(tmp_path: Path, position: bytes) -> None:
    """Then the segment is read from its beginning."""
    folder = tmp_path / "spool"
    written(folder, frozen(1), frozen(2))
    (folder / "metrics.position").write_bytes(position)
    assert [frozen(1), frozen(2)] == loaded(folder)


def test_a_position_beyond_its_segment_costs_nothing(tmp_path: Path) -> None:
    """A file that was cut, or restored from a backup, is not thrown away unread."""
    folder = tmp_path / "spool"
    written(folder, frozen(1), frozen(2))
    (folder / "metrics.position").write_text("1 100000")
    assert [frozen(1), frozen(2)] == drained(folder)


def test_other_files_in_the_folder_do_not_matter(tmp_path: Path) -> None:
    """Somebody's notes beside the segments, or a segment by a strange name."""
    folder = tmp_path / "spool"
    written(folder, frozen(1))
    (folder / "notes.txt").write_text("do not delete")
    (folder / "metrics-old.spool").write_text("?")
    assert [frozen(1)] == loaded(folder)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """The second one is told what the matter is; it can look all the same, and have it afterwards."""
    folder = tmp_path / "spool"
    with closing(Spool(folder)) as spool:
        spool.append(frozen(1))
        with pytest.raises(SpoolError, match=r"is in use: its process is running, or another replay is"):
            Spool(folder).load()
        assert [frozen(1)] == list(Spool(folder).peek())
    assert [frozen(1)] == loaded(folder)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    """And not made."""
    with pytest.raises(SpoolError, match="there is no folder"):
        Spool(tmp_path / "typo").load()
    assert [] == list(tmp_path.iterdir())


def test_a_folder_that_holds_requests_is_not_overwritten(tmp_path: Path) -> None:
    """Whoever begins anew in it, without loading, keeps what is there and reads his own in order."""
    folder = tmp_path / "spool"
    written(folder, frozen(1, body=b"x" * 50), frozen(2))
    with closing(Spool(folder)) as spool:
        spool.append(frozen(3))
        while spool.oldest("metrics") not in {None, frozen(3)}:
            spool.remove_oldest("metrics")
        assert frozen(3) == spool.oldest("metrics")
    assert frozen(3) in loaded(folder)
