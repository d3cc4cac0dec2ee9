"""Threads that race for the ledger: one becomes the training thread, and names stay within their limit.

The tests are about builds without the GIL, where threads run at the same time. They run on all builds.
"""

from __future__ import annotations

from functools import partial
from threading import Barrier, Event, Thread
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

DEADLINE = 60.0  # seconds
THREADS = 4
NAMES = 64


@pytest.fixture(autouse=True)
def new_ledger(monitel: ModuleType) -> Iterator[None]:
    """Leave a ledger without a training thread to other tests."""
    yield
    monitel.activities._open()


@pytest.mark.usefixtures("frequent_switches")
def test_one_of_several_threads_becomes_the_training_thread(monitel: ModuleType) -> None:
    """All set the first step at once; while the training thread lives, the end of the others changes nothing."""
    for _ in range(20):
        monitel.activities._open()
        together = Barrier(THREADS + 1)
        ends = [Event() for _ in range(THREADS)]

        def train(end: Event, together: Barrier = together) -> None:
            together.wait(DEADLINE)
            monitel.set_step(1)
            together.wait(DEADLINE)
            assert end.wait(DEADLINE)

        threads = [Thread(target=train, args=[end], daemon=True) for end in ends]
        for thread in threads:
            thread.start()
        together.wait(DEADLINE)
        together.wait(DEADLINE)
        owner = monitel.activities.position()[0]
        (owning,) = (number for number, thread in enumerate(threads) if thread.ident == owner)
        vacant = []
        for number in [*(each for each in range(THREADS) if each != owning), owning]:
            ends[number].set()
            threads[number].join(DEADLINE)
            vacant.append(monitel.activities.vacant)
        assert [False] * (THREADS - 1) + [True] == vacant


@pytest.mark.usefixtures("frequent_switches")
def test_threads_together_add_no_more_names_than_one(monitel: ModuleType, run_threads: Callable[..., None]) -> None:
    """Beyond 64 names, those of all threads count as ``other``."""

    def enter(thread: int) -> None:
        for number in range(NAMES):
            monitel.activity(f"{thread}.{number}")

    for _ in range(5):
        monitel.activities._open()
        run_threads(*(partial(enter, thread) for thread in range(THREADS)))
        assert NAMES == len(monitel.activities._own_names) + len(monitel.activities.ACTIVITIES)
