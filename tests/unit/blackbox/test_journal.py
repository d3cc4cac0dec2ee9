"""Journals, their files, and the folders, slots and names beside them."""

import errno
import marshal
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitel.blackbox import disk, folder, journal
from monitel.blackbox.folder import Folder, FolderError, make_folder, open_root
from monitel.blackbox.journal import BOX, DISK, MEMORY, Account, Journal, Room
from monitel.blackbox.record import EVENT, JOURNALS, Item, Names, SlotFile, pack_file, read_names, read_slots

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no file system in memory")

SEGMENT = 1 << 12


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setattr(journal, "_SMALL", SEGMENT)
    monkeypatch.setattr(journal, "_LARGE", SEGMENT)
    made = open_root(Path("/dev/shm", f"monitel-test-{os.getpid()}-{os.urandom(4).hex()}"))
    yield made
    made.remove()
    made.close()


def new(box: Folder | None, **limits: int) -> Journal:
    made = Room(**limits)
    made.box = box
    return Journal("logs", made)


def add(to: Journal, *values: Any) -> None:
    for value in values:
        to.append(EVENT, marshal.dumps(value, 2))


def fill(to: Journal, count: int = 100, size: int = 100) -> None:
    add(to, *([each, "x" * size] for each in range(count)))


def stored(of: Journal) -> list[Item]:
    return [item for each in list(of.segments) for item in of.items(each)]


def adopted(box: Folder | None, spool: Folder | None = None, **known: Any) -> Journal:
    found = new(box)
    found.disk = spool
    disk.adopt(found, **{"settled": 0, **known})
    return found


def drain(of: Journal) -> list[Any]:
    values: list[Any] = []
    while items := of.read() or (disk.load(of) and of.read()):
        values += [item.value for item in items]
        of.settle(items[-1].last, delivered=sum(item.items for item in items))
    return values


# ---- append


@pytest.mark.parametrize("ahead", [False, True], ids=["made at once", "made ahead"])
def test_append_can_be_interrupted_at_every_call(box: Folder, ahead: bool) -> None:
    """A signal handler appends between any two calls, while a segment is written or made."""
    interruptions = 0
    for at in range(120):
        made, calls = new(box, box_bytes=1 << 30), Counter[str]()
        fill(made, 30)
        if ahead:
            made.prepare()

        def interrupt(*_: object) -> None:
            calls["all"] += 1  # noqa: B023
            if calls["all"] == at + 1:  # noqa: B023
                sys.setprofile(None)
                add(made, "handler", "handler")  # noqa: B023

        number, previous = made.next, sys.getprofile()
        while made.segments[-1].end + 130 < SEGMENT:
            fill(made, 1)
        sys.setprofile(interrupt)
        try:
            made.append(EVENT, marshal.dumps("x" * 150, 2))
        finally:
            sys.setprofile(previous)
        add(made, "after")
        found = stored(made)
        assert list(range(1, made.next)) == [item.number for item in found]
        assert 2 * (calls["all"] > at) == Counter(str(item.value) for item in found)["handler"]
        assert number < made.next
        interruptions += calls["all"] > at
        made.settle(made.next)
        made.truncate(disk=False)
    assert interruptions > 20


