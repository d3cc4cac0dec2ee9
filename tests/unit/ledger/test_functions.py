"""Activities around functions of all kinds, tasks and generators, which suspend in the middle."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.ledger.books import decorator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator
    from types import ModuleType

    from tests.unit.ledger.books import Book


def test_suspended_generators_remove_their_own_entry(book: Book) -> None:
    """A generator that ends while something else is innermost does not end that."""

    def batches() -> Generator[int, None, None]:
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

    @decorator(monitel, "evaluation")
    def factorial(n: int) -> int:
        book.wait(1)
        return n * factorial(n - 1) if n else 1

    @decorator(monitel, "data")
    def batches() -> Iterator[int]:
        for batch in range(2):
            book.wait(10)
            yield batch

    @decorator(monitel, "a")
    async def load() -> int:
        await asyncio.sleep(0)
        book.wait(100)
        return 7

    @decorator(monitel, "b")
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


def test_an_abandoned_generator_is_over(book: Book) -> None:
    """Suspended inside an activity and never resumed: its time ends when it is garbage-collected."""

    def batches() -> Iterator[int]:
        with book.activity("data"):
            yield 1

    class Cycle:
        """Keeps a generator until the garbage collector runs."""

        def __init__(self) -> None:
            self.generator = batches()
            self.cycle = self
            next(self.generator)

    Cycle()
    book.wait(1)
    gc.collect()
    book.wait(10)
    assert 1 == book.totals["data"]
    assert 10 == book.totals["startup"]


def test_a_decorated_generator_works_as_without(monitel: ModuleType, book: Book) -> None:
    """Values, exceptions, the result and the end go in and out; its consumer's time is the consumer's."""
    log: list[Any] = []

    @decorator(monitel, "data")
    def plain() -> Generator[Any, Any, str]:
        try:
            while True:
                book.wait(1)
                try:
                    given = yield len(log)
                except KeyError as error:
                    given = repr(error)
                log.append(given)
                if given == "end":
                    return "result"
        finally:
            book.wait(10)

    generator = plain()
    assert 0 == next(generator)
    book.wait(1000)
    assert 1 == generator.send("one")
    assert 2 == generator.throw(KeyError("two"))
    with pytest.raises(StopIteration) as ended:
        generator.send("end")
    assert "result" == ended.value.value
    assert ["one", "KeyError('two')", "end"] == log
    closed = plain()
    next(closed)
    closed.close()
    assert {"data": 3 + 10 + 1 + 10, "startup": 1000} == book.totals


def test_decorated_functions_raise_and_return(monitel: ModuleType, book: Book) -> None:
    """Name, signature, result and exception are those of the function, and recursion counts once."""

    @decorator(monitel, "evaluation")
    def evaluate(x: int, *, fail: bool = False) -> int:
        """Return x."""
        book.wait(1)
        if fail:
            raise KeyError(x)
        return x

    assert ("evaluate", "Return x.") == (evaluate.__name__, evaluate.__doc__)
    assert 3 == evaluate(3)
    with pytest.raises(KeyError):
        evaluate(4, fail=True)
    assert 5 == partial(evaluate, 5)()
    assert {"evaluation": 3} == book.totals


def test_methods_are_decorated(monitel: ModuleType, book: Book) -> None:
    """Below staticmethod and classmethod; a class, and what is not a function, is refused."""

    class Loop:
        @decorator(monitel, "a")
        def method(self) -> type:
            book.wait(1)
            return type(self)

        @classmethod
        @decorator(monitel, "b")
        def of_class(cls) -> type:
            book.wait(10)
            return cls

        @staticmethod
        @decorator(monitel, "data")
        def static(x: int) -> int:
            book.wait(100)
            return x

    assert (Loop, Loop, 7) == (Loop().method(), Loop.of_class(), Loop.static(7))
    assert {"a": 1, "b": 10, "data": 100} == book.totals
    wrongs: list[Any] = [3, None, "data", Loop, Loop.__dict__["of_class"], Loop.__dict__["static"], property(len)]
    for wrong in wrongs:
        with pytest.raises(TypeError, match=r"activity\('a'\) decorates a function, got "):
            monitel.activity("a")(wrong)


def test_a_cancelled_task_has_left(monitel: ModuleType, book: Book) -> None:
    """A cancelled task leaves its activities, like a task that fails."""

    @decorator(monitel, "evaluation")
    async def evaluate() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(evaluate())
        await asyncio.sleep(0)
        book.wait(1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        book.wait(10)

    asyncio.run(main())
    assert {"evaluation": 1, "other": 10} == book.totals


def test_a_decorated_async_generator_counts_while_it_runs(monitel: ModuleType, book: Book) -> None:
    """Values and exceptions go in, and closing it runs its finally."""

    @decorator(monitel, "data")
    async def stream() -> AsyncIterator[int]:
        try:
            for number in range(3):
                book.wait(1)
                try:
                    yield number
                except KeyError:
                    book.wait(10)
        finally:
            book.wait(100)

    async def main() -> list[int]:
        found = [each async for each in stream()]
        book.wait(10**6)
        opened: Any = stream()
        found.append(await opened.asend(None))
        book.wait(10**6)
        found.append(await opened.athrow(KeyError()))
        await opened.aclose()
        return found

    assert [0, 1, 2, 0, 1] == asyncio.run(main())
    assert {"data": 3 + 100 + 1 + 10 + 1 + 100, "startup": 2 * 10**6} == book.totals
