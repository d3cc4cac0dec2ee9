"""Threads that race for pending samples: each value counts once, and each window is logged once.

The tests are about builds without the GIL, where threads run at the same time. They run on all builds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeStat = Callable[..., Any]

ROUNDS = 300
SAMPLES = 8

pytestmark = pytest.mark.usefixtures("frequent_switches")


def test_two_threads_that_resolve_the_same_values_count_them_once(
    make_stat: MakeStat, clock: Any, events: list[Any], run_threads: Callable[..., None]
) -> None:
    """A flush that fetches values races with the thread that receives them, while a third one flushes."""
    stat = make_stat()
    rounds: list[list[Any]] = []
    for _ in range(ROUNDS):
        samples: list[Any] = []
        for _ in range(SAMPLES):
            stat._add_pending(samples.append, lambda: None)
        stat.add(100.0)
        stat.flush()
        rounds.append(samples)
    assert [] == events

    def resolve() -> None:
        for samples in rounds:
            for number, sample in enumerate(samples):
                sample.resolve(float(number))
            stat._log_resolved()

    run_threads(resolve, resolve, lambda: [stat.flush() for _ in range(ROUNDS)])
    assert [(SAMPLES + 1, sum(range(SAMPLES)) + 100.0)] * ROUNDS == [
        (event.window.count, event.window.sum) for event in events
    ]


def test_threads_that_add_pending_samples_get_distinct_ones(
    make_stat: MakeStat, clock: Any, events: list[Any], run_threads: Callable[..., None]
) -> None:
    """Four threads add to one Stat while a fifth one flushes: every sample is in exactly one window."""
    stat = make_stat()
    running = [object()] * 4  # a thread that ends removes one; list.pop() is atomic on every build
    waiting: list[Any] = []

    def add() -> None:
        try:
            for _ in range(ROUNDS):
                stat._add_pending(waiting.append, lambda: None)
        finally:
            running.pop()

    def flush() -> None:
        while running:
            stat.flush()
            while waiting:
                waiting.pop().resolve(1.0)

    run_threads(add, add, add, add, flush)
    while waiting:
        waiting.pop().resolve(1.0)
    stat.flush()
    assert 4 * ROUNDS == sum(event.window.count for event in events)
    assert 4.0 * ROUNDS == sum(event.window.sum for event in events)
