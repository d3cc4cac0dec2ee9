"""The files of a box: cuts, the journal of events, requests. A kill may leave any of them half written."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitel_otlp.black_box.cut import Cut, CutWriter, newest_cut
from monitel_otlp.black_box.event_journal import EventJournal, read_journal
from monitel_otlp.black_box.own_file import OwnFile
from monitel_otlp.black_box.request_files import RequestFiles, read_requests
from monitel_otlp.boxes.layout import CUTS, JOURNALS, BoxError, pack, unpack
from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.spool.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """An empty box."""
    path = tmp_path / "box"
    path.mkdir(0o700)
    opened = Folder.open(path)
    yield opened
    opened.close()


def cut(number: int, **fields: Any) -> Cut:
    """Return a cut without anything."""
    empty: dict[str, Any] = {
        "time_ns": number,
        "monotonic_ns": number,
        "last_request": 0,
        "parts": [],
        "events_below": 1,
        "events_done": [],
        "windows": b"",
        "state": b"",
        "counters": [],
        "context": {},
    }
    return Cut(number, **{**empty, **fields})


class Space:
    """Room for a number of bytes."""

    def __init__(self, left: int = 1 << 40) -> None:
        self.left = left
        self.wakes = 0

    def claim(self, size: int) -> bool:
        """Take some bytes; return False if there are fewer."""
        if size > self.left:
            return False
        self.left -= size
        return True

    def release(self, size: int) -> None:
        """Give them back."""
        self.left += size

    def wake(self) -> None:
        """Count the calls."""
        self.wakes += 1


def blocks(folder: Folder) -> list[bytes]:
    """Return the content of the two files of cuts."""
    return [folder.read(name) for name in CUTS]


def test_newest_complete_cut_is_found_wherever_the_next_write_is_interrupted(folder: Folder) -> None:
    """While one file is written the other one is complete."""
    one, other = (OwnFile(folder, name) for name in CUTS)
    writer = CutWriter((one, other), Space().claim)
    for number in range(1, 6):
        writer.write(cut(number, windows=b"x" * (100 * number)))
        found = newest_cut(blocks(folder))
        assert found is not None
        assert number == found.number
    complete = blocks(folder)
    newest = next(index for index, block in enumerate(complete) if unpack(block, "cut")[0] == 5)
    block = complete[newest]
    for length in range(0, len(block) - 1, 7):
        torn = complete.copy()
        torn[newest] = block[:length] + b"\0" * (len(block) - length)
        found = newest_cut(torn)
        assert found is not None
        assert 4 == found.number


def test_no_cut_before_the_first_one_is_complete(folder: Folder) -> None:
    """A process that was killed in its first cut has none. Two damaged cuts are an error."""
    assert newest_cut([b"", b""]) is None
    assert newest_cut([pack(tuple(cut(1)))[:20], b""]) is None
    with pytest.raises(BoxError, match="not part of a black box"):
        newest_cut([b"x" * 100, b"y" * 100])


def test_cut_without_room_raises_and_leaves_the_previous_one(folder: Folder) -> None:
    """The box is given up then."""
    one, other = (OwnFile(folder, name) for name in CUTS)
    writer = CutWriter((one, other), Space(1000).claim)
    writer.write(cut(1))
    with pytest.raises(OSError, match="no room"):
        writer.write(cut(2, windows=b"x" * 5000))
    found = newest_cut(blocks(folder))
    assert found is not None
    assert 1 == found.number


def test_own_file_never_writes_to_a_file_of_the_application(folder: Folder, tmp_path: Path) -> None:
    """A program that closes all descriptors, and opens another file with the same number, keeps its content."""
    file = OwnFile(folder, "events-a")
    file.write(b"first", 0)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(b"checkpoint")
    descriptor = file._descriptor
    stranger = os.open(checkpoint, os.O_RDWR)
    os.dup2(stranger, descriptor)
    with pytest.raises(OSError, match="not open any more"):
        file.write(b"second", 0)
    file.close()
    assert b"checkpoint" == checkpoint.read_bytes()
    os.write(descriptor, b"C")  # which is still open
    for each in (descriptor, stranger):
        os.close(each)


def test_removed_file_is_not_written(folder: Folder) -> None:
    """The written bytes would take memory that nobody finds."""
    file = OwnFile(folder, "events-a")
    folder.unlink("events-a")
    with pytest.raises(OSError, match="not open any more"):
        file.write(b"x", 0)
    file.close()


def journal(folder: Folder, space: Space) -> EventJournal:
    """Return a new journal."""
    one, other = (OwnFile(folder, name) for name in JOURNALS)
    return EventJournal((one, other), space.claim, space.wake)


def left(folder: Folder, below: int = 1, done: tuple[int, ...] = ()) -> list[Any]:
    """Return the events of the journal that are not done."""
    found = sorted(each for name in JOURNALS for each in read_journal(folder.read(name)))
    return [plain for number, plain in found if number >= below and number not in done]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_journal_always_has_the_events_that_no_cut_has(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """Whatever the order in which events are done, and however often the files are emptied."""
    path = tmp_path_factory.mktemp("journal")
    folder = Folder.open(path)
    events = journal(folder, Space())
    written: dict[int, str] = {}
    done: set[int] = set()
    progress: tuple[int, list[int]] = (1, [])
    for step in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["write", "write", "done", "cut"]))
        if action == "write":
            text = f"{step} " + "x" * data.draw(st.sampled_from([1, 50, 3000, 9000]))
            written[events.write((step, text))] = text
        elif action == "done" and set(written) - done:
            number = data.draw(st.sampled_from(sorted(set(written) - done)))
            done.add(number)
            events.done(number)
        elif action == "cut":
            progress = events.progress()
            events.committed()
        below, beyond = progress
        expected = [text for number, text in sorted(written.items()) if number >= below and number not in beyond]
        assert expected == [text for _, text in left(folder, below, tuple(beyond))]
    folder.close()


def test_journal_without_room_leaves_events_out_and_counts_them(folder: Folder) -> None:
    """The encoder is woken, so that the next events have room again."""
    space = Space(20_000)
    events = journal(folder, space)
    numbers = [events.write("x" * 5000) for _ in range(5)]
    assert 3 == sum(map(bool, numbers))
    assert 2 == events.left_out
    assert space.wakes
    for number in filter(None, numbers):
        events.done(number)
    events.progress()
    events.committed()
    assert [] == left(folder, *events.progress()[:1])


def test_emptied_file_has_no_events_of_its_former_use(folder: Folder) -> None:
    """Shorter events are followed by the rest of longer ones, which must not be read."""
    events = journal(folder, Space())
    for _ in range(10):
        events.done(events.write("long" * 500))
        events.progress()
        events.committed()
        assert left(folder, events.progress()[0]) == []
    events.write("short")
    assert ["short"] == left(folder, events.progress()[0])


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400), st.integers(0, 300))
def test_any_bytes_can_be_read(content: bytes, at: int) -> None:
    """A damaged journal or cut raises only the documented exception."""
    block = pack((1, "x" * 100, {"a": 2.0}))
    damaged = block[:at] + content + block[at:]
    list(read_journal(damaged))
    list(read_journal(content))
    for each in (damaged, content):
        with suppress(BoxError):
            unpack(each, "cut-a")


def request(number: int) -> FrozenRequest:
    """Return a request with a distinct body."""
    return FrozenRequest("logs", b"body %d" % number, number, number, b"", 0)


def test_requests_are_read_in_order_up_to_the_last_one_of_the_cut(folder: Folder) -> None:
    """A request beyond it was made after the cut, which has its items."""
    files = RequestFiles(folder, Space().claim, lambda _: None)
    for number in (1, 2, 10, 11):
        assert files.write(str(number), request(number))
    problems: list[str] = []
    assert [1, 2, 10] == [each.items for each in read_requests(folder, 10, problems.append)]
    files.remove("2")
    files.remove("2")
    assert [1, 10] == [each.items for each in read_requests(folder, 10, problems.append)]
    assert [] == problems


def test_part_counts_only_without_the_request_that_it_is_part_of(folder: Folder) -> None:
    """The parts are written first, then the request is removed: at no moment is an item missing or twice."""
    files = RequestFiles(folder, Space().claim, lambda _: None)
    files.write("7", request(700))
    for number in (1, 2):
        files.write(f"7.{number}", request(number))
        assert [700] == [each.items for each in read_requests(folder, 7, lambda _: None)]
    files.remove("7")
    assert [1, 2] == [each.items for each in read_requests(folder, 7, lambda _: None)]
    files.write("7.2.1", request(21))
    files.write("7.2.2", request(22))
    assert [1, 2] == [each.items for each in read_requests(folder, 7, lambda _: None)]
    files.remove("7.2")
    assert [1, 21, 22] == [each.items for each in read_requests(folder, 7, lambda _: None)]


def test_damaged_request_is_reported_and_the_others_are_read(folder: Folder, tmp_path: Path) -> None:
    """As are links and other things in its place."""
    files = RequestFiles(folder, Space().claim, lambda _: None)
    for number in (1, 2, 3):
        files.write(str(number), request(number))
    (folder.path / "request-2-logs").write_bytes(b"")
    (folder.path / "request-4-logs").symlink_to(tmp_path)
    (folder.path / "request-5-logs").mkdir()
    (folder.path / "request-6-other").write_bytes(b"x")
    problems: list[str] = []
    assert [1, 3] == [each.items for each in read_requests(folder, 10, problems.append)]
    assert ["request-2-logs", "request-4-logs", "request-5-logs"] == sorted(each.split(":")[0] for each in problems)


def test_request_without_room_is_not_written(folder: Folder) -> None:
    """Its room is free again when a request is removed."""
    space = Space(2 * 4096 - 1)  # each takes a page
    begin = space.left
    files = RequestFiles(folder, space.claim, space.release)
    assert files.write("1", request(1))
    assert not files.write("2", request(2))
    files.remove("1")
    assert begin == space.left
    assert files.write("3", request(3))
