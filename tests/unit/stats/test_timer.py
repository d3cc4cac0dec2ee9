"""Stat.time(): durations of blocks and functions."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeStat = Callable[..., Any]


def _seconds(stat: Any) -> tuple[float, ...]:
    stat.flush()
    return tuple(value for aggregation, value in stat.get().items() if aggregation.name in {"COUNT", "SUM"})


def test_time_of_a_block(make_stat: MakeStat, clock: Any) -> None:
    """`with stat.time():` adds the seconds of the block, even if nested, and even if the block raises."""
    stat = make_stat()
    with stat.time():
        clock.advance(1.5)
        with stat.time():
            clock.advance(0.25)
    assert (2.0, 2.0) == _seconds(stat)

    def fail() -> None:
        clock.advance(3)
        raise KeyError

    with pytest.raises(KeyError), stat.time():
        fail()
    assert (1.0, 3.0) == _seconds(stat)
    timer = stat.time()
    for _ in range(2):
        with timer:
            clock.advance(1)
    assert (2.0, 2.0) == _seconds(stat)


def test_time_of_a_function(make_stat: MakeStat, clock: Any) -> None:
    """`@stat.time()` times each call separately, even recursive ones, and keeps the function's name."""
    stat = make_stat()

    @stat.time()  # type: ignore[untyped-decorator]
    def recursive(depth: int, *, step: float = 1) -> int:
        """Call itself."""
        clock.advance(step)
        return depth and recursive(depth - 1, step=step)

    assert (0, "recursive", "Call itself.") == (recursive(1, step=2), recursive.__name__, recursive.__doc__)
    assert (2.0, 6.0) == _seconds(stat)
    with pytest.raises(TypeError):
        recursive()
    assert (1.0, 0.0) == _seconds(stat)


def test_time_of_a_coroutine_function(make_stat: MakeStat, clock: Any) -> None:
    """`@stat.time()` times a coroutine function until it returns; concurrent calls are timed separately."""
    stat = make_stat()

    @stat.time()  # type: ignore[untyped-decorator]
    async def load(seconds: float, gate: asyncio.Event) -> float:
        await gate.wait()
        clock.advance(seconds)
        return seconds

    async def main() -> list[float]:
        gate = asyncio.Event()
        loads = [asyncio.create_task(load(seconds, gate)) for seconds in (1, 2)]
        await asyncio.sleep(0)
        gate.set()
        return list(await asyncio.gather(*loads))

    assert inspect.iscoroutinefunction(load)
    assert [1, 2] == asyncio.run(main())
    assert (2.0, 1.0 + 3.0) == _seconds(stat)
