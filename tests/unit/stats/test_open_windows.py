"""Open windows of all Stats at one moment, as a black box keeps them."""

from __future__ import annotations

import os
import sys
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    MakeStat = Callable[..., Any]

DEADLINE = 60.0


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


def test_windows_of_chosen_stats_are_the_same_as_among_all(
    make_stat: MakeStat, monitel: ModuleType, clock: Any
) -> None:
    """The others, which are skipped, may have distributions."""
    decode = __import__("monitel.open_windows", fromlist=["decode"]).decode
    plain = [monitel.Stat(f"plain.{number}", [monitel.MEAN], 60.0) for number in range(3)]
    stats = [make_stat("first"), *plain, make_stat("last")]
    for number, stat in enumerate(stats):
        stat.add(number + 0.5)
    clock.advance(1)
    content, _ = monitel.open_windows.open_windows()
    everything = {window.serial: window for window in decode(content)}
    for chosen in ([], stats[:1], stats[1:3], stats[4:], stats):
        serials = {stat._serial for stat in chosen}
        expected = [window for serial, window in everything.items() if serial in serials]
        assert expected == list(decode(content, serials))
    with pytest.raises(ValueError, match="end in the middle"):
        list(decode(content[:-8], set()))


def test_reading_changes_nothing(make_stat: MakeStat, read: Callable[..., list[Any]], clock: Any) -> None:
    """The window stays open, and a Stat without samples is left out."""
    stat, empty = make_stat(), make_stat("empty")
    stat.add(1.0)
    clock.advance(1)
    before = read(stat, empty)
    assert before == read(stat, empty)
    assert [stat._serial] == [window.serial for window in before]
    assert 1 == stat.count


def test_previous_end_is_that_of_the_last_closed_window(
    make_stat: MakeStat, read: Callable[..., list[Any]], clock: Any, events: list[Any]
) -> None:
    """So a reader knows which windows came before."""
    stat = make_stat()
    stat.add(1.0)
    clock.advance(1)
    stat.flush()
    stat.add(2.0)
    (window,) = read(stat)
    assert events[-1].window.end_ns == window.previous_end_ns


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


def test_windows_of_slow_handlers_are_included_in_any_order(
    make_stat: MakeStat, read: Callable[..., list[Any]], monitel: ModuleType, clock: Any
) -> None:
    """Several threads hand windows over at once, and end in another order than they began."""
    stats = [make_stat(f"s{number}") for number in range(3)]
    inside = {stat.name: Event() for stat in stats}
    leave = {stat.name: Event() for stat in stats}

    def handle(event: Any) -> None:
        inside[event.window.name].set()
        assert leave[event.window.name].wait(DEADLINE)

    handler = monitel.register_event_handler(handle)
    threads = []
    for stat in stats:
        stat.add(1.0)
        clock.advance(1)
        threads.append(Thread(target=stat.flush))
        threads[-1].start()
        assert inside[stat.name].wait(DEADLINE)
    left = {stat._serial for stat in stats}
    assert left == {window.serial for window in read(*stats) if window.closed}
    for number in (1, 0, 2):
        leave[stats[number].name].set()
        threads[number].join(DEADLINE)
        left.remove(stats[number]._serial)
        assert left == {window.serial for window in read(*stats) if window.closed}
    monitel.unregister_event_handler(handler)


def test_handler_that_raises_leaves_nothing_behind(
    make_stat: MakeStat, read: Callable[..., list[Any]], monitel: ModuleType, clock: Any
) -> None:
    """The window is not listed any more."""
    stat = make_stat()

    def fail(_event: Any) -> None:
        raise ZeroDivisionError

    handle = monitel.register_event_handler(fail)
    stat.add(1.0)
    clock.advance(1)
    with pytest.raises(ZeroDivisionError):
        stat.flush()
    monitel.unregister_event_handler(handle)
    assert [] == read(stat)


def test_forked_child_has_no_windows_of_the_parent(
    make_stat: MakeStat, read: Callable[..., list[Any]], monitel: ModuleType, clock: Any
) -> None:
    """Neither open windows nor those that the parent was handing over at the time of the fork."""
    stat, statuses = make_stat(), []

    def fork(_event: Any) -> None:
        if (child := os.fork()) == 0:
            os._exit(len(read(stat)))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    handle = monitel.register_event_handler(fork)
    stat.add(1.0)
    clock.advance(1)
    stat.flush()
    monitel.unregister_event_handler(handle)
    assert [0] == statuses


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(allow_nan=False, width=64), min_size=1, max_size=30))
def test_any_samples_survive_the_form(
    make_stat: MakeStat, read: Callable[..., list[Any]], clock: Any, events: list[Any], values: list[float]
) -> None:
    """Distributions too."""
    stat = make_stat()
    for value in values:
        stat.add(value)
    clock.advance(1)
    (window,) = read(stat)
    stat.flush()
    assert repr(events[-1].window.histogram) == repr(window.snapshot.histogram)
    assert len(values) == window.snapshot.count


def test_limit_leaves_the_oldest_stats(monitel: ModuleType, make_stat: MakeStat, clock: Any) -> None:
    """Whatever its size; Stats without a window count."""
    module = __import__("monitel.open_windows", fromlist=["open_windows"])
    stats = [make_stat(f"stat.{number}") for number in range(5)]
    for stat in stats[1:]:
        stat.add(1.0)
    clock.advance(1)
    own = [stat._serial for stat in stats]
    older = module.live_stats().index(stats[0])

    def read(*most: int) -> list[int]:
        return [serial for serial in module.open_windows(*most)[1] if serial in own]

    assert [] == read(0) == read(-1) == read(older) == read(older + 1)
    assert own[1:3] == read(older + 3)
    assert own[1:] == read(older + 5) == read(sys.maxsize) == read()


def test_damaged_form_is_refused(monitel: ModuleType, make_stat: MakeStat, clock: Any) -> None:
    """A form that ends in the middle of a window, and one with too many buckets."""
    decode = __import__("monitel.open_windows", fromlist=["decode"]).decode
    make_stat().add(1.0)
    stat = make_stat()
    stat.add(1.0)
    clock.advance(1)
    content, _ = monitel.open_windows.open_windows()
    for end in (1, len(content) // 2, len(content) - 1):
        with pytest.raises(ValueError, match=r"end in the middle|buckets"):
            list(decode(content[:end]))
