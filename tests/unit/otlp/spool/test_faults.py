"""Full disks and files that disappear: reading never raises, and losses are counted."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spools import drain, load, make_request, names, write

from monitel_otlp.messages.request import SIGNALS, FrozenRequest
from monitel_otlp.spool import segment_writer
from monitel_otlp.spool.folder import Folder
from monitel_otlp.spool.raw_segment import encode_blocks
from monitel_otlp.spool.spool import Spool, SpoolError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Numbers:
    """A decoder of numbers."""

    def __init__(self, header: Any) -> None:
        pass

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        """Return one request."""
        return [FrozenRequest("logs", repr(items).encode(), len(items), 0)]


DECODERS = {"numbers": Numbers}


class SmallDisk:
    """A disk with a limited number of free bytes, which grows when files are truncated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 1 << 40
        self.error = errno.ENOSPC
        self._write, self._truncate = os.pwrite, os.ftruncate
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "ftruncate", self.ftruncate)

    def pwrite(self, descriptor: int, content: Any, offset: int) -> int:
        """Write as much as there is space for, or raise."""
        new = max(0, offset + len(content) - os.fstat(descriptor).st_size)
        if not new:
            return self._write(descriptor, content, offset)
        possible = len(content) - new + min(new, self.free)
        if possible <= 0 or (self.error != errno.ENOSPC and possible < len(content)):
            raise OSError(self.error, os.strerror(self.error))
        self.free -= min(new, self.free)
        return self._write(descriptor, content[:possible], offset)

    def ftruncate(self, descriptor: int, size: int) -> None:
        """Truncate a file, or raise if the disk is read-only."""
        if self.error == errno.EROFS:
            raise OSError(self.error, os.strerror(self.error))
        self.free += os.fstat(descriptor).st_size - size
        self._truncate(descriptor, size)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SmallDisk:
    """A disk with enough space, unless the test limits it."""
    return SmallDisk(monkeypatch)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("room", [0, 5, 20, 60])
def test_failed_write_to_a_full_disk_leaves_nothing(tmp_path: Path, disk: SmallDisk, error: int, room: int) -> None:
    """Each attempt raises OSError and creates no file; an attempt succeeds as soon as there is space."""
    with closing(Spool(tmp_path / "spool")) as spool:
        spool.append(make_request(1, items=3))
        disk.free, disk.error = room, error
        for _ in range(5):
            with pytest.raises(OSError, match=re.escape(os.strerror(error))):
                spool.append(make_request(2, body=b"x" * 100))
            with pytest.raises(OSError, match=re.escape(os.strerror(error))):
                spool.append(make_request(2, "logs", body=b"x" * 100))
        assert 3 == spool.items("metrics")
        assert ["lock", "metrics-000001.spool"] == names(spool.folder)
        assert [make_request(1, items=3)] == list(spool.requests())
        disk.free = 1 << 40
        spool.append(make_request(3))
        assert [make_request(1, items=3), make_request(3)] == drain(spool)
        assert {} == spool.take_lost("metrics")
    assert not spool.folder.exists()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_full_disk_has_no_folder(tmp_path: Path, disk: SmallDisk, error: int) -> None:
    """The folder and its parents are created as soon as there is space."""
    disk.free, disk.error = 0, error
    spool = Spool(tmp_path / "runs" / "spool")
    for _ in range(3):
        with pytest.raises(OSError, match=re.escape(os.strerror(error))):
            spool.append(make_request(1))
        with pytest.raises(OSError, match=re.escape(os.strerror(error))):
            spool.set_aside(make_request(1), "HTTP 400")
        with pytest.raises(OSError, match=re.escape(os.strerror(error))):
            spool.append_raw("logs", ("numbers",), encode_blocks([1]))
        assert [] == names(tmp_path)
    disk.free = 1 << 40
    spool.append(make_request(1))
    spool.close()
    assert [make_request(1)] == load(spool.folder)


