"""Security of a spool in a shared folder: no link is followed, and files of other users are not touched."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.support.spools import drain, load, make_request, the_segment, write

from monitel_otlp.__main__ import main
from monitel_otlp.spool import segment_writer
from monitel_otlp.spool.folder import Folder
from monitel_otlp.spool.spool import Spool, SpoolError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.receiver import Receiver

SECRET = b"root:x:0:0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A spool with two metrics requests, a position and a rejected request."""
    folder = tmp_path / "spool"
    with closing(Spool(folder)) as spool:
        for number in range(3):
            spool.append(make_request(number))
        spool.remove_oldest("metrics")
        spool.set_aside(make_request(7), "HTTP 400")
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that must not change."""
    path = tmp_path / "victim"
    path.write_bytes(SECRET)
    return path


def as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as if the files of this test belonged to another user."""
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    monkeypatch.setattr(Folder, "_probe", lambda self: os.stat_result((0o100600, 0, 0, 1, other, 0, 0, 0, 0, 0)))


def work(folder: Path) -> None:
    """Do everything that a replay does with a folder."""
    for action in (Spool.load, Spool.take_back, lambda spool: spool.append(make_request(8))):
        spool = Spool(folder)
        try:
            action(spool)
            list(spool.requests())
            drain(spool)
            spool.append(make_request(9))
            spool.set_aside(make_request(10), "HTTP 400")
            list(Spool(folder).peek())
        except (SpoolError, OSError):
            pass
        finally:
            spool.close()


NAMES = [
    "lock",
    "metrics.position",
    "metrics-000001.spool",
    "metrics-000002.spool",
    "metrics-000002.raw",
    "metrics-000003.spool",
    "logs-000001.raw",
    "logs.position",
    "metrics.fresh",
    "rejected",
    "rejected/metrics-7-1-1.binpb",
    "rejected/metrics-7-1-1.txt",
    "rejected/metrics-7-1-1.items",
    "rejected/metrics-10-1-1.binpb",
    "rejected/metrics-10-1-1.txt",
]


def plant(path: Path, make: Callable[[Path], object]) -> None:
    """Replace a file or folder by what ``make`` creates at its path."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.parent.parent / "away")
    path.unlink(missing_ok=True)
    make(path)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["symlink", "hard link"])
def test_planted_link_is_not_followed(folder: Path, victim: Path, name: str, kind: str) -> None:
    """The target of the link keeps its content, mode, owner and time of modification."""
    link = folder / name
    if kind == "symlink":
        plant(link, lambda path: path.symlink_to(victim))
    else:
        plant(link, lambda path: path.hardlink_to(victim))
    before = victim.stat()
    work(folder)
    after = victim.stat()
    assert SECRET == victim.read_bytes()
    assert (before.st_ino, before.st_mode, before.st_uid, before.st_mtime_ns) == (
        after.st_ino,
        after.st_mode,
        after.st_uid,
        after.st_mtime_ns,
    )


@pytest.mark.parametrize("name", NAMES)
def test_dangling_link_creates_no_file(folder: Path, tmp_path: Path, name: str) -> None:
    """The target of the link is not created."""
    plant(folder / name, lambda path: path.symlink_to(tmp_path / "made"))
    work(folder)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", NAMES)
def test_link_to_a_folder_is_not_entered(folder: Path, tmp_path: Path, name: str) -> None:
    """No file in the folder is created or removed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "metrics-7-1-1.binpb").write_bytes(SECRET)
    plant(folder / name, lambda path: path.symlink_to(elsewhere))
    work(folder)
    assert ["metrics-7-1-1.binpb"] == os.listdir(elsewhere)  # noqa: PTH208


@pytest.mark.parametrize("name", NAMES)
def test_planted_pipe_does_not_block(folder: Path, name: str) -> None:
    """A FIFO is opened without waiting for its other end, and refused."""
    plant(folder / name, os.mkfifo)
    work(folder)
    assert (folder / name).is_fifo() or not (folder / name).exists()


def test_spool_folder_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    """The message says which folder to use instead."""
    link = tmp_path / "link"
    link.symlink_to(folder)
    for use in (Spool.load, Spool.take_back, lambda spool: list(spool.peek()), lambda s: s.append(make_request(1))):
        with pytest.raises(SpoolError, match=r"link' is a symbolic link: give the folder that it points to"):
            use(Spool(link))
    assert [make_request(1), make_request(2)] == load(folder)


def test_hard_link_of_a_segment_is_not_read(folder: Path, tmp_path: Path) -> None:
    """The file may belong to another folder, planted here to be sent to the endpoint of this one."""
    (tmp_path / "copy").hardlink_to(the_segment(folder))
    with closing(Spool(folder)) as spool:
        spool.load()
        assert ([], 1) == (drain(spool), spool.problems)
    assert the_segment(folder).exists()


