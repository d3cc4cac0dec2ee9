"""Ranges of threads and tasks that share objects, listeners and clocks: each has its own, once. Over both twins."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
from collections import Counter
from functools import partial
from itertools import pairwise
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from monitel.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.profiler import record_function

    RunThreads = Any

THREADS = 3
RANGES = 400  # of each thread
BLOCKS = 300  # of each thread
_DEADLINE = 60.0


def names(received: list[Any], what: str = "began") -> list[str]:
    """Return the names of the ranges that began, or ended."""
    return [each.name for kind, each in received if kind == what]


def parents(received: list[Any]) -> list[tuple[str, str | None]]:
    """Return each range's name and its parent's name."""
    return [(each.name, each.parent and each.parent.name) for kind, each in received if kind == "began"]


def test_object_shared_by_threads(received: list[Any], record: type[record_function], run_threads: RunThreads) -> None:
    """Threads that use one object at the same time have separate ranges, each ended by its thread."""
    label, both = record("a"), threading.Barrier(2)

    def use() -> None:
        with label:
            both.wait(30)
            with record("inner"):
                both.wait(30)

    run_threads(use, use)
    began = [each for kind, each in received if kind == "began"]
    assert 4 == len({id(each) for each in began}) == len([each for kind, each in received if kind == "ended"])
    inner = [each for each in began if each.name == "inner"]
    assert [each.track for each in inner] == [each.parent.track for each in inner]
    assert inner[0].track is not inner[1].track


def test_thread_started_without_threading(received: list[Any], record: type[record_function]) -> None:
    """A thread started without threading is recorded and adds no dummy to threading.enumerate()."""
    import _thread

    done = threading.Event()

    def work() -> None:
        with record("work"):
            pass
        found.append(len(threading.enumerate()))
        done.set()

    found: list[int] = []
    _thread.start_new_thread(work, ())
    assert done.wait(30)
    assert "thread" == received[0][1].track.thread_name
    assert [len(threading.enumerate())] == found


def test_parent_is_known_to_the_listener(ranges: Any, record: type[record_function], run_threads: RunThreads) -> None:
    """A listener that stores an id from each range's beginning to its end always finds the parent's id."""
    ids: dict[Any, str] = {}
    paths: list[str] = []

    def began(each: Any) -> None:
        assert each.parent is None or each.parent.end_ns is None
        ids[each] = f"{ids[each.parent]}/{each.name}" if each.parent else each.name

    def ended(each: Any) -> None:
        paths.append(ids.pop(each))

    async def job(name: str) -> None:
        with record(name):
            await asyncio.sleep(0)
            with record("part"):
                await asyncio.sleep(0)

    async def main() -> None:
        with record("main"):
            await asyncio.gather(job("a"), job("b"))

    def work() -> None:
        with record("thread"):
            asyncio.run(main())

    with ranges.listen(began=began, ended=ended):
        run_threads(work, work)
    assert {} == ids
    expected = ["thread", "thread/main", *(f"thread/main/{name}" for name in ("a", "a/part", "b", "b/part"))]
    assert sorted(expected * 2) == sorted(paths)


def test_interleaved_tasks(received: list[Any], record: type[record_function]) -> None:
    """Interleaved tasks have separate tracks and parents."""

    async def job(number: int) -> None:
        with record(f"job {number}"):
            for step in range(3):
                with record(f"step {number}.{step}"):
                    await asyncio.sleep(0)
                    with record(f"part {number}.{step}"):
                        await asyncio.sleep(0)

    async def main() -> None:
        with record("main"):
            jobs = [asyncio.create_task(job(number), name=f"job-{number}") for number in range(3)]
            await asyncio.gather(*jobs)

    asyncio.run(main())
    found = parents(received)
    assert ("main", None) == found[0]
    order = [name for name, _ in found if name.startswith("part")]
    assert ["part 0.0", "part 1.0", "part 2.0"] == order[:3]  # the tasks are interleaved
    for name, parent in found[1:]:
        kind, _, number = name.partition(" ")
        expected = {"job": "main", "step": f"job {number[0]}", "part": f"step {number}"}[kind]
        assert expected == parent
    tracks = {each.name: each.track for kind, each in received}
    assert "job-1 (MainThread)" == str(tracks["job 1"]) == str(tracks["part 1.2"])
    assert tracks["job 1"] is tracks["part 1.2"] is not tracks["job 2"]
    gc.collect()
    assert {} == sys.modules[type(tracks["main"]).__module__]._of_tasks


def test_task_outlives_its_parent_range(received: list[Any], record: type[record_function], ranges: Any) -> None:
    """The range in which a task was created is the parent of the task's ranges only until it ends."""

    async def later(name: str, go: asyncio.Event) -> None:
        await go.wait()
        with record(name):
            pass

    async def main() -> None:
        go = asyncio.Event()
        with record("making"):
            task = asyncio.create_task(later("after", go))
            await asyncio.sleep(0)
        go.set()
        await task

    asyncio.run(main())
    assert [("making", None), ("after", None)] == parents(received)