def test_handlers_faster_than_a_file_record_in_anonymous_memory(box: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that interrupts the making of a segment makes no file, so it never interrupts itself without end."""
    made = new(box)

    def interrupted(*arguments: Any) -> None:
        add(made, "handler")
        plain(*arguments)

    plain = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", interrupted)
    add(made, "outer")
    assert ["handler", "outer"] == [item.value for item in stored(made)]
    assert {MEMORY} == {each.where for each in made.segments}


# ---- room


def test_fork_in_the_making_of_a_segment_leaves_its_file_alone(box: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child, in which the journal is abandoned before its file is used, writes nothing into it."""
    made = new(box)

    def fork_in_between() -> float:
        if sys._getframe(1).f_code.co_name == "_roll" and made.room.box is not None:
            made.abandon()
        return time.monotonic()

    monkeypatch.setattr(journal, "time", SimpleNamespace(monotonic=fork_in_between))
    add(made, "child")
    assert {0} == {*box.read("logs-1.log")}


def test_segment_without_space_is_refused_instead_of_mapped(box: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without space nothing is mapped (that would end the process), and the box is not tried again for a second."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    made = new(box)
    monkeypatch.setattr(os, "posix_fallocate", full)
    add(made, "a")
    assert ("memory", 0, []) == (made.segments[0].where, made.room.used, box.names())
    assert not made.room.claim(1)
    made.room._not_before_s = 0.0
    assert made.room.claim(1)


def test_refusal_for_size_is_not_a_failure(box: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 1 % of the free space is used; a smaller segment is tried at once."""
    space = os.statvfs_result((4096, 4096, 1000, 1000, 100 * SEGMENT // 4096 + 1, 0, 0, 0, 0, 255))
    monkeypatch.setattr(Folder, "space", lambda _: space)
    made = Room()
    made.box = box
    assert not made.claim(4 * SEGMENT)
    assert made.claim(SEGMENT)
    assert made.is_short
    assert "" == made.problem


# ---- limits


def test_small_box_has_room_for_all_journals(box: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of them, with the shared memory of a container in small: spare segments do not take it all."""
    monkeypatch.setattr(journal, "_LARGE", 4 * SEGMENT)
    monkeypatch.setattr(Folder, "space", lambda _: os.statvfs_result((SEGMENT, SEGMENT, 1000, 1000, 1000, *[0] * 5)))
    room = Room()
    room.box = box
    for name in JOURNALS:
        made = Journal(name, room)
        add(made, "a")
        made.prepare()
    assert (0, "") == (room.memory, room.problem)


def test_segment_that_the_snapshot_refers_to_is_not_dropped(box: Folder) -> None:
    made = new(box)
    fill(made)
    made.keep_from = 1
    assert not made.drop_oldest("queue_full")
    made.settle(made.segments[0].next - 1)
    made.truncate(disk=False)
    assert 1 == made.segments[0].first


def test_hole_at_the_very_end_is_passed(box: Folder) -> None:
    """Dropped items after which nothing was recorded do not stop the journal."""
    made = new(box)
    add(made, "a", "b")
    assert ["a", "b"] == [item.value for item in made.read()]
    made.give_back()
    disk.seal(made)
    assert made.drop_oldest("queue_full")
    assert [(1, 3)] == made.holes()
    assert [] == made.read()
    assert (2, []) == (made.settled, made.holes())
    assert made.account() == Account(2, dropped={"queue_full": 2})


def test_journal_for_nobody_keeps_the_end_and_counts_nothing(box: Folder) -> None:
    """The last 256 KiB stay, in memory."""
    made = new(box)
    made.reader = "nobody"
    fill(made, 4000)
    assert 1 << 17 < sum(each.size for each in made.segments) <= (1 << 18) + SEGMENT
    disk.move(made, lambda: box)
    assert (Account(), []) == (made.account(), [each for each in made.segments if each.where == DISK])


# ---- disk


def test_items_in_anonymous_memory_are_sent_from_the_disk(box: Folder, tmp_path: Path) -> None:
    """Such items are sent once a file has them; if the disk fails, those before the snapshot are sent after 5 s."""
    made = new(box, box_bytes=0)
    add(made, "a", "b")
    made.keep_from = 2
    assert [] == made.read()
    made.segments[0].asked_s -= 6.0
    assert ["a"] == [item.value for item in made.read()]
    made.give_back()
    disk.move(made, lambda: Folder.open(tmp_path))
    assert ["a", "b"] == drain(made)


def test_segment_without_a_sender_stays_for_a_second(box: Folder, tmp_path: Path) -> None:
    """An item of a journal that goes to the disk is not a separate file, however often that is moved."""
    mine, spool = new(box), Folder.open(tmp_path)
    mine.reader = "disk"
    for number in range(20):
        add(mine, number)
        disk.move(mine, lambda: spool, 60.0)
    assert [BOX] == [each.where for each in mine.segments]
    mine.segments[0].begun_s -= 1.0
    disk.move(mine, lambda: spool, 60.0)
    assert ([DISK], [*range(20)]) == ([each.where for each in mine.segments], [each.value for each in stored(mine)])


def test_files_in_two_places_are_one_journal(box: Folder, tmp_path: Path) -> None:
    """Items that are in the box and on the disk, or torn in one of them, count once."""
    whole = pack_file(1, [(EVENT, each, 1) for each in range(10)])
    tmp_path.joinpath("logs-000000000000001.log").write_bytes(whole[:-20])
    box.write_new("logs-7.log", whole)
    box.write_new("logs-8.log", pack_file(15, [(EVENT, 14, 1)]))
    box.write_new("logs-9.log", bytes(SEGMENT))  # made ahead
    found = adopted(box, Folder.open(tmp_path), settled=2, holes=[(11, 13)])
    assert [*range(2, 10), 14] == drain(found)
    assert found.account() == Account(11, 9, dropped={"unreadable": 2})


def test_file_that_cannot_be_read_now_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is not taken for an empty one, which would be removed."""

    def fail(*_: object) -> bytes:
        raise OSError(errno.EMFILE, "too many open files")

    made, spool = new(None), Folder.open(tmp_path)
    add(made, "a")
    disk.move(made, lambda: spool)
    assert [] == made.read()
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "read", fail)
        with pytest.raises(OSError, match="too many"):
            disk.load(made)
    assert ["a"] == drain(made)


# ---- slots, names, folders


def test_torn_slot_leaves_the_version_before(box: Folder) -> None:
    """If a byte of the newest version is wrong, the previous version is read; a larger version makes a new file."""
    slots = SlotFile(box, "state", mapped=True)
    for version in ("earlier", "first", "second"):
        slots.write(marshal.dumps(version, 2))
        assert version == read_slots(box, "state")[1]
    content = box.read("state")
    begin = content.index(marshal.dumps("second", 2))
    for at in range(begin - 8, begin + 11):  # length, checksum and value
        box.write("torn", content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :], 0)
        assert "first" == read_slots(box, "torn")[1]
    slots.write(marshal.dumps("x" * 9999, 2))
    assert "x" * 9999 == read_slots(box, "state")[1]


def test_definitions_are_numbered_once_and_copied(box: Folder, tmp_path: Path) -> None:
    """A key keeps its number; without room nothing raises, and a later copy has everything; a torn end is left out."""
    names = Names({"pid": 1})
    names.folder = box
    assert [1, 2, 1] == names.define([("a", "A"), ("b", "B"), ("a", "other")])
    assert [{"pid": 1}, "A", "B"] == read_names(box)[0]
    spool = Folder.open(tmp_path)
    names.copy(spool)
    names.folder = spool
    spool.close()
    assert [3] == names.define([("c", "C")])
    names.copy(box)
    assert [{"pid": 1}, "A", "B", "C"] == read_names(None, box)[0]
    box.write("names", b"\1", len(box.read("names")) - 1)
    assert [{"pid": 1}, "A", "B"] == read_names(box)[0]


def test_folder_that_another_process_has_removed_is_not_locked(tmp_path: Path) -> None:
    """Not even if it was opened before: of two collectors, one has delivered the record."""
    made = tmp_path / "folder"
    make_folder(made)
    opened = Folder.open(made)
    made.rmdir()
    assert (False, False) == (opened.is_locked(), opened.lock())
    opened.close()


def test_boxes_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder is refused, even if it is given: a disk that hangs would stop what records."""
    kind = "ext4"
    monkeypatch.setattr(folder, "_file_system_of", lambda _: kind)
    monkeypatch.setattr(folder, "_SHARED_MEMORY", tmp_path)
    with pytest.raises(FolderError, match="of the type ext4"):
        open_root()
    with pytest.raises(FolderError, match="of the type ext4: give a folder in memory"):
        open_root(tmp_path / "given")
    kind = "tmpfs"
    for given in (None, tmp_path / "given"):
        open_root(given).close()