def test_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``--foreign`` the folder is used."""
    as_another_user(monkeypatch)
    for use in (Spool.load, Spool.take_back, lambda spool: list(spool.peek()), lambda s: s.append(make_request(1))):
        with pytest.raises(SpoolError, match=r"belongs to another user \(id \d+\): run as that user, or use --foreign"):
            use(Spool(folder))
    with closing(Spool(folder, foreign=True)) as spool:
        spool.load()
        assert [make_request(1), make_request(2)] == drain(spool)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_real_folder_of_another_user_is_refused(folder: Path) -> None:
    """Root needs ``--foreign`` too, and then does not touch files of a third user."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, 12345, 12345)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(SpoolError, match="belongs to another user"):
        Spool(folder).load()
    assert before == sorted(path.name for path in folder.iterdir())
    os.chown(the_segment(folder), 54321, 54321)
    with closing(Spool(folder, foreign=True)) as spool:
        spool.load()
        assert ([], 1) == (drain(spool), spool.problems)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o720, 0o777, 0o1777])
def test_folder_that_others_can_write_to_is_refused(folder: Path, mode: int) -> None:
    """Any file in such a folder may be planted."""
    folder.chmod(mode)
    with pytest.raises(SpoolError, match=r"other users can write to .*chmod go-w"):
        Spool(folder).load()
    with closing(Spool(folder, foreign=True)) as spool:
        spool.load()
        assert [make_request(1), make_request(2)] == drain(spool)


@pytest.mark.parametrize("mode", [0o700, 0o500, 0o750, 0o755])
def test_folder_that_others_can_only_read_is_used(folder: Path, mode: int) -> None:
    """The owner may allow others to read."""
    folder.chmod(mode)
    assert 2 == len(list(Spool(folder).peek()))
    folder.chmod(0o700)


def test_file_system_with_mapped_owners_is_used(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS with root_squash shows every file as another user's; a file that is created there reveals the mapping."""
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    write(tmp_path / "squashed", make_request(1))
    assert [make_request(1)] == load(tmp_path / "squashed")
    assert [make_request(1), make_request(2)] == load(folder)


def test_new_folders_are_private(tmp_path: Path) -> None:
    """Even with a umask of 0 parents are not writable for others, and the spool is private."""
    before = os.umask(0)
    try:
        write(tmp_path / "runs" / "job" / "spool", make_request(1))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("runs", "runs/job", "runs/job/spool")]
    assert [0o755, 0o755, 0o700] == modes


def test_unsafe_existing_folder_is_not_written(tmp_path: Path) -> None:
    """Another user may have created the folder with the name that this process uses."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool").chmod(0o777)
    with pytest.raises(SpoolError, match="other users can write to"):
        Spool(tmp_path / "spool").append(make_request(1))
    assert [] == list((tmp_path / "spool").iterdir())


def test_planted_segment_is_not_overwritten(tmp_path: Path) -> None:
    """A new segment is always a new file."""
    with closing(Spool(tmp_path / "spool")) as spool:
        spool.append(make_request(1, "logs"))
        (spool.folder / "metrics-000001.spool").write_bytes(SECRET)
        spool.append(make_request(1))
        assert [make_request(1)] == drain(spool)
        assert SECRET == (spool.folder / "metrics-000001.spool").read_bytes()


def test_folder_replaced_by_a_link_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spool keeps a descriptor of its folder, and still writes segments, positions and rejected requests there."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    with closing(Spool(tmp_path / "spool")) as spool:
        for number in range(3):
            spool.append(make_request(number))
        spool.folder.rename(tmp_path / "moved")
        spool.folder.symlink_to(elsewhere)
        spool.append(make_request(3))
        spool.set_aside(make_request(4), "HTTP 400")
        assert 4 == len(drain(spool))
    assert [] == list(elsewhere.iterdir())
    assert (tmp_path / "moved" / "rejected").is_dir()


def test_replay_refuses_unsafe_files_and_continues(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str], victim: Path
) -> None:
    """A linked spool, one that others can write to, and a planted segment are reported; others are delivered."""
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    empty = make_request(1, "logs", b"")
    for name in ("good", "open", "planted"):
        write(runs / name, empty)
    write(elsewhere / "spool", empty)
    (runs / "open").chmod(0o777)
    plant(the_segment(runs / "planted"), lambda path: path.symlink_to(victim))
    (runs / "link").symlink_to(elsewhere / "spool")
    (runs / "latest").symlink_to(runs / "good")
    assert 1 == main(["replay", str(runs), "--endpoint", receiver.url])
    captured = capsys.readouterr()
    assert 1 == len(receiver.requests)
    summary = "delivered 1 item from 2 spools; unreadable segments or records: 1; folders that cannot be used: 2"
    assert summary == captured.out.splitlines()[-1]
    assert "link' is a symbolic link, which is not followed" in captured.err
    assert "other users can write to" in captured.err
    assert "latest" not in captured.err
    assert [empty] == load(elsewhere / "spool")
    assert SECRET == victim.read_bytes()
    assert 1 == main(["replay", str(runs), "--foreign", "--endpoint", receiver.url])
    assert 2 == len(receiver.requests)
    assert 1 == main(["replay", str(runs / "link"), "--endpoint", receiver.url])
