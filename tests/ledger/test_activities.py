"""Activities: their durations add up to the elapsed time, whatever enters and leaves, in whatever order."""

from __future__ import annotations

import asyncio
import gc
import signal
from contextlib import suppress
from itertools import pairwise
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import ModuleType


class Time:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def __call__(self) -> int:
        return self.now_ns


class Book:
    """The activities of a package that begin at 1,000 ns, with a clock of the test."""

    def __init__(self, monitel: ModuleType) -> None:
        self.time = Time()
        module = monitel.activities
        self.made = module.Activities(module._new_name, module._decorate, self.time)
        self.made.begin(1000, "startup", "other")
        self.activity = self.made.activity

    def wait(self, ns: int) -> None:
        """Let time pass."""
        self.time.now_ns += ns

    @property
    def totals(self) -> dict[str, int]:
        """Nanoseconds by name; they add up."""
        elapsed_ns, totals, current, _ = self.made.read()
        assert self.time.now_ns - 1000 == elapsed_ns == sum(totals.values())
        assert current in totals
        return {name: total for name, total in totals.items() if total}

    @property
    def ignored(self) -> int:
        """Number of entries without effect."""
        return int(self.made.read()[3])


@pytest.fixture
def book(monitel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Book:
    """Activities with a clock of the test; those of decorated functions count there too."""
    book = Book(monitel)
    monkeypatch.setattr(monitel.activities, "_activity", book.activity)
    return book


def test_nested_activities_belong_to_the_innermost(book: Book) -> None:
    """An inner activity interrupts the outer one."""
    book.wait(1)
    with book.activity("evaluation"):
        book.wait(20)
        with book.activity("data"):
            book.wait(300)
        book.wait(4000)
    book.wait(50000)
    assert {"startup": 1, "evaluation": 4020, "data": 300, "other": 50000} == book.totals


def test_startup_lasts_until_the_first_step(book: Book) -> None:
    """What belongs to a start does not end it."""
    for name in ("init", "compile", "data", "checkpoint.load"):
        with book.activity(name):
            book.wait(1)
        book.wait(10)
    book.made.end_startup("step")
    book.wait(500)
    with book.activity("data"):
        book.wait(1000)
    expected = {"startup": 40, "init": 1, "compile": 1, "data": 1001, "checkpoint.load": 1, "step": 500}
    assert expected == book.totals


def test_without_steps_the_rest_is_other(book: Book) -> None:
    """The first activity that is not part of a start ends startup; a step can still come."""
    book.wait(1)
    with book.activity("rollout"):
        book.wait(2)
    book.wait(4)
    book.made.end_startup("step")
    book.wait(8)
    assert {"startup": 1, "rollout": 2, "other": 4, "step": 8} == book.totals


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 10**12)), max_size=60))
def test_any_nesting_adds_up(monitel: ModuleType, actions: list[tuple[int, int]]) -> None:
    """Activities that enter and leave in any order, several times: the durations are those of a simple model."""
    book = Book(monitel)
    names = ["evaluation", "data", "a", "a", "step"]
    made = [book.activity(name) for name in names]
    expected: dict[str, int] = {}
    stack: list[int] = []
    between, starting = "startup", True
    for action, ns in actions:
        book.wait(ns)
        current = names[stack[-1]] if stack else between
        expected[current] = expected.get(current, 0) + ns
        if action < 5:
            made[action].__enter__()
            stack.append(action)
            if starting and names[action] != "data":
                between, starting = "other", False
        elif action < 10:
            made[action - 5].__exit__(None, None, None)
            if action - 5 in stack:
                del stack[len(stack) - 1 - stack[::-1].index(action - 5)]
        elif action == 10:
            book.made.end_startup("step")
            between, starting = "step", False
        else:
            assert {name: total for name, total in expected.items() if total} == book.totals
    assert {name: total for name, total in expected.items() if total} == book.totals


def test_reads_add_up_while_activities_change(monitel: ModuleType) -> None:
    """A reader in another thread finds sums that add up, and time and totals that only rise."""
    found, done = [], Event()

    def read() -> None:
        while not done.is_set():
            found.append(monitel.ledger())

    reader = Thread(target=read)
    reader.start()
    try:
        while len(found) < 2000:
            with monitel.activity("evaluation"), monitel.activity("data"):
                pass
    finally:
        done.set()
        reader.join()
    for each in found:
        assert each.elapsed_ns == sum(each.activities.values())
    for one, other in pairwise(found):
        assert one.elapsed_ns <= other.elapsed_ns
        assert all(total <= other.activities[name] for name, total in one.activities.items() if total)


def test_exceptions_leave_activities(book: Book) -> None:
    """The exception goes on, and the activity is over."""
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with suppress(BaseException), book.activity("evaluation"):
            book.wait(1)
            raise error
        book.wait(10)
    assert {"evaluation": 3, "other": 30} == book.totals


def test_suspended_generators_remove_their_own_entry(book: Book) -> None:
    """A generator that ends while something else is innermost does not end that."""

    def batches() -> Iterator[int]:
        with book.activity("data"):
            yield 1

    generator = batches()
    next(generator)
    book.wait(1)
    with book.activity("evaluation"):
        book.wait(10)
        generator.close()
        book.wait(100)
    book.wait(1000)
    assert {"data": 1, "evaluation": 110, "other": 1000} == book.totals


def test_a_lost_activity_is_over(book: Book) -> None:
    """An activity that is garbage-collected between its ends stops counting."""
    lost = book.activity("data")
    lost.__enter__()
    book.wait(1)
    with book.activity("evaluation"):
        del lost
        gc.collect()
        book.wait(10)
    book.wait(100)
    totals = book.totals
    assert {"evaluation": 10, "other": 100} == {name: totals[name] for name in ("evaluation", "other")}


