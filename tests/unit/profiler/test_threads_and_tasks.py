"""Ranges of threads and tasks that share objects, listeners and clocks: each has its own, once."""

import threading
from collections import Counter
from threading import Event
from typing import Any

import pytest

from monitel.profiler import record_function

RunThreads = Any

THREADS = 3
BLOCKS = 300  # of each thread
_DEADLINE = 60.0


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