def test_write_raises_if_the_folder_cannot_be_created(tmp_path: Path) -> None:
    """A file may have the name of the folder or of its parent."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "spool"):
        with pytest.raises((OSError, SpoolError), match=r"not a folder|Not a directory"):
            Spool(folder).append(make_request(1))
    assert ["file"] == names(tmp_path)


@given(st.integers(0, 4000), st.integers(1, 60))
def test_complete_blocks_are_kept_if_the_disk_fills(free: int, per_block: int) -> None:
    """Completely written blocks are kept and counted; nothing remains of the others."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as monkeypatch:
        disk = SmallDisk(monkeypatch)
        monkeypatch.setattr(segment_writer, "_WRITE_BYTES", 1000)
        items = [list(range(begin, begin + per_block)) for begin in range(0, 600, per_block)]
        blocks = (block for part in items for block in encode_blocks(part))
        with closing(Spool(Path(root) / "spool", decoders=DECODERS)) as spool:
            spool.append(make_request(1, "logs"))
            disk.free = free
            try:
                written = spool.append_raw("logs", ("numbers",), blocks)
            except OSError:
                written = 0
            assert 0 == written % per_block
            assert written >= min(600 // per_block, (free - 60) // (per_block * 5 + 30)) * per_block
            assert written + 1 == spool.items("logs")
            found = drain(spool, "logs")
            assert written + 1 == sum(request.items for request in found)
            assert ({}, 0) == (spool.take_lost("logs"), spool.problems)
        assert not spool.folder.exists()


def test_written_blocks_are_kept_if_encoding_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception is raised to the caller, and items on disk are counted."""
    monkeypatch.setattr(segment_writer, "_WRITE_BYTES", 1)

    def blocks() -> Iterator[tuple[bytes, int]]:
        yield from encode_blocks([1, 2, 3])
        raise KeyboardInterrupt

    with closing(Spool(tmp_path / "spool", decoders=DECODERS)) as spool:
        with pytest.raises(KeyboardInterrupt):
            spool.append_raw("logs", ("numbers",), blocks())
        assert 3 == spool.items("logs") == sum(request.items for request in drain(spool, "logs"))


def three_segments(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Write requests with 1, 2 and 3 items, and four raw items, each to a separate segment."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1)
    for number in (1, 2, 3):
        spool.append(make_request(number, "logs", items=number))
    spool.append_raw("logs", ("numbers",), encode_blocks([1, 2, 3, 4]))
    return sorted(path for path in spool.folder.iterdir() if path.name != "lock")


@pytest.mark.parametrize("gone", [[0], [1], [3], [0, 1], [2, 3], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("seen", [False, True], ids=["before it is read", "under way"])
def test_removed_segment_is_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, gone: list[int], seen: bool
) -> None:
    """The other segments are read in order, and one line is logged."""
    with closing(Spool(tmp_path / "spool", decoders=DECODERS)) as spool:
        paths = three_segments(spool, monkeypatch)
        first = spool.oldest("logs") if seen else None
        for each in gone:
            paths[each].unlink()
        assert spool.size_bytes > 0
        left = [items for number, items in enumerate((1, 2, 3, 4)) if number not in gone or (first and not number)]
        assert [items for number, items in enumerate((1, 2, 3, 4)) if number not in gone] == [
            request.items for request in spool.requests()
        ]
        assert left == [request.items for request in drain(spool, "logs")]
        assert 10 - sum(left) == spool.take_lost("logs").get("disk", 0)
        assert (0, 0) == (spool.items("logs"), spool.size_bytes)
        spool.append(make_request(9, "logs"))
        assert [make_request(9, "logs")] == drain(spool, "logs")
    assert 1 == len(caplog.records)
    assert not spool.folder.exists()


def test_removed_segments_are_counted_at_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a backend segments are not read again before the close."""
    with closing(Spool(tmp_path / "spool", decoders=DECODERS)) as spool:
        paths = three_segments(spool, monkeypatch)
        paths[0].unlink()
        paths[2].unlink()
    assert ({"disk": 4}, 6) == (spool.take_lost("logs"), spool.items("logs"))


@pytest.mark.parametrize("seen", [False, True], ids=["unread", "read"])
def test_removed_folder_is_created_again(tmp_path: Path, *, seen: bool) -> None:
    """Its items are counted as lost, except for a request that is being sent; later requests are on disk."""
    with closing(Spool(tmp_path / "runs" / "spool")) as spool:
        for signal_ in SIGNALS:
            spool.append(make_request(1, signal_, items=2))
            spool.append(make_request(2, signal_, items=3))
        if seen:
            assert make_request(1, "logs", items=2) == spool.oldest("logs")
        shutil.rmtree(tmp_path / "runs")
        spool.append(make_request(3, "logs"))
        spool.append(make_request(3, "traces"))
        assert {"disk": 3 if seen else 5} == spool.take_lost("logs")
        if seen:
            assert make_request(1, "logs", items=2) == spool.oldest("logs")
            spool.remove_oldest("logs")
        assert [make_request(3, "logs")] == drain(spool, "logs")
    assert [make_request(3, "traces")] == load(spool.folder)


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOENT, errno.ENODEV, errno.ETIMEDOUT])
@pytest.mark.parametrize("call", ["open", "pread"])
@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_unreadable_segment_is_skipped_and_counted(
    *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, call: str, bad: int
) -> None:
    """The segment stays, because a replay can read it if the disk recovers."""
    with closing(Spool(tmp_path / "spool", decoders=DECODERS)) as spool:
        path = three_segments(spool, monkeypatch)[bad]
        inode = path.stat().st_ino
        with monkeypatch.context() as broken:
            if call == "open":
                real_open = Folder.open_file

                def open_file(self: Folder, name: str, flags: int) -> int:
                    if name == path.name:
                        raise OSError(error, os.strerror(error), name)
                    return real_open(self, name, flags)

                broken.setattr(Folder, "open_file", open_file)
            else:
                real_pread = os.pread

                def pread(descriptor: int, length: int, offset: int) -> bytes:
                    if os.fstat(descriptor).st_ino == inode:
                        raise OSError(error, os.strerror(error))
                    return real_pread(descriptor, length, offset)

                broken.setattr(os, "pread", pread)
            assert 3 == len(list(spool.requests()))
            found = drain(spool, "logs")
        assert [items for number, items in enumerate((1, 2, 3, 4)) if number != bad] == [each.items for each in found]
        assert {"disk": bad + 1} == spool.take_lost("logs")
    with closing(Spool(tmp_path / "spool", decoders=DECODERS)) as spool:
        spool.load()
        assert [bad + 1] == [request.items for request in drain(spool, "logs")]
    assert not spool.folder.exists()


