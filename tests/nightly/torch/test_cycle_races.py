"""Threads that race for one cycle: each nanosecond is in one stage of one cycle, and no iterator is lost or kept.

The tests are about builds without the GIL, where threads run at the same time. They run on all builds, without torch.
The Python twin relies on the GIL, and is not tested here.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pytest
from tests.nightly.leaks.cases import extension

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 4
ROUNDS = 1500  # of each thread

pytestmark = pytest.mark.usefixtures("frequent_switches")


class Loader:
    """An iterator that can have weak references."""


@pytest.fixture
def make_cycle(both_twins: Any) -> Callable[..., Any]:
    """Return the type in C."""
    assert both_twins
    made: Callable[..., Any] = extension("torch.stages._cycle_c").Cycle
    return made


def test_every_nanosecond_is_in_one_stage(make_cycle: Callable[..., Any], run_threads: Any) -> None:
    """Four threads train, wait and ask for batches of shared and of new iterators; another replaces the function."""
    cycles: list[list[int]] = []
    cycle = make_cycle(cycles.append)
    running = [object()] * THREADS  # a thread that ends removes one; list.pop() is atomic on every build
    shared = [Loader() for _ in range(20)]

    def train(thread: int) -> None:
        try:
            for number in range(ROUNDS):
                now = iter(range(1000 + 100 * number + thread, 1 << 60, 7)).__next__
                iterator = shared[number % 20] if number % 3 else Loader()
                cycle.batch_began(now())
                cycle.batch_ended(now(), iterator, 1 if number % 5 else None, bool(number % 7))
                cycle.backward_began(now())
                cycle.gradients_complete()
                cycle.waited(number % 4)
                if number % 11 == 0:
                    cycle.optimizer_began_in_backward()
                cycle.backward_ended(now())
                cycle.optimizer_began(now())
                cycle.optimizer_ended(now())
        finally:
            running.pop()

    def disturb() -> None:
        while running:
            cycle.__init__(partial(cycles.append))
            cycle._ended = cycles.append
            assert 0 <= cycle.remembered <= 16
            assert {cycle.asks, cycle.trains} <= {False, True}
            assert 0 <= cycle.forward_since_ns
            stage, waits, since_ns = cycle.in_flight()
            assert stage in {"optimizer", "other", "data", "forward", "backward"}
            assert waits in {False, True}
            assert 500 <= since_ns

    cycle.backward_ended(500)  # the first cycle begins
    cycle.optimizer_ended(500)
    run_threads(*(partial(train, thread) for thread in range(THREADS)), disturb)
    end, waited = 1000 * ROUNDS, THREADS * sum(number % 4 for number in range(ROUNDS))
    cycle.backward_began(end)
    cycle.backward_ended(end)
    cycle.optimizer_ended(end)
    assert None is cycles[0]
    assert waited == cycle.waited() == sum(stages[-1] for stages in cycles[1:])
    assert end - waited - 500 == sum(sum(stages[:-1]) for stages in cycles[1:])


def test_iterators_are_released(make_cycle: Callable[..., Any], run_threads: Any) -> None:
    """A cycle that threads share keeps no iterator alive, while iterators end and others are added."""
    cycle = make_cycle(lambda _stages: None)
    alive: WeakSet[Loader] = WeakSet()

    def ask(thread: int) -> None:
        for number in range(ROUNDS):
            iterator = Loader()
            if number % 100 == 0:
                alive.add(iterator)
            cycle.batch_ended(number, iterator, 1, True)
            cycle.batch_ended(number, iterator, None if number % 2 else 1, True)
            if number % (10 + thread) == 0:
                cycle.backward_began(number)

    run_threads(*(partial(ask, thread) for thread in range(THREADS)))
    assert 16 >= cycle.remembered
    gc.collect()
    assert 0 == len(alive)
