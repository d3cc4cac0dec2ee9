"""Threads: every sample, event, wait and amount counts exactly once, and nothing waits for a handler.

Builds without the GIL run the threads at the same time; with the GIL they take turns as often as they can.
"""

import gc
import threading
from collections.abc import Callable
from functools import partial
from itertools import cycle, pairwise
from types import ModuleType
from typing import Any

import pytest
from tests.support.inbox import DEADLINE
from tests.support.producers import repeating, run_together
from tests.support.twins import MakeStat

import monitel as installed

THREADS = 4
SAMPLES = 5_000  # of each thread

pytestmark = pytest.mark.usefixtures("frequent_switches")


def test_stat_is_exact_while_everything_around_it_changes(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any]
) -> None:
    """Four threads add while windows end, expire and are flushed, handlers come and go, and the step changes."""
    stat, steps = make_stat("x", None, 0.001), cycle(range(10))
    wanted = [float((number + sample) % 7) for number in range(THREADS) for sample in range(SAMPLES)]

    def add(number: int) -> None:
        for sample in wanted[number * SAMPLES : (number + 1) * SAMPLES]:
            stat.add(sample)

    def disturb() -> None:
        monitel.set_step(next(steps))
        with monitel.register_event_handler(lambda _event: None):
            stat.flush()
        monitel.close_expired_windows()
        monitel.flush()
        assert stat.count >= 0
        stat.get()

    monitel.set_step(0)
    with repeating(disturb, disturb):
        run_together(*(partial(add, number) for number in range(THREADS)))
    stat.flush()
    windows = sorted((event.window for event in events), key=lambda window: int(window.end_ns))
    assert (len(wanted), sum(wanted)) == (sum(each.count for each in windows), sum(each.sum for each in windows))
    assert (0, 6) == (min(each.min for each in windows), max(each.max for each in windows))
    assert [] == [pair for pair in pairwise(windows) if pair[0].end_ns > pair[1].start_ns]
    assert all(0 <= each.first_step <= 9 and 0 <= each.last_step <= 9 for each in windows)
    for each in windows:
        histogram = each.histogram
        assert (each.count, each.sum) == (histogram.count, histogram.sum)
        assert each.count == histogram.zero_count + sum(histogram.positive) + sum(histogram.negative)
    assert wanted.count(0.0) == sum(each.histogram.zero_count for each in windows)