def test_overlapping_ranges_of_one_context(received: list[Any], record: type[record_function], ranges: Any) -> None:
    """After ranges that end out of order, as in suspended generators, later ranges have correct parents."""

    def generate() -> Iterator[int]:
        with record("generator"):
            yield 1
            yield 2

    generator = generate()
    next(generator)
    with record("consumer"):
        assert [2] == list(generator)  # ends "generator" within "consumer"
        with record("inner"):
            assert "inner" == ranges.current_range().name
    with record("next"):
        pass
    assert [("generator", None), ("consumer", "generator"), ("inner", "consumer"), ("next", None)] == parents(received)


def test_exit_in_another_context(received: list[Any], record: type[record_function], ranges: Any) -> None:
    """A range that is entered in one context and left in another ends, and is not a parent afterwards."""
    context = contextvars.copy_context()
    label = context.run(record("a").__enter__)
    label.__exit__(None, None, None)
    assert ["a"] == names(received, "ended")
    context.run(record("b").__enter__).__exit__(None, None, None)
    assert [("a", None), ("b", None)] == parents(received)


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


def test_every_range_once_while_listeners_and_clocks_change(
    ranges: Any, record: type[record_function], run_threads: Any
) -> None:
    """A listener that stays gets each range of each thread once, in order, within its parent."""
    began: list[Any] = []
    ended: list[Any] = []
    running = [object()] * THREADS  # list.pop() is atomic on every build

    def work(thread: int) -> None:
        for number in range(RANGES):
            with record(f"{thread} outer {number}"), record(f"{thread} inner {number}"):
                pass
        running.pop()

    def listen() -> None:
        while running:
            with ranges.listen(began=lambda _: None, ended=lambda _: None):
                pass

    with ranges.listen(began=began.append, ended=ended.append):
        run_threads(*(partial(work, thread) for thread in range(THREADS)), listen)
    expected = Counter(
        f"{thread} {kind} {number}"
        for thread in range(THREADS)
        for number in range(RANGES)
        for kind in ("outer", "inner")
    )
    assert expected == Counter(each.name for each in began) == Counter(each.name for each in ended)
    for thread in range(THREADS):
        mine = [each for each in began if each.name.startswith(f"{thread} ")]
        assert all(a.monotonic_start_ns <= b.monotonic_start_ns for a, b in pairwise(mine))
        assert all((each.parent is None) == ("outer" in each.name) for each in mine)
        assert all(each.parent.name == each.name.replace("inner", "outer") for each in mine if each.parent is not None)


def test_clock_and_listeners_are_replaced_while_they_are_in_use(
    ranges: Any, record: type[record_function], run_threads: Any
) -> None:
    """The recorder keeps a clock and listeners alive while it calls them."""
    running = [object()] * 2
    recorder = ranges._ranges
    received: list[Any] = []

    def work() -> None:
        for _ in range(RANGES):
            with record("range"):
                pass
        running.pop()

    def replace() -> None:
        while running:
            recorder.set_clock(ManualClock(), 0)
            recorder.set_listeners((lambda _: None, lambda _: None), (received.append,))

    try:
        run_threads(work, work, replace)
    finally:
        recorder.set_listeners((), ())
        recorder.set_clock(None, 0)
    assert {"range"} >= {each.name for each in received}


def test_of_several_threads_one_ends_a_range(
    ranges: Any, record: type[record_function], run_threads: Any, twin: str
) -> None:
    """In C a range ends once, and the other threads get an error; in Python several may end it."""
    if twin == "py":
        return
    ended: list[Any] = []
    errors: list[str] = []

    def end(blocks: list[Any]) -> None:
        for block in blocks:
            try:
                block.__exit__(None, None, None)
            except AssertionError as error:
                errors.append(str(error))

    with ranges.listen(ended=ended.append):
        blocks = [record(f"range {number}") for number in range(RANGES)]
        for block in blocks:
            block.__enter__()
        run_threads(*(partial(end, blocks) for _ in range(THREADS)))
    assert Counter(f"range {number}" for number in range(RANGES)) == Counter(each.name for each in ended)
    assert ["Expected record to be set"] * (RANGES * (THREADS - 1)) == errors
