"""The bounded queue: limits, sizes, counts and callbacks; threads, destructors and interruptions."""

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
    """It drops as many of the oldest items as the new one needs, or the new one if it is larger than the queue."""
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


def test_wake_is_called_at_half() -> None:
    """Of the items or of the bytes; again only after a take() that left less than half."""
    woken: list[int] = []
    queue: BoundedQueue[int] = BoundedQueue(10, HUGE, wake=lambda: woken.append(len(queue)))
    for item in range(20):
        queue.put(item)
    queue.take(5)
    queue.put(20)
    assert [5] == woken, "take() left half"
    queue.take(2)
    queue.put(21)
    assert [5, 5] == woken
    by_bytes: BoundedQueue[str] = BoundedQueue(100, 1001, wake=lambda: woken.append(by_bytes.weight_bytes))
    by_bytes.put("a", 500)
    by_bytes.put("b", 1)
    by_bytes.put("c", 400)
    assert [5, 5, 501] == woken


def test_callbacks_may_use_the_queue() -> None:
    """They run after the step: the queue is consistent, and they may put and take."""
    seen: list[Any] = []

    def evicted(item: int) -> None:
        seen.append((item, *queue.counts(), len(queue)))
        if item < 3:
            queue.put(item + 100)

    queue: BoundedQueue[int] = BoundedQueue(2, HUGE, evicted=evicted)
    for item in range(4):
        queue.put(item)
    assert [(0, 3, 1, 2, 2), (1, 4, 2, 2, 2), (2, 5, 3, 2, 2), (100, 6, 4, 2, 2), (101, 7, 5, 2, 2)] == seen
    assert [102, 3] == queue.take(3)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_failing_callbacks_do_not_reach_the_caller(unraisable: list[Any], kind: type[BaseException]) -> None:
    """An exception of a callback is reported, and the callback is still called for each item."""
    failed: list[object] = []

    def fail(*item: object) -> None:
        failed.append(item)
        raise kind

    queue: BoundedQueue[str] = BoundedQueue(1, HUGE, wake=fail, evicted=fail)
    for item in "abc":
        queue.put(item)
    assert [(), ("a",), ("b",)] == failed
    assert ([kind] * 3, (3, 2, 1)) == ([type(error) for error in unraisable], queue.counts())


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