def test_sample_limit_is_exact(make_stat: MakeStat, events: list[Any]) -> None:
    """Within one interval, threads fill the window to the limit, and every other sample is discarded and counted."""
    stat = make_stat("x", [], 1e9, 7)
    run_together(*[lambda: [stat.add(1.0) for _ in range(SAMPLES // 5)]] * THREADS)
    assert [(7, 7.0)] == [(event.window.count, event.window.sum) for event in events]
    assert (THREADS * SAMPLES // 5 - 7, 0) == (stat.discarded, stat.count)


def test_slow_handler_stops_no_other_thread(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """Others log, register, and close windows of the same Stat meanwhile; get() has the window that ended last."""
    stat = make_stat("x", None, 60.0, 1)
    running, done, in_time = threading.Event(), threading.Event(), []

    def slow(event: Any) -> None:
        if event.window is not None and event.window.sum == 1:
            running.set()
            in_time.append(done.wait(DEADLINE))

    def other() -> None:
        in_time.append(running.wait(DEADLINE))
        clock.advance(60)
        stat.add(2)
        with monitel.register_event_handler(lambda event: None):
            monitel.stat("y").add(3)
            monitel.flush()
            monitel.emit("quick")
        in_time.append(stat.get()[monitel.SUM] == 2.0)
        done.set()

    with monitel.register_event_handler(slow):
        run_together(lambda: stat.add(1), other)
    assert [True] * 3 == in_time
    assert [1.0, 2.0, 3.0] == [event.window.sum for event in events if event.window]
    assert 2.0 == stat.get()[monitel.SUM]


def test_handler_runs_in_the_thread_that_closes_the_window(
    make_stat: MakeStat, monitel: ModuleType, clock: Any
) -> None:
    seen: list[int] = []

    def close_here(close: Callable[[], object]) -> None:
        close()
        assert threading.get_ident() == seen.pop()

    full, idle = make_stat("x", None, 60.0, 1), make_stat("y")
    idle.add(1)
    clock.advance(60)
    with monitel.register_event_handler(lambda event: seen.append(threading.get_ident())):
        for close in (partial(full.add, 1), monitel.close_expired_windows):
            run_together(partial(close_here, close))


def test_stats_that_come_and_go_keep_their_samples(make_stat: MakeStat, monitel: ModuleType, events: list[Any]) -> None:
    """Threads make and drop Stats, half of them in cycles, while others collect garbage and flush all Stats."""
    each = 150

    class Cyclic(monitel.Stat):  # type: ignore[misc, name-defined]
        pass

    def make() -> None:
        for number in range(each):
            stat = Cyclic("x", [monitel.COUNT], 60.0) if number % 2 else make_stat("x", [monitel.COUNT])
            if number % 2:
                stat.itself = stat
            stat.add(1.0)

    def look() -> None:
        gc.collect(0)
        monitel.flush()

    with repeating(look, look):
        run_together(*[make] * THREADS)
    gc.collect()
    assert THREADS * each == sum(event.window.count for event in events)


def test_one_stat_is_made_for_a_name(monitel: ModuleType, events: list[Any]) -> None:
    """Threads that ask for it at the same time get the same one, and no sample is lost."""

    def add() -> None:
        for number in range(200):
            monitel.stat(f"x{number}", attributes={"split": "train"}).add(1)

    run_together(*[add] * THREADS)
    assert [] == events
    monitel.flush()
    assert {f"x{number}": THREADS for number in range(200)} == {e.window.name: e.window.count for e in events}
    assert 200 == len(events)


def test_each_event_reaches_each_handler_once(events: list[Any]) -> None:
    """Threads log while others register, unregister and flush; a handler gets the events between these two calls."""

    def log(thread: int) -> None:
        for number in range(500):
            installed.emit("race", thread=thread, number=number)

    def change() -> None:
        for _ in range(500):
            own: list[Any] = []
            with installed.register_event_handler(own.append):
                installed.emit("own", thread=threading.get_ident(), number=0)
            installed.flush()
            assert threading.get_ident() in {event.data["thread"] for event in own if event.name == "own"}

    run_together(*(partial(log, thread) for thread in range(2)), *[change] * THREADS)
    found = sorted((event.data["thread"], event.data["number"]) for event in events if event.name == "race")
    assert [(thread, number) for thread in range(2) for number in range(500)] == found
    assert 500 * THREADS == [event.name for event in events].count("own")


def test_counter_is_exact() -> None:
    """Threads get one counter of a name; the total never falls for a reader."""
    seen = [0.0]

    def add(amount: int) -> None:
        for _ in range(SAMPLES):
            installed.counter("tokens").add(amount)

    with repeating(lambda: seen.extend(reading.total for reading in installed.counters())):
        run_together(*(partial(add, amount) for amount in range(1, THREADS + 1)))
    assert sorted(seen) == seen
    assert [sum(range(1, THREADS + 1)) * SAMPLES] == [reading.total for reading in installed.counters()]


def test_waits_are_exact(clock: Any) -> None:
    """Threads wait at the same time, and a wait may end in another thread than it began."""
    guards: list[Any] = []

    def wait() -> None:
        for _ in range(SAMPLES // 10):
            with installed.WaitCounter("data").guard():
                pass
        guards.append(installed.WaitCounter("data").guard())
        guards[-1].__enter__()

    run_together(*[wait] * THREADS)
    clock.advance(2)
    reading = installed.wait_counters()["data"]
    assert (THREADS * SAMPLES // 10, THREADS) == (reading.count, reading.active)
    for guard in guards:
        guard.__exit__(None, None, None)
    expected = (THREADS * (SAMPLES // 10 + 1), 2.0 * THREADS, 2.0, 0)
    assert installed.WaitReading(*expected) == installed.wait_counters()["data"]