def test_tasks_leave_in_any_order(book: Book) -> None:
    """Tasks that interleave do not nest: each removes its own entry, and the one that entered last counts."""

    async def main() -> None:
        entered, left = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            with book.activity("a"):
                book.wait(1)
                entered.set()
                await left.wait()
                book.wait(10)

        async def second() -> None:
            await entered.wait()
            with book.activity("b"):
                book.wait(100)
                left.set()
                await asyncio.sleep(0)
                book.wait(1000)
            book.wait(10000)

        await asyncio.gather(first(), second())

    asyncio.run(main())
    totals = book.totals
    assert 1 == totals["a"]
    assert 1110 == totals["b"]
    assert 10000 == totals["other"]


def test_functions_of_all_kinds_are_decorated(monitel: ModuleType, book: Book) -> None:
    """A generator counts while it runs, and not while its consumer does; a function may call itself."""

    @monitel.activity("evaluation")
    def factorial(n: int) -> int:
        book.wait(1)
        return n * factorial(n - 1) if n else 1

    @monitel.activity("data")
    def batches() -> Iterator[int]:
        for batch in range(2):
            book.wait(10)
            yield batch

    @monitel.activity("a")
    async def load() -> int:
        await asyncio.sleep(0)
        book.wait(100)
        return 7

    @monitel.activity("b")
    async def stream() -> AsyncIterator[int]:
        book.wait(1000)
        yield 1

    async def consume() -> list[int]:
        return [each async for each in stream()]

    assert 6 == factorial(3)
    for _batch in batches():
        book.wait(10**6)
    assert (7, [1]) == (asyncio.run(load()), asyncio.run(consume()))
    assert {"evaluation": 4, "data": 20, "other": 2 * 10**6, "a": 100, "b": 1000} == book.totals


def in_thread(function: Any) -> None:
    """Run a function in another thread, to its end."""
    thread = Thread(target=function)
    thread.start()
    thread.join()


def test_other_threads_are_ignored_and_counted(book: Book) -> None:
    """One object may be entered by several threads at once; each leaves what it has entered."""
    shared = book.activity("data")

    def other() -> None:
        with shared, book.activity("evaluation"):
            book.wait(1)

    in_thread(other)
    assert 2 == book.ignored
    with shared:
        in_thread(other)
        book.wait(10)
    assert {"startup": 1, "data": 11} == book.totals
    assert 4 == book.ignored


def test_an_activity_may_be_left_by_another_thread(book: Book) -> None:
    """As a generator is that the garbage collector closes there."""
    activity = book.activity("evaluation")
    activity.__enter__()
    book.wait(1)
    in_thread(lambda: activity.__exit__(None, None, None))
    book.wait(10)
    assert {"evaluation": 1, "other": 10} == book.totals


def test_the_first_thread_with_a_step_is_the_owner(book: Book) -> None:
    """What the main thread was in does not count any longer."""

    def train() -> None:
        book.made.end_startup("step")
        book.wait(10)
        with book.activity("data"):
            book.wait(100)

    with book.activity("init"):
        book.wait(1)
        in_thread(train)
        with book.activity("evaluation"):
            book.wait(1000)
    assert {"init": 1, "step": 1010, "data": 100} == book.totals
    assert 1 == book.ignored


def test_depth_is_limited(book: Book) -> None:
    """Activities nested more deeply than 256 count as the one around them."""
    deep = [book.activity("a") for _ in range(300)]
    for each in deep:
        each.__enter__()
    inner = book.activity("b")
    with inner:
        book.wait(1)
    for each in reversed(deep):
        each.__exit__(None, None, None)
    book.wait(10)
    assert {"a": 1, "other": 10} == book.totals
    assert 45 == book.ignored


def test_a_clock_that_goes_back_takes_nothing(book: Book) -> None:
    """Time that has been counted stays, as between two threads whose readings change places."""
    book.wait(100)
    with book.activity("evaluation"):
        book.time.now_ns -= 50
    assert (100, {"startup": 100, "other": 0}) == book.made.read()[:2]


def test_signal_handlers_may_enter_and_read(monitel: ModuleType) -> None:
    """A handler that interrupts a change finds, and leaves, sums that add up."""
    found = []

    def handle(*_signal: object) -> None:
        with monitel.activity("stuck"):
            book = monitel.ledger()
            found.append(book.elapsed_ns - sum(book.activities.values()))

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while len(found) < 100:
            with monitel.activity("evaluation"):
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert {0} == {*found}
    book = monitel.ledger()
    assert book.elapsed_ns == sum(book.activities.values())
    assert book.current in {"startup", "other"}


def test_names_are_checked_and_bounded(monitel: ModuleType) -> None:
    """A wrong name is refused; beyond 64 names further ones count as other."""
    with pytest.raises(TypeError, match="activity name must be a str"):
        monitel.activity(3)
    with pytest.raises(ValueError, match="must not be empty"):
        monitel.activity("")
    for number in range(100):
        with monitel.activity(f"activity {number}"):
            pass
    assert "other" == monitel.activity("one more").name
    assert "evaluation" == monitel.activity("evaluation").name
    assert 64 >= len(monitel.ledger().activities)


def test_a_ledger_has_goodput_from_the_first_step_on(monitel: ModuleType) -> None:
    """Without a step it is undefined, and not 0."""
    assert monitel.ledger().goodput is None
    monitel.set_step(5)
    with monitel.activity("evaluation"):
        pass
    book = monitel.ledger()
    assert book.activities["step"] / book.elapsed_ns == book.goodput
    assert ["startup", "step", "evaluation"] == list(book.activities)
    assert "step" == book.current
