"""Threads that race for handlers, hooks, wait counters and their sources: nothing is lost, and nothing raises.

The tests are about builds without the GIL, where threads run at the same time. They run on all builds.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

THREADS = 4
ROUNDS = 1500  # of each thread

pytestmark = pytest.mark.usefixtures("frequent_switches")


def test_a_handler_receives_each_event_once(
    monitel: ModuleType, events: list[Any], run_threads: Callable[..., None]
) -> None:
    """Four threads log while other handlers, and functions before a flush, come and go."""
    module = import_module("monitel.before_flush")

    def log(thread: int) -> None:
        for number in range(ROUNDS):
            monitel.emit("race", thread=thread, number=number)

    def change() -> None:
        for _ in range(ROUNDS):
            with monitel.register_event_handler(lambda event: None):
                function = partial(int)
                module.register(function)
                module.run()
                module.unregister(function)

    run_threads(*(partial(log, thread) for thread in range(THREADS)), change, change)
    found = [(event.data["thread"], event.data["number"]) for event in events]
    assert sorted(found) == [(thread, number) for thread in range(THREADS) for number in range(ROUNDS)]
    assert 1 == len(monitel.handlers._handlers)  # that of the fixture
    assert () == module._functions


def test_each_details_hook_is_returned_once(monitel: ModuleType, run_threads: Callable[..., None]) -> None:
    """A hook that is replaced is the previous one of exactly one call."""
    handlers = monitel.handlers
    first = handlers._details_hook
    returned: list[Any] = []
    hooks = [partial(first) for _ in range(THREADS * ROUNDS)]

    def swap(mine: list[Any]) -> None:
        found = list(map(handlers.set_details_hook, mine))
        returned.extend(found)  # atomic on every build

    run_threads(*(partial(swap, hooks[thread::THREADS]) for thread in range(THREADS)))
    returned.append(handlers.set_details_hook(first))
    assert {*map(id, [first, *hooks])} == {*map(id, returned)}
    assert len(hooks) + 1 == len(returned)


def test_waits_are_exact_while_their_mirror_changes(
    monitel: ModuleType, clock: Any, run_threads: Callable[..., None]
) -> None:
    """Every wait is counted once; a mirror that is removed in the middle of a wait breaks nothing."""
    waits = monitel.WaitCounter("race.mirror")
    ended: list[int] = []

    def wait() -> None:
        for _ in range(ROUNDS):
            with waits.guard():
                pass

    def change() -> None:
        for _ in range(ROUNDS):
            monitel.wait_counter._mirror(lambda *_wait: None, ended.append)
            monitel.wait_counter._mirror(None, None)

    run_threads(*[wait] * THREADS, change)
    assert monitel.WaitReading(THREADS * ROUNDS, 0.0, 0.0, 0) == monitel.wait_counters()["race.mirror"]


def test_totals_of_a_source_outlive_it(monitel: ModuleType, run_threads: Callable[..., None]) -> None:
    """A reader that has found the key of a source finds it in each later reading, although sources are removed."""
    counter = monitel.wait_counter
    sources = [lambda key=key: {key: monitel.WaitReading(5, 1.0, 0.5, 0)} for key in map(str, range(ROUNDS // 5))]
    done: list[bool] = []
    lost: list[set[str]] = []

    def change() -> None:
        try:
            for source in sources:
                counter.add_source(source)
                counter.remove_source(source)
        finally:
            done.append(True)

    def read() -> None:
        known: set[str] = set()
        while not done:
            found = {*monitel.wait_counters()}
            lost.append(known - found)
            known = found

    run_threads(change, read, read)
    assert {*map(str, range(ROUNDS // 5))} <= {*monitel.wait_counters()}
    assert set() == set().union(*lost)


def test_the_function_of_each_step_may_be_removed_at_any_time(
    monitel: ModuleType, run_threads: Callable[..., None]
) -> None:
    """A step is set completely whether the function is called with it or not."""
    step = import_module("monitel.step")
    seen: list[int] = []

    def train() -> None:
        for number in range(ROUNDS):
            monitel.set_step(number)

    def change() -> None:
        for _ in range(ROUNDS):
            step.watch(seen.append)
            step.unwatch(seen.append)

    run_threads(train, change, change)
    step.unwatch(seen.append)
    assert ROUNDS - 1 == monitel.get_step()
    assert seen == sorted(seen)


def test_threads_that_ask_for_one_stat_get_one(
    monitel: ModuleType, events: list[Any], run_threads: Callable[..., None]
) -> None:
    """Stats that are created by name at the same time are the same object, with all samples."""

    def add() -> None:
        for number in range(ROUNDS // 5):
            monitel.stat(f"race.{number}", attributes={"split": "train"}).add(1)

    run_threads(*[add] * THREADS)
    monitel.flush()
    found = {event.window.name: event.window.count for event in events}
    assert found == {f"race.{number}": THREADS for number in range(ROUNDS // 5)}
    assert len(found) == len(events)
