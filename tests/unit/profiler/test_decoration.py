"""Decorated functions, coroutines and generators. Over both twins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from monitel.profiler import record_function

    RunScript = Any
    RunThreads = Any

SECOND = 1_000_000_000


def names(received: list[Any], what: str = "began") -> list[str]:
    """Return the names of the ranges that began, or ended."""
    return [each.name for kind, each in received if kind == what]


def parents(received: list[Any]) -> list[tuple[str, str | None]]:
    """Return each range's name and its parent's name."""
    return [(each.name, each.parent and each.parent.name) for kind, each in received if kind == "began"]


def test_decorated_functions(received: list[Any], record: type[record_function]) -> None:
    """Each call has a range, recursive calls nested ones; the function keeps its name and docstring."""

    @record("factorial")
    def factorial(n: int) -> int:
        """Return n!."""
        return n * factorial(n - 1) if n else 1

    assert 6 == factorial(3)
    assert [None, "factorial", "factorial", "factorial"] == [parent for _, parent in parents(received)]
    assert ("factorial", "Return n!.") == (factorial.__name__, factorial.__doc__)


def test_decorated_coroutines(ranges: Any, record: type[record_function], clock: Any) -> None:
    """The range of a coroutine lasts from the first await to the result."""

    @record("wait")
    async def wait() -> str:
        clock.advance(1)
        await asyncio.sleep(0)
        clock.advance(1)
        return "done"

    ended: list[Any] = []
    with ranges.listen(ended=ended.append):
        assert "done" == asyncio.run(wait())
    assert [2 * SECOND] == [each.end_ns - each.start_ns for each in ended]


def test_decorated_generators(ranges: Any, record: type[record_function], clock: Any) -> None:
    """A generator has a range each time it runs, and none while its consumer runs."""

    @record("generate")
    def generate() -> Iterator[int]:
        clock.advance(1)
        yield 1
        clock.advance(2)
        yield 2
        clock.advance(3)

    ended: list[Any] = []
    with ranges.listen(ended=ended.append), record("consume"):
        for _ in generate():
            assert "consume" == ranges.current_range().name
            clock.advance(10)
    assert ["generate"] * 3 + ["consume"] == [each.name for each in ended]
    assert [1, 2, 3, 26] == [(each.end_ns - each.start_ns) // SECOND for each in ended]


def test_decorated_generators_keep_their_protocol(record: type[record_function], received: list[Any]) -> None:
    """send(), throw(), close() and return values work as without the decorator."""
    log: list[Any] = []

    @record("g")
    def generate(first: int) -> Any:
        try:
            log.append((yield first))
            try:
                yield 2
            except KeyError as error:
                log.append(error)
                yield 3
        finally:
            log.append("closed")
        return "result"

    generator = generate(1)
    assert (1, 2) == (next(generator), generator.send("sent"))
    error = KeyError()
    assert 3 == generator.throw(error)
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert "result" == stop.value.value
    assert ["sent", error, "closed"] == log
    other = generate(1)
    next(other)
    other.close()
    assert "closed" == log[3]
    assert len(names(received)) == len(names(received, "ended"))


def test_exception_that_leaves_decorated_code_is_the_error_of_its_range(
    ranges: Any, record: type[record_function]
) -> None:
    """The normal end of a generator, and its close(), are not errors."""

    @record("function")
    def function() -> None:
        raise KeyError

    @record("coroutine")
    async def coroutine() -> None:
        await asyncio.sleep(0)
        raise KeyError

    @record("generator")
    def generate(failing: bool) -> Iterator[int]:
        yield 1
        if failing:
            raise KeyError

    @record("async")
    async def generate_async(failing: bool) -> AsyncIterator[int]:
        yield 1
        if failing:
            raise KeyError

    async def consume(failing: bool) -> None:
        async for _ in generate_async(failing):
            pass

    ended: list[Any] = []
    with ranges.listen(ended=ended.append):
        for call in (function, lambda: asyncio.run(coroutine()), lambda: list(generate(True))):
            with pytest.raises(KeyError):
                call()
        with pytest.raises(KeyError):
            asyncio.run(consume(True))
        list(generate(False))
        asyncio.run(consume(False))
        closed: Any = generate(True)
        next(closed)
        closed.close()
        thrown: Any = generate(False)
        next(thrown)
        with pytest.raises(ValueError, match="thrown"):
            thrown.throw(ValueError("thrown"))
    assert [
        *[("function", "KeyError"), ("coroutine", "KeyError"), ("generator", None), ("generator", "KeyError")],
        *[("async", None), ("async", "KeyError"), ("generator", None), ("generator", None)],
        *[("async", None), ("async", None), ("generator", None), ("generator", None)],
        *[("generator", None), ("generator", "ValueError")],
    ] == [(each.name, each.error_type) for each in ended]


def test_decorated_async_generators(record: type[record_function], received: list[Any]) -> None:
    """An asynchronous generator has a range each time it runs, including its awaits."""

    @record("g")
    async def generate() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(0)
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def consume() -> list[int]:
        return [each async for each in generate()]

    async def leave() -> None:
        generator: Any = generate()
        assert 1 == await generator.asend(None)
        with pytest.raises(KeyError):
            await generator.athrow(KeyError())
        generator = generate()
        await generator.asend(None)
        await generator.aclose()

    closed: list[bool] = []
    assert [1, 2] == asyncio.run(consume())
    assert ["g"] * 3 == names(received) == names(received, "ended")
    asyncio.run(leave())
    assert [True] * 3 == closed
    assert len(names(received)) == len(names(received, "ended"))
