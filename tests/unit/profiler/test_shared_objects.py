"""One object around several blocks: within each other, in threads and in tasks, while listeners come and go.

The tests with threads are about builds without the GIL, where threads run at the same time. They run on all builds.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from monitel.profiler import record_function

THREADS = 3
BLOCKS = 300  # of each thread
_DEADLINE = 60.0


def test_block_without_listeners_ends_no_range_within_it(ranges: Any, record: type[record_function]) -> None:
    """A block is entered before the first listener, and left after a block of the same object has ended."""
    received: list[Any] = []
    label = record("a")
    with label:
        with ranges.listen(ended=received.append):
            with label:
                assert [] == received
            assert 1 == len(received)
        assert ranges.current_range() is None
    assert 1 == len(received)


def test_block_without_listeners_ends_no_range_around_it(ranges: Any, record: type[record_function]) -> None:
    """A range ends with its block, even if blocks of the same object within it began after the listener was closed."""
    received: list[Any] = []
    label = record("a")
    listening = ranges.listen(ended=received.append)

    def blocks() -> None:
        with label:
            listening.close()
            for _ in range(2):
                with label, label:
                    pass
            assert [] == received
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        blocks()
    assert ["ValueError"] == [each.error_type for each in received]


def test_recursive_function_while_listeners_change(ranges: Any, record: type[record_function]) -> None:
    """A decorated function and its calls of itself end the ranges that they began, in the order of the calls."""
    ended: list[Any] = []
    began: list[Any] = []

    listening: list[Any] = []

    @record("call")
    def call(depth: int) -> None:
        if depth % 2:
            listening.append(ranges.listen(began=began.append, ended=ended.append))
        else:
            listening.pop().close()
        if depth:
            call(depth - 1)

    call(9)
    assert 5 == len(began) == len(ended)
    assert began[::-1] == ended


def test_exit_of_one_thread_ends_no_range_of_another(
    ranges: Any, record: type[record_function], run_threads: Any
) -> None:
    """A thread that entered before the listener came leaves its block while another is within the same object."""
    label = record("a")
    entered, began, left = Event(), Event(), Event()
    received: list[Any] = []
    running: list[bool] = []

    def before() -> None:
        with label:
            entered.set()
            assert began.wait(_DEADLINE)
        left.set()

    def after() -> None:
        assert entered.wait(_DEADLINE)
        with ranges.listen(ended=received.append):
            with label:
                began.set()
                assert left.wait(_DEADLINE)
                running.append(ranges.current_range() is not None and not received)
            running.append(ranges.current_range() is None)

    run_threads(before, after)
    assert [True, True] == running
    assert 1 == len(received)


def test_unrecorded_block_of_one_thread_within_the_range_of_another(
    ranges: Any, record: type[record_function], run_threads: Any
) -> None:
    """A range ends although another thread enters and leaves its object after the listener was closed."""
    label = record("a")
    received: list[Any] = []

    def unrecorded() -> None:
        with label:
            pass

    listening = ranges.listen(ended=received.append)
    with label:
        listening.close()
        run_threads(unrecorded, partial(contextvars.copy_context().run, unrecorded))
        assert [] == received
    assert 1 == len(received)
    assert ranges.current_range() is None


def test_tasks_that_share_an_object(ranges: Any, record: type[record_function]) -> None:
    """Tasks enter one object in turn, before and after the listener came, and leave it in another order."""
    label = record("a")
    ended: list[str] = []

    async def block(order: list[str], come: asyncio.Event, go: asyncio.Event) -> None:
        with label:
            come.set()
            await go.wait()
        order.append("left")

    async def run() -> None:
        events = [(asyncio.Event(), asyncio.Event()) for _ in range(3)]
        order: list[str] = []
        first = asyncio.create_task(block(order, *events[0]))
        await events[0][0].wait()
        with ranges.listen(ended=lambda each: ended.append(each.track.task_name)):
            tasks = [asyncio.create_task(block(order, *each), name=str(i)) for i, each in enumerate(events) if i]
            for come, _ in events[1:]:
                await come.wait()
            for task, (_, go), expected in zip([first, *tasks], events, ([], ["1"], ["1", "2"]), strict=True):
                go.set()
                await task
                assert expected == ended

    asyncio.run(run())
    assert ["1", "2"] == ended


def test_object_that_is_left_in_another_context(ranges: Any, record: type[record_function]) -> None:
    """A block that ends in another context ends its range there, if the object has no other block."""
    received: list[Any] = []
    with ranges.listen(ended=received.append):
        label = record("a")
        contextvars.copy_context().run(label.__enter__)
        label.__exit__(None, None, None)
    assert ["a"] == [each.name for each in received]


@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("form", ["block", "call"])
def test_threads_share_an_object_while_listeners_come_and_go(
    ranges: Any, record: type[record_function], run_threads: Any, form: str
) -> None:
    """Each range that began ends once, in its thread, after the ranges within it; no exit raises."""
    label = record("shared")
    began: list[Any] = []
    ended: list[Any] = []
    running = [object()] * THREADS  # list.pop() is atomic on every build

    @label
    def call() -> None:
        with label:
            pass

    def blocks() -> None:
        for _ in range(BLOCKS):
            if form == "call":
                call()
                continue
            with label:
                for _ in range(2):
                    with label:
                        pass

    def work() -> None:
        try:
            blocks()
            assert ranges.current_range() is None
        finally:
            running.pop()

    def listen() -> None:
        while running:
            with ranges.listen(began=began.append, ended=ended.append):
                for _ in range(5):
                    with label:
                        pass

    run_threads(*[work] * THREADS, listen)
    assert Counter(map(id, began)) == Counter(map(id, ended))
    assert len(began) == len(set(map(id, began)))
    assert all(each.monotonic_end_ns >= each.monotonic_start_ns for each in ended)
    position = {id(each): number for number, each in enumerate(ended)}
    assert all(position[id(each)] < position[id(each.parent)] for each in ended if id(each.parent) in position)
    assert all(each.parent is None or each.parent.track is each.track for each in ended)
