"""The bounded queue: limits, sizes and counts; threads and destructors."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from monitel.bounded_queue import BoundedQueue

ITEM = 128  # bytes of an item without a payload
OBJECT = 64  # bytes of an object in a payload, without its text
HUGE = 1 << 40


def test_items_come_out_in_order() -> None:
    """take() removes at most as many items as asked for, oldest first; a full queue drops the oldest."""
    evicted: list[int] = []
    queue: BoundedQueue[int] = BoundedQueue(5, HUGE, evicted=evicted.append)
    for item in range(8):
        queue.put(item)
    assert ([0, 1, 2], (8, 3, 5)) == (evicted, queue.counts())
    assert ([3, 4], [], [5, 6, 7], []) == (queue.take(2), queue.take(-1), queue.take(10**30), queue.take(1))
    assert "QueueCounts(recorded=8, dropped=3, waiting=0)" == repr(queue.counts())


def test_queue_is_bounded_by_bytes() -> None:
    """As many of the oldest items are dropped as the new one needs, or the new one if it is larger than the queue."""
    evicted: list[str] = []
    queue: BoundedQueue[str] = BoundedQueue(100, 1000, evicted=evicted.append)
    for item in "abcd":
        queue.put(item, 250)
    queue.put("e", 1)
    assert ["a"] == evicted
    queue.put("f", 700)
    assert (["a", "b", "c"], 951) == (evicted, queue.weight_bytes)
    queue.put("huge", 1001)
    queue.put("longer than int64", 1 << 70)
    assert ["huge", "longer than int64"] == evicted[3:]
    assert (["d", "e", "f"], 0) == (queue.take(9), queue.weight_bytes)
    assert (8, 5, 0) == queue.counts()


def test_size_is_estimated_from_the_payload() -> None:
    """Text and bytes count by their length, with a constant for each object; no method of a payload is called."""
    table: list[tuple[Any, int]] = [
        *((None, ITEM), (17, 17), (-5, 0), (1.5, ITEM + OBJECT), ("x" * 1000, ITEM + OBJECT + 1000)),
        *(("é" * 1000, ITEM + OBJECT + 4000), (b"\xff" * 1000, ITEM + OBJECT + 1000), ({1, 2}, ITEM + OBJECT)),
        *(({"ab": "cde"}, ITEM + 3 * OBJECT + 5), (["ab", ("c", b"d")], ITEM + 5 * OBJECT + 4)),
    ]
    for payload, expected in table:
        queue: BoundedQueue[str] = BoundedQueue(10, HUGE)
        queue.put("item", payload)
        assert expected == queue.weight_bytes
    lonely: list[Any] = []
    lonely.append(lonely)
    wide: list[Any] = []
    wide.extend([wide] * 1000)
    queue = BoundedQueue(10, 100_000)
    queue.put("lonely", lonely)
    assert ITEM + 9 * OBJECT == queue.weight_bytes
    queue.put("wide", wide)
    assert (2, 1, 1) == queue.counts()


class _Phoenix:
    """Puts its number into a queue when it is destructed."""

    def __init__(self, queue: BoundedQueue[Any], number: int) -> None:
        self.itself = self
        self.queue = queue
        self.number = number

    def __del__(self) -> None:
        self.queue.put(self.number)


def test_garbage_collection_may_put() -> None:
    """Destructors that it runs anywhere in put() and take() may put; each item is counted."""
    queue: BoundedQueue[Any] = BoundedQueue(50, HUGE)
    thresholds, taken = gc.get_threshold(), 0
    gc.set_threshold(1)
    try:
        for number in range(500):
            _Phoenix(queue, number)
            queue.put(number)
            taken += len(queue.take(number % 4))
            recorded, dropped, waiting = queue.counts()
            assert recorded == taken + dropped + waiting
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    recorded, dropped, waiting = queue.counts()
    assert 1000 == recorded == taken + dropped + waiting


@pytest.mark.usefixtures("frequent_switches")
def test_threads_take_or_evict_every_item_once(run_threads: Any) -> None:
    """Three threads put, two take and one reads the counts, which agree at every moment."""
    producers, each = 3, 3_000
    evicted: list[tuple[int, int]] = []
    queue: BoundedQueue[tuple[int, int]] = BoundedQueue(1_000, HUGE, evicted=evicted.append)
    running = [None] * producers  # list.pop() is atomic on every build
    taken: list[list[tuple[int, int]]] = [[], []]

    def put(producer: int) -> None:
        for number in range(each):
            queue.put((producer, number))
        running.pop()

    def take(into: list[tuple[int, int]]) -> None:
        while running:
            into += queue.take(700)

    def read() -> None:
        recorded = dropped = 0
        while running:
            counts = queue.counts()
            assert recorded <= counts.recorded
            assert dropped <= counts.dropped <= counts.recorded
            assert 0 <= counts.waiting <= min(1_000, counts.recorded - counts.dropped)
            recorded, dropped = counts.recorded, counts.dropped

    puts = [lambda number=number: put(number) for number in range(producers)]
    run_threads(*puts, *(lambda into=into: take(into) for into in taken), read)
    everything = [*taken[0], *taken[1], *queue.take(producers * each), *evicted]
    assert sorted(everything) == [(producer, number) for producer in range(producers) for number in range(each)]
    assert (producers * each, len(evicted), 0) == queue.counts()
    for items in taken:  # a taker gets the items of a producer in their order
        for producer in range(producers):
            numbers = [number for by, number in items if by == producer]
            assert sorted(numbers) == numbers
