"""Functions that run before each flush: their order, their exceptions, and forks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import monitel
from monitel import before_flush

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def register() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Provide a function that registers functions until the end of the test."""
    registered: list[Callable[[], object]] = []

    def register(function: Callable[[], object]) -> None:
        registered.append(function)
        before_flush.register(function)

    yield register
    for function in registered:
        before_flush.unregister(function)


@pytest.mark.parametrize("flush", [monitel.flush, monitel.close_expired_windows])
def test_functions_run_before_windows_are_closed(
    flush: Callable[[], object], register: Callable[[Callable[[], object]], None]
) -> None:
    """Samples that they add, and Stats that they create, are part of the flush."""
    with monitel.testing.ManualClock() as clock:
        stats = [monitel.Stat("first", [monitel.COUNT], 1.0)]

        def create() -> None:
            stats.append(monitel.Stat("second", [monitel.COUNT], 1.0))
            for stat in stats:
                stat.add(1)
            clock.advance(2)

        register(create)
        with monitel.testing.capture_events() as events:
            flush()
        before_flush.unregister(create)
    assert ["first", "second"] == [event.window.name for event in events if event.window is not None]


def test_functions_run_in_the_order_of_registration(register: Callable[[Callable[[], object]], None]) -> None:
    """A function that is unregistered is not called. To unregister it again has no effect."""
    calls: list[int] = []

    def first() -> None:
        calls.append(1)

    def second() -> None:
        calls.append(2)

    register(first)
    register(second)
    monitel.flush()
    for _ in range(2):
        before_flush.unregister(first)
    monitel.flush()
    assert [1, 2, 2] == calls


@pytest.mark.usefixtures("unraisable")
@pytest.mark.parametrize("flush", [monitel.flush, monitel.close_expired_windows])
def test_exception_is_raised_after_everything_is_flushed(
    flush: Callable[[], object], register: Callable[[Callable[[], object]], None]
) -> None:
    """The other functions are called, and windows are closed."""
    calls: list[str] = []

    def fail() -> None:
        raise OSError("cannot read the queue")

    register(fail)
    register(lambda: calls.append("second"))
    with monitel.testing.ManualClock() as clock, monitel.testing.capture_events() as events:
        stat = monitel.Stat("loss", [monitel.COUNT], 1.0)
        stat.add(1)
        clock.advance(2)
        with pytest.raises(OSError, match="cannot read the queue"):
            flush()
    assert (["second"], ["loss"]) == (calls, [event.window.name for event in events if event.window is not None])


def test_forked_child_does_not_call_the_functions(register: Callable[[Callable[[], object]], None]) -> None:
    """The functions belong to sources of the parent. The child registers other ones."""
    calls: list[str] = []
    register(lambda: calls.append("of the parent"))
    child = os.fork()
    if not child:
        before_flush.register(lambda: calls.append("of the child"))
        monitel.flush()
        os._exit(calls != ["of the child"])
    assert 0 == os.waitpid(child, 0)[1]
    monitel.flush()
    assert ["of the parent"] == calls
