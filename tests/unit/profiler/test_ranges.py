"""Ranges: clocks, errors, decorated code, and objects that are shared by threads, tasks and listeners."""

import _thread
import asyncio
import contextvars
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from monitel.profiler import ranges
from monitel.profiler import record_function as record

SECOND = 1_000_000_000
THREADS = 3
BLOCKS = 300  # of each thread
_DEADLINE = 60.0

pytestmark = pytest.mark.usefixtures("clean_profiler")


def test_wall_clock_set_back(clock: Any) -> None:
    """A range during which the wall clock is set back has its true length; the next range has the new time."""
    received: list[Any] = []
    with ranges.listen(ended=received.append):
        with record("a"):
            clock.advance(1)
            clock.set_wall_clock(-3600)
        with ranges.listen(), record("b"):
            clock.advance(1)
    assert [SECOND, SECOND] == [each.end_ns - each.start_ns for each in received]
    assert clock.time_ns() == received[1].end_ns


def test_ended_ranges_are_freed() -> None:
    """Ended ranges and their args are freed, and freeing a long chain of parents does not recurse."""

    class Args(dict[str, Any]):
        """A dict that can be referenced weakly."""

    args = Args()
    found = weakref.ref(args)
    last: list[Any] = []
    with ranges.listen(began=lambda each: last.__setitem__(slice(None), [each])):
        with record("a", args):
            pass
        del args
        contexts = [contextvars.copy_context()]
        labels = [record("link") for _ in range(50_000)]
        for label in labels:
            contexts[0].run(label.__enter__)
        for label in reversed(labels):
            contexts[0].run(label.__exit__, None, None, None)
    contexts.clear()
    labels.clear()
    last.clear()
    assert found() is None


def test_decorated_generators_keep_their_protocol() -> None:
    """send(), throw(), close() and return values work as without the decorator."""
    log: list[Any] = []

    @record("g")
    def generate(first: int) -> Any:
        try:
            log.append((yield first))
            try:
                yield 2
            except KeyError as error:
                log.append(error)
                yield 3
        finally:
            log.append("closed")
        return "result"

    began: list[Any] = []
    ended: list[Any] = []
    with ranges.listen(began=began.append, ended=ended.append):
        generator = generate(1)
        assert (1, 2) == (next(generator), generator.send("sent"))
        error = KeyError()
        assert 3 == generator.throw(error)
        with pytest.raises(StopIteration) as stop:
            next(generator)
        assert "result" == stop.value.value
        assert ["sent", error, "closed"] == log
        other = generate(1)
        next(other)
        other.close()
        assert "closed" == log[3]
    assert began == ended


def test_exception_that_leaves_decorated_code_is_the_error_of_its_range() -> None:
    """The normal end of a generator, and its close(), are not errors."""

    @record("function")
    def function() -> None:
        raise KeyError

    @record("coroutine")
    async def coroutine() -> None:
        await asyncio.sleep(0)
        raise KeyError

    @record("generator")
    def generate(failing: bool) -> Iterator[int]:
        yield 1
        if failing:
            raise KeyError

    ended: list[Any] = []
    with ranges.listen(ended=ended.append):
        for call in (function, lambda: asyncio.run(coroutine()), lambda: list(generate(True))):
            with pytest.raises(KeyError):
                call()
        list(generate(False))
        closed: Any = generate(True)
        next(closed)
        closed.close()
        thrown: Any = generate(False)
        next(thrown)
        with pytest.raises(ValueError, match="thrown"):
            thrown.throw(ValueError("thrown"))
    assert [
        *[("function", "KeyError"), ("coroutine", "KeyError"), ("generator", None), ("generator", "KeyError")],
        *[("generator", None), ("generator", None), ("generator", None), ("generator", None)],
        *[("generator", None), ("generator", "ValueError")],
    ] == [(each.name, each.error_type) for each in ended]


def test_block_without_listeners_ends_no_range_around_it() -> None:
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


def test_thread_started_without_threading() -> None:
    """A thread started without threading is recorded and adds no dummy to threading.enumerate()."""
    done, ended, found = threading.Event(), list[Any](), list[int]()

    def work() -> None:
        with record("work"):
            pass
        found.append(len(threading.enumerate()))
        done.set()

    with ranges.listen(ended=ended.append):
        _thread.start_new_thread(work, ())
        assert done.wait(_DEADLINE)
    assert "thread" == ended[0].track.thread_name
    assert [len(threading.enumerate())] == found


def test_exit_of_one_thread_ends_no_range_of_another(run_threads: Any) -> None:
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


@pytest.mark.usefixtures("frequent_switches")
def test_threads_share_an_object_while_listeners_come_and_go(run_threads: Any) -> None:
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
            call()
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
