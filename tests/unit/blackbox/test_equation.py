"""The account of a journal at many moments: every item is in exactly one place."""

import marshal
import random
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests.support.checks import wait_until

from monitel.blackbox import disk, journal
from monitel.blackbox.folder import AVAILABLE, Folder, FolderError
from monitel.blackbox.journal import DISK, Journal, Room
from monitel.blackbox.record import RANGES, Item

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="there are no folders here")


class Run:
    """Threads that append, a sender with random answers, and a thread that moves, drops and removes.

    It is the fold of its journal as well: the sum of all samples that were settled or dropped.
    """

    def __init__(self, made: Journal, spool: Folder | None) -> None:
        self.journal, self.spool, self.samples = made, spool, 0
        made.fold = self
        self.random = random.Random(7)
        self.stop = Event()
        self.moments: list[bool] = []

    def drop(self, _first: int, _end: int, items: Iterable[Item]) -> None:
        self.samples += sum(sum(item.value) for item in items)

    def plain(self) -> tuple[int, Any]:
        return 0, self.samples

    def look(self) -> None:
        with self.journal.lock:
            found = self.journal.account()
            counted = sum(items for each, items in self.journal.unsettled() if each.where != DISK)
            placed = found.delivered + found.on_disk + sum(found.dropped.values()) + counted
        self.moments.append(found.waiting == counted and found.recorded == placed)

    def append(self) -> None:
        for number in range(6000):
            items = number % 5 + 1
            self.journal.append(RANGES, marshal.dumps([1] * items, 2), items)
            if number % 2:
                self.look()

    def send(self) -> None:
        """Send; the answers are retry, delivered, rejected, or too large: then a half is sent, of one record too."""
        held: list[Item] = []
        while not self.stop.is_set():
            held = held or self.journal.read(most=20)
            answer = self.random.random()
            if not held or answer < 0.2:
                self.stop.wait(0.0005)
                continue
            half = len(held) // 2 if answer < 0.5 else len(held)
            if not half and held[0].items > 1:
                held[:1] = held[0].split(held[0].items // 2)
            request, held = held[: half or 1], held[half or 1 :]
            count = sum(item.items for item in request)
            with self.journal.lock:
                self.samples += sum(sum(item.value) for item in request)
                self.journal.settle(request[-1].last, **{"rejected" if answer > 0.95 else "delivered": count})
            self.look()

    def tend(self) -> None:
        while not self.stop.is_set():
            self.journal.prepare()
            disk.load(self.journal)
            with suppress(FolderError):
                disk.move(self.journal, self.open)
            if disk.size_on_disk(self.journal) > 8 << 10:
                self.journal.drop_oldest("spool_full", (DISK,))
            disk.remove_settled(self.journal)
            self.journal.truncate(disk=False)
            self.look()

    def open(self) -> Folder:
        if self.spool is None:
            raise FolderError("there is no disk")
        return self.spool


@pytest.mark.parametrize("place", ["disk", "box", "memory"])
def test_every_item_is_in_one_place_at_any_moment(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is what the segments have, at each moment; in the end every sample is in the totals, once."""
    monkeypatch.setattr(journal, "_SMALL", 1 << 11)
    monkeypatch.setattr(journal, "_LARGE", 1 << 12)
    monkeypatch.setattr(disk, "_LARGEST", 1 << 13)
    room = Room(box_bytes=1 << 15, memory_bytes=1 << 14)
    (tmp_path / "box").mkdir()
    room.box = Folder.open(tmp_path / "box") if place == "box" else None
    made = Journal("metrics", room)
    run = Run(made, Folder.open(tmp_path) if place != "memory" else None)
    writers, others = [Thread(target=run.append) for _ in range(2)], [Thread(target=run.send), Thread(target=run.tend)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    try:
        for thread in (*writers, *others):
            thread.start()
        for thread in writers:
            thread.join()
        wait_until(lambda: made.settled == made.next - 1, "all items are settled")
    finally:
        sys.setswitchinterval(interval)
        run.stop.set()
        for thread in others:
            thread.join()
    found = made.account()
    assert (36_000, 36_000, 0, 0) == (found.recorded, run.samples, found.waiting, found.on_disk)
    assert "unreadable" not in found.dropped
    assert run.moments.count(False) == 0
    assert len(run.moments) >= 6000
