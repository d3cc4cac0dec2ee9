"""The black box within its process: where it is made, what it does without room, and its snapshot."""

import errno
import marshal
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace

import pytest
from tests.support.checks import Warned, wait_until
from tests.support.inbox import DEADLINE, Answer
from tests.support.pipelines import Start, delivered_by
from tests.support.receiver import Receiver
from tests.unit.console.recorded import definition, window

import monitel
from monitel.blackbox import folder, process
from monitel.blackbox.activity import Doing
from monitel.blackbox.box import Box
from monitel.blackbox.context_page import own_page
from monitel.blackbox.death import Death, End
from monitel.blackbox.discovery import find_boxes
from monitel.blackbox.folder import Folder, FolderError, open_root
from monitel.blackbox.process import this_process
from monitel.blackbox.reading import read_record, read_snapshot
from monitel.blackbox.record import EVENT, SlotFile, read_slots
from monitel.blackbox.recovery import claim, spool_root_of, sweep
from monitel.stats.window import encode

DEAD = "20260101T000000-1-1-000000"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")


def no_room(*_arguments: object, **_options: object) -> None:
    raise OSError(errno.ENOSPC, "no space")


@needs_root
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system in memory")
def test_default_folder_is_that_of_the_user_alone(own_boxes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no box if something unsafe is in its place, about which nothing is repaired."""

    def assert_refused(words: str) -> None:
        for given in (None, usual):  # a box has the usual one, too, as its path
            with pytest.raises(FolderError, match=words):
                open_root(given)

    own_boxes.mkdir(mode=0o700)
    own_boxes.chmod(0o1777)
    monkeypatch.setattr(folder, "_SHARED_MEMORY", own_boxes)
    usual, target = own_boxes / f"monitel-{os.geteuid()}", own_boxes / "target"
    open_root().close()
    assert 0o700 == usual.stat().st_mode & 0o7777
    usual.chmod(0o770)
    assert_refused("other users can write to")
    assert 0o770 == usual.stat().st_mode & 0o7777
    usual.chmod(0o700)
    os.chown(usual, 12345, 12345)
    assert_refused("belongs to another user .*MONITEL_BLACK_BOX_DIR")
    usual.rmdir()
    target.mkdir(mode=0o700)
    usual.symlink_to(target)
    assert_refused("is a symbolic link")
    assert [] == [*target.iterdir()]


def boxes(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []


@pytest.mark.parametrize("moved", [False, True], ids=["removed", "moved away"])
def test_box_that_a_cleaner_takes_away_loses_nothing(
    own_boxes: Path, start: Start, receiver: Receiver, moved: bool, warned: Warned
) -> None:
    """One warning, and the pipeline goes on; nothing arrives twice."""
    with delivered_by(start()):
        monitel.emit("before")
        (box,) = boxes(own_boxes)
        if moved:
            box.rename(own_boxes / "elsewhere")
        while box.exists():  # the removal fails if a file is made meanwhile
            rmtree(box, ignore_errors=True)
        monitel.emit("after")
        wait_until(lambda: warned("the box of"), "a warning")
    assert ["after", "before"] == sorted(receiver.record_names())
    assert 1 == len(warned("the box of"))


def test_lock_that_a_cleaner_removes_is_taken_again(
    own_boxes: Path, tmp_path: Path, start: Start, receiver: Receiver, warned: Warned
) -> None:
    """A lock is the oldest file of a long run. Box and spool folder stay in use, and are those of a running process."""
    receiver.rule(lambda _: Answer(401))
    pipeline = start(export_interval=0.05, spool_dir=tmp_path / "spool")

    def keep(number: int) -> None:
        monitel.emit("event", number=number)
        wait_until(lambda: pipeline.account()["logs"].on_disk == number, "an event in the spool")

    keep(1)
    paths = [*boxes(own_boxes), *boxes(tmp_path / "spool")]
    for path in paths:
        (path / "lock").unlink()
    keep(2)
    for path in paths:
        with closing(Folder.open(path)) as taken:
            wait_until(taken.is_locked, "the lock")
    receiver.forget_rules()
    assert pipeline.shutdown()
    assert [1, 2] == [record.attributes["number"] for record in receiver.records("event")]
    assert (2, []) == (len(paths), warned("cannot be used"))


def test_outage_without_room_fills_the_spool_and_not_the_box(
    own_boxes: Path, start: Start, receiver: Receiver, warned: Warned
) -> None:
    """One warning; the journals in the box stay below its size, large events go to disk, and all arrives once."""
    receiver.rule(lambda _: Answer(503))
    pipeline = start(export_interval=0.05, black_box={"size": 128 << 10})
    loss = monitel.Stat("loss", [monitel.COUNT], 3600.0)
    sent = 0

    def emit_more() -> bool:
        nonlocal sent
        for _ in range(40):  # more than the box takes, at once
            monitel.emit("event", number=sent, text="x" * 5000)
            sent += 1
        loss.add(1)
        pipeline.force_flush(0.05)
        sizes = {path.name: path.stat().st_size for path in own_boxes.glob("*/*.log")}
        assert sum(sizes.values()) <= 128 << 10, sizes
        return bool(warned("the box of", "it is full")) and pipeline.account()["logs"].on_disk > 100

    wait_until(emit_more, "a warning, and items in the spool")
    assert 1 == len(boxes(own_boxes))
    receiver.forget_rules()
    loss.flush()
    receiver.wait_until(lambda: len(receiver.records("event")) == sent)
    assert pipeline.force_flush(DEADLINE)
    assert [*range(sent)] == sorted(record.attributes["number"] for record in receiver.records("event"))
    assert sent / 40 == receiver.values("loss.count")[-1]
    assert 1 == len(warned("the box of", "it is full, with 131,072 bytes (MONITEL_BLACK_BOX_SIZE)"))


def test_position_without_a_box_is_on_disk(start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what has arrived would be sent again after a kill. The disk thread does not wait for its next round."""
    monkeypatch.setattr("monitel.blackbox.box.SNAPSHOT_S", 3600.0)
    receiver.rule(lambda _: Answer(503))
    with delivered_by(start(black_box=False)) as pipeline:
        for _ in range(30):
            monitel.emit("event", text="x" * 5000)
        wait_until(lambda: pipeline.account()["logs"].on_disk, "items in the spool")
        receiver.forget_rules()
    with closing(Folder.open(Path(pipeline.spool_dir))) as spool:
        wait_until(lambda: read_slots(spool, "position")[1]["logs"] == 30, "the position")


def test_full_box_without_room_for_definitions_is_read_without_their_series(
    box: Box, monkeypatch: pytest.MonkeyPatch, warned: Warned
) -> None:
    """A warning is logged, and the definitions are written when there is room."""
    plain, full = Folder.write, list[bool]()

    def write(self: Folder, name: str, content: bytes, offset: int, *, flags: int = 0) -> None:
        if full and name == "names":
            no_room()
        plain(self, name, content, offset, flags=flags)

    def series() -> list[str]:
        box.snapshot()
        assert box.folder is not None
        return [each.series.name for each in read_record(box.folder).open_windows]

    monkeypatch.setattr(Folder, "write", write)
    box.open_windows = lambda: [
        (box.names.define([(name, tuple(definition(name)))])[0], encode(window(1, 1, 1.0))) for name in names
    ]
    names = ["known"]
    assert names == series()
    names, full = ["known", "later"], [True]
    for _ in range(2):
        assert names[:1] == series()
    full = []
    assert names == series()
    assert 1 == len(warned("the box of", "no space"))


def opened(own_boxes: Path, spool: Path) -> Box:
    made = Box(spool, own_boxes, {}, mark="0123abcd")
    made.open()
    made.journals["logs"].append(EVENT, marshal.dumps("first", 2))
    return made


@pytest.fixture
def box(own_boxes: Path, tmp_path: Path) -> Iterator[Box]:
    yield (made := opened(own_boxes, tmp_path / "spool"))
    made.close(10.0)


def test_source_that_fails_is_left_out_of_the_snapshot(
    box: Box, own_boxes: Path, monkeypatch: pytest.MonkeyPatch, warned: Warned
) -> None:
    """Logged once; so is a part that is not a plain value, and a flush. The heartbeat goes on if a file stays, too."""
    box.sources |= {"good": lambda: 1, "bad": lambda: 1 / 0, "odd": object}
    box.flushes.append(lambda: int("flush"))
    monkeypatch.setattr("monitel.blackbox.journal.Journal.truncate", no_room)
    begun = own_page().heartbeat_ns
    box.snapshot()
    assert begun != own_page().heartbeat_ns
    box.snapshot()
    snapshot = read_snapshot(Folder.open(own_boxes / box.name))
    assert snapshot is not None
    assert {"good", "stack"} == {*snapshot.values}
    assert 3 == len(warned("black box"))


def test_end_in_a_box_without_room_for_a_snapshot_is_not_a_death(
    box: Box, own_boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it if the disk does not take what is left."""
    (tmp_path / "spool").touch()
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    assert not box.close(1.0)
    assert [own_boxes / box.name] == find_boxes(own_boxes).ended


def test_without_a_box_no_file_is_removed_before_the_totals_are_noted(tmp_path: Path) -> None:
    """Not even after a defect of the exporter: what was in the file would be missing in the totals."""
    box = Box(tmp_path, None, {})
    box.journals["logs"].append(EVENT, marshal.dumps("first", 2))
    box.tend_disk(0.0)
    (path,) = tmp_path.glob("*/logs-*.log")
    box.journals["logs"].settle(1, 1)
    for fold, stays in ((SimpleNamespace(plain=lambda: 1 / 0), True), (None, False)):
        box.journals["metrics"].fold = fold
        box.tend_disk(0.0)
        assert stays == path.exists()
    assert box.close(10.0)


def test_full_box_is_no_problem_of_the_disk(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settled files on the disk stay until the box has room for the totals, which are written before."""
    plain = Folder.open_file
    box.tend_disk(0.0)
    (path,) = (tmp_path / "spool").glob("*/logs-*.log")
    box.journals["metrics"].fold = SimpleNamespace(plain=lambda: (0, "x" * 9_000))
    box.journals["logs"].settle(1, 1)

    def open_file(self: Folder, name: str, flags: int) -> int:
        if flags & os.O_CREAT and self.path.parent.name != "spool":
            no_room()
        return plain(self, name, flags)

    monkeypatch.setattr(Folder, "open_file", open_file)
    box.tend_disk(0.0)
    assert ("", True, False) == (box.disk_problem, path.exists(), box.journals["logs"].is_on_disk)
    monkeypatch.undo()
    box.tend_disk(0.0)
    assert not path.exists()


def left(box: Box, own_boxes: Path) -> Path:
    """Return the record of a box as if its process had been killed."""
    box.abandon()
    return (own_boxes / box.name).rename(own_boxes / DEAD)


def test_record_of_another_version_is_left_alone(own_boxes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if its files have another content."""
    monkeypatch.setattr(process, "VERSION", 2)
    box = opened(own_boxes, own_boxes)
    assert box.folder is not None
    SlotFile(box.folder, "totals").write(marshal.dumps("other", 2))
    path = left(box, own_boxes)
    with pytest.raises(FolderError, match=f"'{path}' has version 2 of the record, and this monitel reads 1"):
        claim(path)
    assert path.exists()


def test_box_that_was_set_aside_is_a_problem_with_its_remedy(tmp_path: Path) -> None:
    (path := tmp_path / "20260101T000000-1-1-000000.corrupt").mkdir(0o700)
    (problem,) = find_boxes(tmp_path).problems
    assert problem.startswith(f"'{path}' is damaged")
    assert problem.endswith("remove it")


def test_files_of_a_killed_collector_are_not_read(box: Box, own_boxes: Path) -> None:
    """Last records that were not committed are replaced; those of a committed end are never appended again."""
    path = left(box, own_boxes)
    (path / "metrics-000000000000001.end").write_bytes(b"half")
    dead = claim(path)
    assert (["first"], []) == tuple([each.value for each in dead.items(name)] for name in ("logs", "metrics"))
    dead.end({"logs": [(EVENT, "died")]})
    dead.close()
    dead = claim(path)
    assert dead.has_ended
    assert (["first", "died"], []) == tuple([each.value for each in dead.items(name)] for name in ("logs", "metrics"))
    dead.close()


def test_rest_of_a_record_that_was_being_removed_is_swept(box: Box, own_boxes: Path, tmp_path: Path) -> None:
    """A hidden folder, and a spool folder whose journals are delivered; neither a record nor the box of a process."""
    path = left(opened(own_boxes, tmp_path / "spool"), own_boxes)
    spools = [tmp_path / "spool" / f"{DEAD[:-1]}{digit}" for digit in "abc"]
    for spool in spools:
        spool.mkdir(mode=0o700, parents=True)
        for file in ("names", "position"):
            (spool / file).write_bytes((path / file).read_bytes())
    (spools[0] / "logs-000000000000001.log").touch()
    path.rename(own_boxes / f".{DEAD}")
    sweep(own_boxes, tmp_path / "spool")
    assert [box.name] == [each.name for each in own_boxes.iterdir()]
    assert spools[:1] == [*(tmp_path / "spool").iterdir()]


def test_folder_with_new_journals_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another collector may do so between a look at the entries and the lock."""
    spool, lock = tmp_path / DEAD, Folder.lock
    spool.mkdir(mode=0o700)

    def lock_later(folder: Folder) -> bool:
        (spool / "logs-000000000000001.log").touch()
        return lock(folder)

    (spool / "names").touch()
    monkeypatch.setattr(Folder, "lock", lock_later)
    sweep(tmp_path)
    assert {"lock", "logs-000000000000001.log", "names"} == {each.name for each in spool.iterdir()}


def test_folder_that_is_about_to_be_locked_is_not_swept(tmp_path: Path) -> None:
    """An empty one, which another collector is making, unless it is more than a minute old."""
    making = tmp_path / f".{DEAD}"
    making.mkdir(mode=0o700)
    sweep(tmp_path)
    assert making.is_dir()
    os.utime(making, (0, 0))
    sweep(tmp_path)
    assert not making.exists()


def test_spool_of_the_collector_is_used_if_that_of_the_process_cannot_exist(tmp_path: Path) -> None:
    """The folders of a container are not made outside of it; a spool that nothing was moved to yet is."""
    for path, expected in {"gone/spool": tmp_path, "spool": tmp_path / "spool"}.items():
        assert expected == spool_root_of([{"spool": str(tmp_path / path)}], tmp_path)


@pytest.mark.parametrize(
    ("number", "step", "severity"),
    [(signal.SIGTERM, None, 9), (signal.SIGTERM, 7, 21), (signal.SIGKILL, None, 21), (None, None, 21)],
)
def test_helper_that_sigterm_has_ended_is_not_a_fault(number: int | None, step: int | None, severity: int) -> None:
    """As a Pool ends its workers. A process with a step, and another or an unknown end, is one."""
    death = Death(this_process(), End(signal=number), (1, "heartbeat"), Doing(step=step), "", None)
    assert severity == death.event().severity
