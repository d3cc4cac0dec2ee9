"""Ranges in threads, asyncio tasks and contexts: their tracks and parents. Over both twins."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.profiler import record_function

    RunScript = Any
    RunThreads = Any

SECOND = 1_000_000_000


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


def test_every_thread(received: list[Any], record: type[record_function]) -> None:
    """Ranges of every thread are recorded, with name and id of the thread; parents are of the same thread."""
    found: list[int] = []

    def work() -> None:
        found.append(threading.get_native_id())
        with record("work"):
            pass

    with record("main"):
        thread = threading.Thread(target=work, name="loader")
        thread.start()
        thread.join(30)
    assert [("main", None), ("work", None)] == parents(received)
    track = received[1][1].track
    assert (found[0], "loader", "loader") == (track.thread_id, track.thread_name, str(track))


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


def test_many_threads(received: list[Any], record: type[record_function], run_threads: RunThreads) -> None:
    """With eight threads at once every range begins and ends, within ranges of its thread."""

    def work() -> None:
        for _ in range(300):
            with record("outer"), record("inner"):
                pass

    run_threads(*[work] * 8)
    assert 4800 == len(names(received)) == len(names(received, "ended"))
    for kind, each in received:
        if kind == "began" and each.name == "inner":
            assert "outer" == each.parent.name
            assert each.track is each.parent.track
            assert each.parent.monotonic_start_ns <= each.monotonic_start_ns
            assert each.monotonic_end_ns <= each.parent.monotonic_end_ns


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