@pytest.mark.parametrize("cut", [0, 4, 8, 20, 44, 50])
def test_items_of_a_truncated_segment_are_counted(tmp_path: Path, cut: int) -> None:
    """Requests that are written after the truncation are found behind the gap."""
    with closing(Spool(tmp_path / "spool")) as spool:
        for number in range(4):
            spool.append(make_request(number, items=10))
        os.truncate(spool.folder / "metrics-000001.spool", cut)
        spool.append(make_request(5, items=1))
        found = drain(spool)
        assert 41 == sum(request.items for request in found) + spool.take_lost("metrics")["disk"]
        assert 0 == spool.items("metrics")


def test_requests_are_removed_if_the_position_cannot_be_written(tmp_path: Path, disk: SmallDisk) -> None:
    """On a full disk requests are sent again only after a crash."""
    with closing(Spool(tmp_path / "spool")) as spool:
        for number in range(4):
            spool.append(make_request(number))
        disk.free = 0
        assert [make_request(number) for number in range(4)] == drain(spool)
    assert not spool.folder.exists()


def test_read_only_spool_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spool cannot be locked and loaded, but its requests can be read."""
    write(tmp_path / "spool", make_request(1))
    real = os.open

    def read_only(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(OSError, match=r"Read-only file system.*lock"):
        Spool(tmp_path / "spool").load()
    assert [make_request(1)] == list(Spool(tmp_path / "spool").peek())


def test_warning_about_the_disk_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The warning has the folder and the reason."""
    spool = Spool(tmp_path / "spool")
    for _ in range(3):
        spool.warn_once(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    (record,) = caplog.records
    assert f"the spool in {tmp_path / 'spool'} cannot be written" in record.getMessage()
