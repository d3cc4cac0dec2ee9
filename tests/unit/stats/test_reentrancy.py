"""Reentrancy: handlers, destructors, signal handlers and clocks may do anything while a window closes."""

from __future__ import annotations

import gc
import signal
import sys
import time
import weakref
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    MakeStat = Callable[..., Any]


def sums(events: list[Any]) -> list[tuple[str, float]]:
    """Return name and sum of each window."""
    return [(event.window.name, event.window.sum) for event in events if event.window]


def test_handler_logs(make_stat: MakeStat, monitel: ModuleType, events: list[Any], run_threads: Any) -> None:
    """A handler may log, and may cause another Stat to log (torch: deadlock)."""
    stat, other = make_stat(), make_stat("other")
    other.add(7)

    def handler(event: Any) -> None:
        if event.window is not None and event.window.name == "x":
            monitel.emit("received")
            other.flush()

    monitel.register_event_handler(handler)
    stat.add(1)
    run_threads(stat.flush)
    assert ["torch.monitor.Stat", "received", "torch.monitor.Stat"] == [event.name for event in events]
    assert [("x", 1.0), ("other", 7.0)] == sums(events)


def test_handler_registers_and_unregisters(make_stat: MakeStat, monitel: ModuleType, run_threads: Any) -> None:
    """A handler may register others and unregister itself (torch: deadlock), with effect from the next event on."""
    received: list[str] = []

    def once(event: Any) -> None:
        monitel.unregister_event_handler(handle)
        monitel.register_event_handler(lambda event: received.append(f"later {event.window.sum}"))
        received.append(f"once {event.window.sum}")

    handle = monitel.register_event_handler(once)
    stat = make_stat()
    for sample in (1, 2):
        stat.add(sample)
        run_threads(stat.flush)
    assert "once 1.0" == received[0]
    assert "later 2.0" == received[-1]
    assert "once 2.0" not in received


def test_handler_reads_its_stat(make_stat: MakeStat, monitel: ModuleType, clock: Any, run_threads: Any) -> None:
    """A handler may read its Stat (torch: deadlock): the window is closed and the next one is open."""
    stat = make_stat()
    seen: list[Any] = []
    monitel.register_event_handler(lambda event: seen.append((stat.count, stat.get()[monitel.SUM])))
    stat.add(1)
    clock.advance(60)
    run_threads(lambda: stat.add(5))
    assert [(1, 1.0)] == seen


@pytest.mark.parametrize(("max_samples", "expected"), [(2, (0, 1)), (3, (2, 0))], ids=["fill", "line"])
def test_handler_adds_to_its_stat(
    make_stat: MakeStat,
    monitel: ModuleType,
    clock: Any,
    events: list[Any],
    run_threads: Any,
    *,
    max_samples: int,
    expected: Any,
) -> None:
    """A handler may add to its Stat (torch: deadlock): its sample follows the one that closed the window."""
    stat = make_stat("x", None, 60.0, max_samples)
    monitel.register_event_handler(lambda event: stat.add(10))
    stat.add(1)
    if max_samples == 3:
        stat.add(2)
        clock.advance(60)
    run_threads(lambda: stat.add(2))
    assert ([("x", 3.0)], expected) == (sums(events), (stat.count, stat.discarded))


def test_handler_flushes_its_stat(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any], run_threads: Any
) -> None:
    """A handler that flushes its Stat logs the sample that has just opened the next window."""
    stat = make_stat()
    monitel.register_event_handler(lambda event: stat.flush())
    stat.add(1)
    clock.advance(60)
    run_threads(lambda: stat.add(2))
    assert [("x", 1.0), ("x", 2.0)] == sums(events)


