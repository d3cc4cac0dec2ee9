"""A small exporter on top of the journals: it sends items in order to a folder, and keeps the running totals.

A request is one file with a plain value, which is there as a whole or not at all, even if its sender is killed.
"""

from __future__ import annotations

import marshal
import os
import random
import time
from collections import defaultdict
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from monitel.blackbox.record import EVENT, READING, WINDOW
from monitel.window_bytes import key, numbers

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from monitel.blackbox.journal import Journal
    from monitel.blackbox.record import Item

    Request = tuple[str, list[Any]]  # name of the journal, records
    Series = dict[int, tuple[int, float]]  # count and sum, by the number of the definition

MODES = ("healthy", "outage", "flaky", "large")


class Totals:
    """Count and sum of each series, up to an item: the fold of the journal of metrics."""

    def __init__(self, number: int = 0, state: Any = None) -> None:
        self.number = number
        self.series: Series = dict(state[0]) if state else {}
        self._dropped: list[tuple[int, Series]] = [*state[1]] if state else []

    def after(self, items: Iterable[Item], series: Series | None = None) -> Series:
        """Return the totals after these items, from these totals on, without changing them."""
        found = dict(self.series if series is None else series)
        for item in items:
            if item.kind == WINDOW:
                name, content = item.value
                count, total = found.get(name, (0, 0.0))
                found[name] = count + numbers(content)[2], total + numbers(content)[3]
        return found

    def drop(self, first: int, end: int, items: Iterable[Item]) -> None:
        """Keep what is dropped until its place is reached, so that items before it are sent with smaller totals."""
        self._dropped.append((end, self.after(items, {})))

    def plain(self) -> tuple[int, Any]:
        """Return the number of the last item, and everything else as a plain value."""
        return self.number, (dict(self.series), [*self._dropped])

    def pass_dropped(self, number: int) -> None:
        """Add what was dropped before an item."""
        for each in [each for each in self._dropped if each[0] <= number]:
            self._dropped.remove(each)
            for name, (count, total) in each[1].items():
                before = self.series.get(name, (0, 0.0))
                self.series[name] = before[0] + count, before[1] + total

    def commit(self, item: Item, series: Series) -> None:
        """Take over what ``after`` has returned, up to an item."""
        self.series, self.number = series, item.last


def encode(items: Iterable[Item], totals: Totals) -> Iterator[tuple[Any, ...]]:
    """Yield kind, source and number of each item, and its values; those of a window end with the totals."""
    series = totals.series
    for item in items:
        if item.kind == WINDOW:
            name, content = item.value
            series = totals.after([item], series)
            _, _, count, total, low, high, *_, histogram = numbers(content)
            buckets = -1 if histogram is None else sum(histogram.positive)
            yield "window", name, item.number, key(content), count, total, low, high, buckets, series[name]
        elif item.kind == READING:
            for name, value in item.value[1]:
                yield "reading", name, item.number, item.value[0], value
        elif item.kind == EVENT:
            yield "event", item.value[0], item.number, *item.value[1:]
        else:
            for number, (source, value) in enumerate(item.value, item.number):
                yield "item", source, number, value


class Sender:
    """Sends the items of one journal, in order, one request at a time.

    Args:
        journal: The journal.
        send: Sends a request; returns "ok", "retry" or "large".
        settled: Called after each request.
        totals: Of an earlier process.
    """

    def __init__(
        self,
        journal: Journal,
        send: Callable[[Request], str],
        settled: Callable[[], object] = lambda: None,
        totals: Totals | None = None,
    ) -> None:
        self.journal, self._send, self._settled, self.totals = journal, send, settled, totals or Totals()
        journal.fold = self.totals if journal.name == "metrics" else None
        self._held: list[list[Item]] = []  # what one read has returned

    def catch_up(self, items: Iterable[Item]) -> None:
        """Take the settled items that are not in the totals into them, in the record of an ended process."""
        for item in items if self.journal.fold is not None else ():
            if self.totals.number < item.number <= self.journal.settled:
                self.totals.pass_dropped(item.number)
                self.totals.commit(item, self.totals.after([item]))

    def send(self) -> bool | None:
        """Send one request; return True if it was sent or split, False if it failed, None if there was nothing."""
        journal = self.journal
        if not self._held:
            self._held = [items] if (items := journal.read(500)) else []
        if not self._held:
            return None
        items = self._held[0]
        with journal.lock:
            self.totals.pass_dropped(items[0].number)
        answer = self._send((journal.name, [*encode(items, self.totals)]))
        count, last = sum(item.items for item in items), items[-1]
        if answer == "large" and count > 1:
            half = len(items) // 2
            self._held[:1] = [items[:half], items[half:]] if half else [[each] for each in last.split(count // 2)]
            return True
        if answer == "retry":
            return False
        with journal.lock:
            self.totals.commit(last, self.totals.after(items))
            journal.settle(last.last, **{"delivered" if answer == "ok" else "rejected": count})
        del self._held[0]
        self._settled()
        return True


class SendThread(Thread):
    """Sends the items of a journal until it is over."""

    def __init__(self, sender: Sender) -> None:
        super().__init__(daemon=True)
        self.sender, self.over = sender, Event()

    def run(self) -> None:
        """Send, with a pause if nothing is left, or if it failed."""
        while not self.over.wait(0.02):
            while self.sender.send() and not self.over.is_set():
                pass


class Backend:
    """A folder of requests that were accepted; all processes of a campaign see its mode, a byte of shared memory."""

    def __init__(self, folder: Path, mode: mmap.mmap, seed: int) -> None:
        self._folder, self._mode, self._random, self._pause = folder, mode, random.Random(seed), Event()

    def send(self, request: Request) -> str:
        """Store a request, or refuse it; the answer may be lost, or late, so that its sender is killed before it."""
        mode, chance = MODES[self._mode[0]], self._random.random()
        if mode == "outage" or (mode == "flaky" and chance < 0.3):
            return "retry"
        if mode == "large" and len(request[1]) > 20 and chance < 0.5:
            return "large"
        name = f"{time.monotonic_ns():020}-{os.getpid()}-{request[0]}"
        new = self._folder / f".{name}"
        new.write_bytes(marshal.dumps(request, 2))
        new.rename(self._folder / name)
        if chance > 0.7:
            self._pause.wait(0.01)
        return "retry" if mode == "flaky" and chance < 0.5 else "ok"

    def requests(self) -> list[Request]:
        """Return what has arrived, in order."""
        names = sorted(each.name for each in self._folder.iterdir() if each.name[0] != ".")
        return [marshal.loads((self._folder / name).read_bytes()) for name in names]


def by_source(records: Iterable[tuple[Any, ...]]) -> dict[Any, list[tuple[Any, ...]]]:
    """Return the records of each source, in order of their numbers."""
    found = defaultdict(list)
    for record in sorted(records, key=lambda record: record[2]):
        found[record[1]].append(record)
    return found
