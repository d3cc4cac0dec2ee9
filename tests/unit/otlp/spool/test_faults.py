"""Full disks and files that disappear: reading never raises, and losses are counted."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.spools import drain, make_request

from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.spool import segment_writer
from monitel_otlp.spool.folder import Folder
from monitel_otlp.spool.raw_segment import encode_blocks
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path


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


def three_segments(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Write requests with 1, 2 and 3 items, and four raw items, each to a separate segment."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1)
    for number in (1, 2, 3):
        spool.append(make_request(number, "logs", items=number))
    spool.append_raw("logs", ("numbers",), encode_blocks([1, 2, 3, 4]))
    return sorted(path for path in spool.folder.iterdir() if path.name != "lock")


@pytest.mark.parametrize(("gone", "seen"), [([0, 1], True), ([0, 1], False), ([2, 3], True)], ids=str)
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


@pytest.mark.parametrize(
    ("call", "error", "bad"), [("open", errno.ESTALE, 0), ("pread", errno.EIO, 1), ("pread", errno.EIO, 3)]
)
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
