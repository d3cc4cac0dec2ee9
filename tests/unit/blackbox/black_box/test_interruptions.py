"""Signal handlers, destructors and KeyboardInterrupt while an event is written to the box."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.blackbox.black_box.test_files import Space, journal, left

from monitel_otlp.black_box.event_journal import EventJournal, read_journal
from monitel_otlp.black_box.own_file import OwnFile
from monitel_otlp.boxes.layout import JOURNALS
from monitel_otlp.boxes.room import Room, Share
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


@pytest.mark.parametrize("after", [False, True], ids=["before-the-write", "after-the-write"])
@pytest.mark.parametrize("length", [1, 100, 5000])
def test_event_of_a_signal_handler_during_a_write_is_kept(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, length: int, after: bool
) -> None:
    """Neither it, nor the interrupted event, nor a later one is lost or twice; each has its own number."""
    events = journal(folder, Space())
    write = OwnFile.write
    inner: list[int] = []

    def interrupted(self: OwnFile, content: bytes, offset: int) -> None:
        if after:
            write(self, content, offset)
        if not inner:
            inner.append(0)
            inner[0] = events.write("inner" * length)
            inner.append(events.write("another"))
        if not after:
            write(self, content, offset)

    monkeypatch.setattr(OwnFile, "write", interrupted)
    outer = events.write("outer" * 20)
    later = events.write("later")
    assert sorted(["outer" * 20, "inner" * length, "another", "later"]) == sorted(left(folder))
    assert 4 == len({outer, later, *inner})
    for number, text in ((outer, "outer" * 20), (inner[0], "inner" * length), (inner[1], "another"), (later, "later")):
        assert text not in left(folder, done=(number,))


def test_event_that_is_never_done_does_not_fill_the_journal(folder: Folder) -> None:
    """KeyboardInterrupt has kept it from the queue. Neither the files nor the cuts grow, and no event is left out."""
    events = journal(folder, Space(1 << 20))
    events.write("interrupted")
    for number in range(20_000):
        events.done(events.write(f"{number} {'x' * 200}"))
        if number % 100 == 0:
            assert len(events.progress()[1]) <= 1100
            events.committed()
    assert not events.left_out
    assert not any(number == 1 for name in JOURNALS for number, _ in read_journal(folder.read(name)))


@pytest.mark.parametrize("part", ["journal", "share", "room"])
def test_lock_of_an_interrupted_thread_stops_no_other_thread(folder: Folder, part: str) -> None:
    """A signal handler that ends telemetry has interrupted it, and waits for the other threads meanwhile."""
    room = Room(folder, 1 << 20)
    share = Share(room, 1 << 20)
    one, other = (OwnFile(folder, name) for name in JOURNALS)
    events = EventJournal((one, other), share.claim, lambda: None)
    events.done(events.write("x" * 5000))
    held: Any = {"journal": events, "share": share, "room": room}[part]
    with held._lock:
        found: list[Any] = []

        def use() -> None:
            share.release(0)
            found.append(share.claim(1 << 10))
            events.progress()
            events.committed()
            found.append(events.write("y" * 50_000))

        thread = Thread(target=use, daemon=True)
        thread.start()
        thread.join(20.0)
        assert not thread.is_alive()
    left_out = part == "journal"  # the interrupted event may be written already
    assert [True, left_out, left_out] == [found[0], found[1] == 0, events.left_out == 1]
    assert share.claim(1 << 10)
    assert events.write("z")
