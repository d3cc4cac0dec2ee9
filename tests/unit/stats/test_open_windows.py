"""Open windows of all Stats at one moment, as a black box keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    MakeStat = Callable[..., Any]


@pytest.fixture
def read(monitel: ModuleType) -> Callable[..., list[Any]]:
    """Return a function that returns the open windows of some Stats."""
    decode = __import__("monitel.open_windows", fromlist=["decode"]).decode

    def read(*stats: Any) -> list[Any]:
        serials = {stat._serial for stat in stats}
        return [window for window in decode(monitel.open_windows.open_windows()[0]) if window.serial in serials]

    return read


def test_open_window_has_the_numbers_of_the_window_that_is_closed_then(
    make_stat: MakeStat, read: Callable[..., list[Any]], clock: Any, events: list[Any], monitel: ModuleType
) -> None:
    """The snapshot equals the window that a flush at the same moment logs, with every aggregation."""
    stat = make_stat()
    monitel.set_step(7)
    for value in (1.5, -2.0, 0.0, 1e300, float("nan")):
        clock.advance(1)
        stat.add(value)
    (window,) = read(stat)
    stat.flush()
    closed = events[-1].window
    names = ("start_ns", "end_ns", "count", "discarded", "first_step", "last_step", "stddev", "histogram")
    for name in (*names, "sum", "min", "max", "last"):
        assert repr(getattr(closed, name)) == repr(getattr(window.snapshot, name)), name
    assert not window.closed
    assert window.previous_end_ns <= window.snapshot.start_ns


def test_window_that_is_being_handed_over_is_included(
    make_stat: MakeStat, read: Callable[..., list[Any]], monitel: ModuleType, clock: Any
) -> None:
    """Between its close and the end of the handlers a window is neither open nor in a queue: it is listed as closed."""
    stat, found = make_stat(), []
    handle = monitel.register_event_handler(lambda _event: found.extend(read(stat)))
    stat.add(1.0)
    stat.add(2.0)
    clock.advance(1)
    stat.flush()
    monitel.unregister_event_handler(handle)
    (window,) = found
    assert window.closed
    assert (2, 3.0) == (window.snapshot.count, window.snapshot.sum)
    assert [] == read(stat)


def test_no_sample_is_missing_or_twice(
    make_stat: MakeStat, read: Callable[..., list[Any]], monitel: ModuleType, run_threads: Any, frequent_switches: None
) -> None:
    """At each moment every sample is in the open window, in one that is handed over, or was passed to the handlers."""
    stat = make_stat("x", [monitel.SUM], 1e9)
    added, handled, flushed = [0, 0], [0], [0]  # begun and done; before handlers, and after them
    running = [object()]

    def add() -> None:
        for _ in range(5000):
            added[0] += 1
            stat.add(1.0)
            added[1] += 1
        running.pop()

    def handle(event: Any) -> None:
        handled[0] += event.window.count

    def close() -> None:
        while running:
            stat.flush()
            flushed[0] = handled[0]

    def look() -> None:
        while running:
            most_flushed, least = flushed[0], added[1]
            found = sum(window.snapshot.count for window in read(stat))
            most, least_handled = added[0], handled[0]
            assert most_flushed + found <= most, "a sample is counted twice"
            assert least <= found + least_handled, "a sample is missing"

    with monitel.register_event_handler(handle):
        run_threads(add, close, look)
        stat.flush()
    assert 5000 == handled[0]
