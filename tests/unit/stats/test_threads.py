"""Stats and handlers from several threads: no sample is lost, and nothing waits for a handler."""

from __future__ import annotations

import os
import sys
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    MakeStat = Callable[..., Any]

DEADLINE = 60.0  # seconds


@pytest.fixture
def slow_handler() -> Iterator[Callable[[Any], int]]:
    """Return a handler that releases the GIL, as I/O does, and switch between threads often."""
    null = os.open(os.devnull, os.O_WRONLY)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield lambda event: os.write(null, b"event")
    sys.setswitchinterval(interval)
    os.close(null)


@pytest.mark.parametrize("max_samples", [1, 7, 2**63 - 1])
def test_four_threads_are_counted_exactly(
    make_stat: MakeStat,
    monitel: ModuleType,
    events: list[Any],
    run_threads: Any,
    slow_handler: Callable[[Any], int],
    *,
    max_samples: int,
) -> None:
    """While four threads add, windows close and handlers change: every sample is counted once."""
    stat = make_stat("x", None, 0.001, max_samples)
    monitel.register_event_handler(slow_handler)

    def add() -> None:
        for _ in range(20_000):
            stat.add(1.0)

    def close() -> None:
        for _ in range(500):
            with monitel.register_event_handler(slow_handler):
                stat.flush()
            monitel.close_expired_windows()
            monitel.flush()

    run_threads(add, add, add, add, close)
    stat.flush()
    windows = sorted((event.window for event in events), key=lambda window: window.end_ns)
    assert 80_000 == stat.discarded + sum(window.count for window in windows)
    assert 80_000 == stat.discarded + sum(window.sum for window in windows)
    assert (max_samples < 10, 0) == (stat.discarded > 0, stat.count)
    assert [] == [pair for pair in pairwise(windows) if pair[0].end_ns > pair[1].start_ns]


def test_slow_handler_does_not_block(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any], run_threads: Any
) -> None:
    """While a slow handler runs, another thread logs, registers, and closes windows of the same Stat."""
    stat = make_stat("x", None, 60.0, 1)
    running, done = threading.Event(), threading.Event()

    def slow(event: Any) -> None:
        if event.window.sum == 1:
            running.set()
            assert done.wait(DEADLINE), "the other thread waits for this handler"

    def other() -> None:
        assert running.wait(DEADLINE)
        clock.advance(60)
        stat.add(2)
        with monitel.register_event_handler(lambda event: None):
            monitel.stat("y").add(3)
            monitel.flush()
        assert (2.0, 0) == (stat.get()[monitel.SUM], stat.count)
        done.set()

    monitel.register_event_handler(slow)
    run_threads(lambda: stat.add(1), other)
    assert [1.0, 2.0, 3.0] == [event.window.sum for event in events]
    assert 2.0 == stat.get()[monitel.SUM], "the window that ended last, not the one whose handler did"


def test_get_is_of_the_window_that_ended_last(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """get() keeps the latest window if a thread logs an earlier window later."""
    stat = make_stat()
    for sample in (1, 2):
        stat.add(sample)
        clock.advance(1)
        stat.flush()
    earlier = events[0].window
    snapshot = monitel.snapshot.Snapshot
    stat._log_closed(snapshot(*(getattr(earlier, name) for name in snapshot._fields)), None)
    assert [1.0, 2.0, 1.0] == [event.window.sum for event in events]
    assert 2.0 == stat.get()[monitel.SUM]


def test_handlers_run_in_the_thread_that_closes(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, run_threads: Any
) -> None:
    """A handler runs in the thread that closes the window; no thread is started for it."""
    seen: list[threading.Thread] = []
    monitel.register_event_handler(lambda event: seen.append(threading.current_thread()))
    closers: list[threading.Thread] = []
    stats = [make_stat("x", None, 60.0, 1), make_stat("y")]
    stats[1].add(1)

    def close(action: Callable[[], object]) -> None:
        closers.append(threading.current_thread())
        action()

    clock.advance(60)
    run_threads(lambda: close(lambda: stats[0].add(1)))
    run_threads(lambda: close(monitel.close_expired_windows))
    assert closers == seen


def test_stats_of_all_threads_are_known(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], run_threads: Any, slow_handler: Callable[[Any], int]
) -> None:
    """Threads that create and drop Stats do not disturb each other, nor a flush of all Stats."""
    kept: list[Any] = []

    def make() -> None:
        for number in range(300):
            stat = make_stat(f"x{number % 2}")
            stat.add(1)
            if number % 2:
                kept.append(stat)

    monitel.register_event_handler(slow_handler)
    run_threads(make, make, make, make, lambda: [monitel.flush() for _ in range(20)])
    monitel.flush()
    assert (600, 0) == (len(kept), sum(stat.count for stat in kept))
    names = [event.window.name for event in events]
    assert (600, 600) == (names.count("x0"), names.count("x1"))


def test_threads_get_one_stat_of_a_name(
    monitel: ModuleType, events: list[Any], run_threads: Any, slow_handler: Callable[[Any], int]
) -> None:
    """Threads that request one name at the same time get the same Stat, and no sample is lost."""

    def add() -> None:
        for number in range(200):
            monitel.stat(f"x{number}").add(1)

    run_threads(add, add, add, add)
    assert {4} == {monitel.stat(f"x{number}").count for number in range(200)}
    assert [] == events