@pytest.fixture
def no_gc() -> Iterator[None]:
    """Disable automatic garbage collections."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_gc")
def test_stat_is_collected_inside_a_handler(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any], run_threads: Any
) -> None:
    """A Stat with samples may be garbage-collected inside a handler (torch: deadlock), even the one that logs."""
    stats = {"cycle": make_stat("cycle"), "x": make_stat()}
    stats["cycle"].add(7)
    cycle = [stats.pop("cycle")]
    cycle.append(cycle)
    del cycle

    def handler(event: Any) -> None:
        stats.clear()
        gc.collect()

    monitel.register_event_handler(handler)
    stats["x"].add(1)
    clock.advance(60)
    run_threads(lambda: stats["x"].add(2))
    assert [("x", 1.0), ("cycle", 7.0), ("x", 2.0)] == sums(events)


def raising(error: BaseException) -> Callable[[Any], None]:
    """Return a handler that raises."""

    def handler(event: Any) -> None:
        raise error

    return handler


@pytest.mark.parametrize("error", [ValueError("why"), KeyboardInterrupt("why"), GeneratorExit("why")], ids=type)
def test_handler_fails_at_the_boundary(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any], error: BaseException
) -> None:
    """If a handler fails at the boundary, the sample is added (torch: lost), and the exception is raised."""
    monitel.register_event_handler(raising(error))
    stat = make_stat()
    stat.add(1)
    clock.advance(60)
    with pytest.raises(type(error)) as caught:
        stat.add(2)
    assert error is caught.value
    assert (1, 1.0, [("x", 1.0)]) == (stat.count, stat.get()[monitel.SUM], sums(events))
    stat.add(3)
    assert (2, 1) == (stat.count, len(events))


def test_handler_fails_at_the_limit(make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """If a handler fails at the sample limit, the window is closed (torch: it takes samples again)."""
    monitel.register_event_handler(raising(ValueError("why")))
    stat = make_stat("x", None, 60.0, 2)
    stat.add(1)
    with pytest.raises(ValueError, match="why"):
        stat.add(2)
    stat.add(3)
    assert (0, 1, [("x", 3.0)]) == (stat.count, stat.discarded, sums(events))


@pytest.mark.parametrize("close", ["flush", "close_expired_windows"])
def test_handler_fails_for_one_of_many(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, unraisable: list[Any], close: str
) -> None:
    """All Stats are closed even if a handler raises; the first exception is raised, the others are reported."""
    received, failures = [], [ValueError("first"), ValueError("second")]

    def handler(event: Any) -> None:
        received.append(event.window.name)
        if event.window.name != "b":
            raise failures[len(received) // 2]

    monitel.register_event_handler(handler)
    stats = [make_stat(name) for name in "abc"]
    for stat in stats:
        stat.add(1)
    clock.advance(60)
    with pytest.raises(ValueError, match="first"):
        getattr(monitel, close)()
    assert (["a", "b", "c"], failures[1:]) == (received, unraisable)


@pytest.mark.parametrize("grave", [KeyboardInterrupt("grave"), SystemExit("grave")], ids=type)
def test_several_handlers_fail(
    make_stat: MakeStat, monitel: ModuleType, unraisable: list[Any], grave: BaseException
) -> None:
    """All handlers are called; KeyboardInterrupt and SystemExit are raised before others, the rest is reported."""
    failures = [ValueError(1), grave, KeyboardInterrupt(3), ValueError(4)]
    for failure in failures:
        monitel.register_event_handler(raising(failure))
    received: list[Any] = []
    monitel.register_event_handler(received.append)
    stat = make_stat()
    stat.add(1)
    with pytest.raises(type(grave), match="grave"):
        stat.flush()
    assert [failures[0], *failures[2:]] == unraisable
    assert [("x", 1.0)] == sums(received)


@pytest.mark.usefixtures("no_gc")
def test_failing_handler_leaves_no_reference_cycle(make_stat: MakeStat, monitel: ModuleType) -> None:
    """The objects of a failing handler are released with the exception, not at a later garbage collection."""
    held: list[Any] = []

    def handler(event: Any) -> None:
        tensor = type("Tensor", (), {"__slots__": ["__weakref__"]})()
        held.append(weakref.ref(tensor))
        raise ValueError

    monitel.register_event_handler(handler)
    stat = make_stat()
    for close in (stat.flush, monitel.flush):
        stat.add(1)
        with suppress(ValueError):
            close()
    assert [None, None] == [reference() for reference in held]


@pytest.mark.parametrize("error", [ValueError("why"), KeyboardInterrupt("why")], ids=type)
def test_handler_fails_in_a_destructor(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], unraisable: list[Any], error: BaseException
) -> None:
    """A failing handler in a destructor goes to sys.unraisablehook (torch: abort)."""
    monitel.register_event_handler(raising(error))
    make_stat().add(1)
    assert ([error], [("x", 1.0)]) == (unraisable, sums(events))


def test_number_that_adds(make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """A `__float__` that adds to the Stat, flushes it and advances the clock loses no sample."""
    stat = make_stat("x", None, 60.0, 3)

    class Number:
        def __float__(self) -> float:
            stat.add(1)
            clock.advance(50)
            monitel.flush()
            return 100.0

    stat.add(Number())
    stat.add(Number())
    stat.flush()
    assert [("x", 1.0), ("x", 101.0), ("x", 100.0)] == sums(events)


@pytest.mark.parametrize("max_samples", [1, 2, 2**63 - 1])
@pytest.mark.parametrize("seconds", [0, 60])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("inside", ["add", "flush"])
def test_nothing_is_lost_while_the_clock_is_read(
    make_stat: MakeStat, monitel: ModuleType, *, max_samples: int, seconds: float, nth: int, inside: str
) -> None:
    """A clock may add to the Stat, flush it and advance whenever it is read, as a signal handler may."""

    class Interrupting(monitel.testing.ManualClock):  # type: ignore[misc, name-defined]
        readings_left = -1

        def read(self, reading: Callable[[], int]) -> int:
            self.readings_left -= 1
            if self.readings_left == 0:
                self.advance(seconds)
                add(1) if inside == "add" else stat.flush()
            return reading()

        def time_ns(self) -> int:
            return self.read(super().time_ns)

        def monotonic_ns(self) -> int:
            return self.read(super().monotonic_ns)

    added = 0

    def add(sample: float) -> None:
        nonlocal added
        added += 1
        stat.add(sample)

    with Interrupting() as clock, monitel.testing.capture_events() as events:
        stat = make_stat("x", None, 60.0, max_samples)
        for _ in range(3):
            clock.readings_left = nth
            add(1)
            add(1)
            stat.flush()
            clock.advance(60)
    windows = [event.window for event in events]
    assert added == sum(window.count for window in windows) + stat.count + stat.discarded
    assert [float(window.count) for window in windows] == [window.sum for window in windows]
    assert 0 not in {window.count for window in windows}
    windows.sort(key=lambda window: window.end_ns)
    assert [] == [pair for pair in pairwise(windows) if pair[0].end_ns > pair[1].start_ns]


@pytest.mark.parametrize("max_samples", [1, 2, 50, 2**63 - 1])
def test_signal_handler_adds_to_the_stat_it_interrupts(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], max_samples: int
) -> None:
    """A signal handler may add to the Stat that it interrupts, and flush it; every sample is counted once."""
    if sys.version_info < (3, 11) and monitel._window.Accumulator.__module__.endswith("_py"):
        pytest.skip("CPython 3.10 runs signal handlers between any two lines: see docs/reference/stats.md")
    stat = make_stat("x", None, 0.001, max_samples)
    interrupts = 0

    def interrupt(_number: int, _frame: Any) -> None:
        nonlocal interrupts
        interrupts += 1
        stat.add(1.0)
        if interrupts % 3 == 0:
            monitel.flush()

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        added, deadline = 0, time.monotonic() + 60
        while interrupts < 300:
            assert time.monotonic() < deadline
            stat.add(1.0)
            added += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    counted = added + interrupts - stat.count - stat.discarded
    assert counted == sum(event.window.count for event in events)
    assert counted == sum(event.window.sum for event in events)


def test_interrupted_add_releases_its_lock(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], run_threads: Any
) -> None:
    """After a KeyboardInterrupt anywhere inside add(), other threads can use the Stat."""

    class Interrupt(BaseException):
        pass

    def interrupt(_number: int, _frame: Any) -> None:
        if interrupted:  # not after the block: a signal may be handled late
            raise Interrupt

    def add_until_interrupted() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0001)
        while time.monotonic() < deadline:
            stat.add(1.0)

    stat = make_stat("x", None, 3600.0)
    previous = signal.signal(signal.SIGALRM, interrupt)
    deadline = time.monotonic() + 60
    interrupted = [stat]
    try:
        for _ in range(200):
            with suppress(Interrupt):
                add_until_interrupted()
    finally:
        interrupted.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    count = stat.count
    run_threads(stat.flush)
    assert [(count, count)] == [(event.window.count, event.window.sum) for event in events]
