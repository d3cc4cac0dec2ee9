"""Open windows of all Stats at one moment, and sinks of closed ones, as a black box keeps them."""

from collections.abc import Callable, Iterator
from threading import Lock
from types import ModuleType
from typing import Any

import pytest
from tests.support.producers import run_together
from tests.support.twins import MakeStat


@pytest.fixture
def read(monitel: ModuleType) -> Callable[..., list[Any]]:
    def read(*stats: Any) -> list[Any]:
        serials = {stat._serial for stat in stats}
        found = map(monitel.stats.window.decode, monitel.stats.window_sinks.open_windows())
        return [window for window in found if window.serial in serials]

    return read


def test_window_is_listed_under_one_key_until_its_handlers_have_run(
    make_stat: MakeStat, read: Callable[..., list[Any]], monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """Open, and then closed with the same numbers, with every aggregation; a Stat numbers its windows from 1 on."""
    stat, found = make_stat(), []
    monitel.set_step(7)
    for number in (1, 2):
        for value in (1.5, -2.0, 0.0, 1e300, float("nan")):
            clock.advance(1)
            stat.add(value)
        (window,) = read(stat)
        assert (number, False) == (window.number, window.closed)
        assert window.previous_end_ns <= window.start_ns
        with monitel.register_event_handler(lambda _event: found.extend(read(stat))):
            stat.flush()
        closed, logged = found.pop(), events[-1].window
        assert repr(window._replace(closed=True)) == repr(closed)
        names = ("start_ns", "end_ns", "count", "discarded", "first_step", "last_step", "stddev", "histogram")
        for name in (*names, "sum", "min", "max", "last"):
            assert repr(getattr(logged, name)) == repr(getattr(window, name)), name
        assert [[], []] == [found, read(stat)]


@pytest.fixture
def sink(monitel: ModuleType) -> Iterator[Callable[[Callable[..., Any]], None]]:
    added: list[Any] = []

    def add(function: Callable[..., Any]) -> None:
        monitel.stats.window_sinks.add(function)
        added.append(function)

    yield add
    while added:
        monitel.stats.window_sinks.remove(added.pop())


def test_sink_that_raises_stops_nothing(make_stat: MakeStat, events: list[Any], sink: Any, caplog: Any) -> None:
    """Its failure is logged once; other sinks and the handlers have each window."""
    stat, sunk = make_stat(), []
    sink(lambda *_window: 1 / 0)
    sink(lambda _definition, window, _content: sunk.append(window.sum))
    for number in (1.0, 2.0):
        stat.add(number)
        stat.flush()
    assert ([1.0, 2.0], 2, 1) == (sunk, len(events), caplog.text.count("a sink of windows raised"))
    caplog.clear()  # its traceback keeps the Stat


def test_pending_window_is_sunk_when_it_is_resolved(
    make_stat: MakeStat, read: Callable[..., list[Any]], monitel: ModuleType, clock: Any, sink: Any
) -> None:
    """Until then open_windows() has its known samples; windows are sunk in order, and a lost one never."""
    stat, sunk, form = make_stat(), [], monitel.stats.window
    pending: list[Any] = []
    sink(lambda _definition, window, content: sunk.append((window, content)))
    stat.add(1.0)
    stat._add_pending(pending.append, lambda: None)
    stat.flush()
    stat._add_pending(pending.append, lambda: None)
    stat.flush()
    stat.add(5.0)
    stat.flush()
    assert [(1, True, 1.0), (3, True, 5.0)] == [(each.number, each.closed, each.sum) for each in read(stat)]
    pending[1].resolve(None)
    pending[0].resolve(2.0)
    assert [] == sunk
    stat._log_resolved()
    assert [(1, 3.0), (3, 5.0)] == [(form.key(content)[1], window.sum) for window, content in sunk]
    for window, content in sunk:
        assert form.decode_closed(content, window.definition) == window
    assert [] == read(stat)


@pytest.mark.usefixtures("frequent_switches")
def test_no_sample_is_missing_or_twice(
    make_stat: MakeStat, read: Callable[..., list[Any]], monitel: ModuleType, sink: Any
) -> None:
    """Under the lock of the sink each sample is in one place: the open window, one that is handed over, or the sink."""
    stat, lock, running = make_stat("x", [monitel.SUM], 1e9), Lock(), [True]
    added, stored = [0, 0], [0]  # begun and done

    def store(_definition: Any, window: Any, content: bytes) -> None:
        with lock:
            stored[0] += window.count
            monitel.stats.window_sinks.forget(*monitel.stats.window.key(content))

    def add() -> None:
        while running:
            added[0] += 1
            stat.add(1.0)
            added[1] += 1

    def close() -> None:
        while running:
            if stat.count > 50:  # a window that is missing or twice is more than what is added meanwhile
                stat.flush()

    def look() -> None:
        try:
            for _ in range(20000):
                least = added[1]
                with lock:
                    found = stored[0] + sum(window.count for window in read(stat))
                assert least <= found <= added[0]
        finally:
            running.clear()

    sink(store)
    run_together(add, close, close, look)
    stat.flush()
    assert added[0] == stored[0]
