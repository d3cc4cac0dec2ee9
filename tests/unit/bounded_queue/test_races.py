"""Threads that race for one queue: every item is taken once or dropped once, and the counts agree at every moment.

The tests are about builds without the GIL, where threads run at the same time. They run on all builds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeQueue = Callable[..., Any]

PRODUCERS = 3
ITEMS = 3_000  # of each producer


def test_every_item_is_taken_or_evicted_once(make_queue: MakeQueue, run_threads: Any) -> None:
    """Three threads put, two take and one reads the counts, while the queue grows, overflows and becomes empty."""
    evicted: list[tuple[int, int]] = []
    queue = make_queue(max_items=1_000, max_bytes=1 << 40, evicted=evicted.append)
    running = [object()] * PRODUCERS  # list.pop() is atomic on every build
    taken: list[list[tuple[int, int]]] = [[], []]

    def put(producer: int) -> None:
        for number in range(ITEMS):
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
            assert 0 <= queue.weight_bytes <= 128 * 1_001  # the Python twin drops after it has appended
            recorded, dropped = counts.recorded, counts.dropped

    producers = [lambda number=number: put(number) for number in range(PRODUCERS)]
    takers = [lambda into=into: take(into) for into in taken]
    run_threads(*producers, *takers, read)
    rest = queue.take(ITEMS * PRODUCERS)
    everything = [*taken[0], *taken[1], *rest, *evicted]
    assert sorted(everything) == [(producer, number) for producer in range(PRODUCERS) for number in range(ITEMS)]
    assert (PRODUCERS * ITEMS, len(evicted), 0) == queue.counts()
    assert 0 == queue.weight_bytes
    for each in taken:  # a taker gets the items of a producer in their order
        for producer in range(PRODUCERS):
            numbers = [number for by, number in each if by == producer]
            assert numbers == sorted(numbers)
