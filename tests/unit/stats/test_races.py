"""Threads that race for windows, Stats, hooks and the step: every sample is in exactly one window.

The tests are about builds without the GIL, where threads run at the same time. They run on all builds.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    MakeStat = Callable[..., Any]

THREADS = 4
SAMPLES = 10_000  # of each thread

pytestmark = pytest.mark.usefixtures("frequent_switches")


@pytest.fixture
def open_windows(monitel: ModuleType) -> ModuleType:
    """Return the module."""
    return import_module("monitel.open_windows")


def test_one_stat_is_exact_while_everything_around_it_changes(
    make_stat: MakeStat, monitel: ModuleType, open_windows: ModuleType, events: list[Any], run_threads: Any
) -> None:
    """Four threads add while windows end, expire and are flushed, hooks and steps change, and a reader looks on."""
    stat, window = make_stat("x", None, 0.001), monitel._window
    running = [object()] * THREADS  # a thread that ends removes one; list.pop() is atomic on every build
    hook = window.set_value_hook(monitel.value.to_float)
    read = open_windows.open_windows

    def add(number: int) -> None:
        try:
            for sample in range(SAMPLES):
                stat.add((number + sample) % 7 if sample % 5 else True)  # integers, and a bool for the hook
        finally:
            running.pop()

    def disturb() -> None:
        step = 0
        while running:
            step += 1
            window.set_step(step % 10)
            window.set_value_hook(hook)
            stat.flush()
            monitel.close_expired_windows()
            for each in open_windows.decode(read()[0]):
                assert 0 < each.snapshot.count <= THREADS * SAMPLES

    window.set_step(0)
    run_threads(*(lambda number=number: add(number) for number in range(THREADS)), disturb, disturb)
    window.set_step(None)
    window.set_value_hook(hook)
    stat.flush()
    windows = sorted((event.window for event in events if event.window.name == "x"), key=lambda each: each.end_ns)
    wanted = [(number + sample) % 7 if sample % 5 else 1 for number in range(THREADS) for sample in range(SAMPLES)]
    assert len(wanted) == sum(each.count for each in windows)
    assert sum(wanted) == sum(each.sum for each in windows)
    assert (0, 6) == (min(each.min for each in windows), max(each.max for each in windows))
    assert [] == [pair for pair in pairwise(windows) if pair[0].end_ns > pair[1].start_ns]
    assert all(0 <= each.first_step <= 9 and 0 <= each.last_step <= 9 for each in windows)
    merged = windows[0].histogram
    for each in windows:
        histogram = each.histogram
        assert each.count == histogram.zero_count + sum(histogram.positive) + sum(histogram.negative)
        assert each.sum == histogram.sum
        merged = merged if each is windows[0] else merged.merge(histogram)
    assert wanted.count(0) == merged.zero_count
    assert len(wanted) - wanted.count(0) == sum(merged.positive)


@pytest.mark.parametrize("max_samples", [1, 3, 1000])
def test_sample_limit_is_exact(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], run_threads: Any, *, max_samples: int
) -> None:
    """Within one interval, threads together fill the window to the limit, and every other sample is discarded."""
    stat = make_stat("x", [monitel.COUNT], 1e9, max_samples)

    def add() -> None:
        for _ in range(SAMPLES // 10):
            stat.add(1.0)

    run_threads(*[add] * THREADS)
    assert [(max_samples, 1.0 * max_samples)] == [(event.window.count, event.window.sum) for event in events]
    assert (THREADS * SAMPLES // 10 - max_samples, 0) == (stat.discarded, stat.count)


def test_stats_that_come_and_go_keep_their_samples(
    make_stat: MakeStat, monitel: ModuleType, open_windows: ModuleType, events: list[Any], run_threads: Any
) -> None:
    """Threads make and drop Stats, half of them in cycles, while others collect garbage, flush and list all Stats."""
    made, running = THREADS * 300, [object()] * THREADS

    class Cyclic(monitel.Stat):  # type: ignore[misc,name-defined]
        pass

    def make() -> None:
        try:
            for number in range(300):
                if number % 2:
                    stat = Cyclic("comes and goes", [monitel.COUNT], 60.0)
                    stat.itself = stat
                else:
                    stat = make_stat("comes and goes", [monitel.COUNT])
                stat.add(1.0)
        finally:
            running.pop()

    def look() -> None:
        serials: set[int] = set()
        while running:
            stats = monitel._window.live()
            numbers = [stat._serial for stat in stats]
            assert sorted(set(numbers)) == numbers, "oldest first, each once"
            serials.update(numbers)
            open_windows.open_windows()
            monitel._window.expired()
            del stats
            gc.collect()

    def flush() -> None:
        while running:
            monitel.flush()

    run_threads(*[make] * THREADS, look, flush)
    gc.collect()
    monitel.flush()
    assert made == sum(event.window.count for event in events)
    assert [] == [stat for stat in monitel._window.live() if stat.name == "comes and goes"]


def test_expiry_closes_only_windows_that_have_ended(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any], run_threads: Any
) -> None:
    """Several threads close the expired window of one Stat: one of them does, and the next window stays open."""
    stat = make_stat()
    for _ in range(200):
        stat.add(1.0)
        clock.advance(60)
        run_threads(stat._close_expired, stat._close_expired, lambda: stat.add(1.0))
        assert 1 == stat.count
        stat.flush()
    assert 400 == sum(event.window.count for event in events)
    assert 400 == len(events)


def test_no_sample_is_missing_or_twice_in_a_reading(
    make_stat: MakeStat, monitel: ModuleType, open_windows: ModuleType, run_threads: Any
) -> None:
    """At each moment every sample is in the open window, in one that is handed over, or was passed to the handlers."""
    stat, read = make_stat("x", [monitel.SUM], 1e9), open_windows.open_windows
    added, handled, flushed = [0, 0], [0], [0]  # begun and done; before handlers, and after them
    running = [object()]

    def add() -> None:
        for _ in range(SAMPLES * 2):
            added[0] += 1
            stat.add(1.0)
            added[1] += 1
        running.pop()

    def handle(event: Any) -> None:
        if event.window.name == "x":
            handled[0] += event.window.count

    def close() -> None:
        while running:
            stat.flush()
            flushed[0] = handled[0]

    def look() -> None:
        while running:
            most_flushed, least = flushed[0], added[1]
            windows = open_windows.decode(read()[0])
            found = sum(window.snapshot.count for window in windows if window.serial == stat._serial)
            most, least_handled = added[0], handled[0]
            assert most_flushed + found <= most, "a sample is counted twice"
            assert least <= found + least_handled, "a sample is missing"

    monitel.register_event_handler(handle)
    run_threads(add, close, look)
    stat.flush()
    assert SAMPLES * 2 == handled[0]


def test_each_hook_is_replaced_once(monitel: ModuleType, run_threads: Any) -> None:
    """Threads that swap the value hook never get the same previous hook, and none is lost."""
    window, returned = monitel._window, []
    original = window.set_value_hook(monitel.value.to_float)
    hooks = [[lambda stat, value: 1.0 for _ in range(500)] for _ in range(THREADS)]

    def swap(own: list[Any]) -> None:
        returned.extend([window.set_value_hook(hook) for hook in own])

    def use() -> None:
        stat = monitel.Stat("x", [monitel.SUM], 1e9)
        for _ in range(2_000):
            stat.add(True)
        assert 2_000 == stat.count

    run_threads(*(lambda own=own: swap(own) for own in hooks), use)
    returned.append(window.set_value_hook(original))
    expected = Counter(map(id, (monitel.value.to_float, *(hook for own in hooks for hook in own))))
    assert expected == Counter(map(id, returned))


def test_one_stat_is_initialised_once(monitel: ModuleType, run_threads: Any) -> None:
    """Threads that call __init__() of one Stat at the same time give it one window."""
    for _ in range(50):
        stat = monitel.Stat.__new__(monitel.Stat)

        def begin(stat: Any = stat) -> None:
            stat.__init__("x", [monitel.HISTOGRAM, monitel.STDDEV], 1e9)
            stat.add(1.0)

        run_threads(begin, begin, begin)
        assert 3 == stat.count


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_child_of_a_busy_process_counts_exactly(run_script: Any) -> None:
    """A process forks while threads add to its Stat and read it: the child waits for no lock and starts empty.

    The threads do nothing else: without the GIL, a child may wait forever for a lock of the interpreter.
    """
    ended = run_script("""
import warnings

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
stat, stop, seen = Stat("x", [SUM], 1e9), threading.Event(), []

def add(add=stat.add):
    while not stop.is_set():
        for _ in range(1000):
            add(1.0)

def look(live=monitel._window.live):
    while not stop.is_set():
        for _ in range(1000):
            live()

threads = [threading.Thread(target=each) for each in (add, add, look)]
for thread in threads:
    thread.start()
monitel.register_event_handler(lambda event: seen.append(event.window.count))

def child():
    for _ in range(100):
        stat.add(1.0)
        other = Stat("z", [SUM], 60.0)
        other.add(1.0)
    monitel.flush()
    os._exit(sum(seen) != 200)

failed = 0
for _ in range(3):
    if (pid := os.fork()) == 0:
        within(10, child)
    failed += os.waitpid(pid, 0)[1] != 0
stop.set()
for thread in threads:
    thread.join()
say("failed", failed)
""")
    assert ["failed 0"] == ended.lines
