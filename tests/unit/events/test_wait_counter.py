"""WaitCounter: number and duration of waits, by key."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from threading import Event, Thread, get_ident
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel import WaitCounter, WaitReading, wait_counter, wait_counters
from monitel.readings import began_ns, own_waits, source_waits, wait_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel.testing import ManualClock

    RunScript = Any


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """Return a key that only this test uses: the totals are process-wide."""
    return str(request.node.nodeid)


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Return a clock that moves only by advance()."""
    with monitel.testing.ManualClock() as clock:
        yield clock


def test_row_wait_counter(key: str, clock: ManualClock) -> None:
    """Row "_WaitCounter": count, total, max and active waits are kept per key; torch shows nothing."""
    counter = WaitCounter(key)
    assert WaitReading(count=0, total=0.0, max=0.0, active=0) == wait_counters()[key]
    for seconds in (2, 5, 1):
        with counter.guard():
            clock.advance(seconds)
            assert 1 == wait_counters()[key].active
    assert WaitReading(count=3, total=8.0, max=5.0, active=0) == wait_counters()[key]


def test_counters_of_one_key_share_the_totals(key: str, clock: ManualClock) -> None:
    """Each call creates another object; torch's class name and a key in bytes refer to the same totals."""
    encoded: Any = key.encode()
    counters = [WaitCounter(key), WaitCounter(key=key), monitel._WaitCounter(encoded)]
    for counter in counters:
        with counter.guard():
            clock.advance(1)
    del counter, counters
    gc.collect()
    assert WaitReading(3, 3.0, 1.0, 0) == wait_counters()[key]


def test_names() -> None:
    """WaitCounter is the public name of torch's _WaitCounter; it has the property key and shows it in its repr."""
    assert monitel._WaitCounter is WaitCounter
    counter = WaitCounter("data.loading")
    assert ("data.loading", "WaitCounter('data.loading')") == (counter.key, repr(counter))
    assert counter is weakref.ref(counter)()
    assert type(counter.guard()) is monitel._WaitCounterTracker
    assert counter.guard() is not counter.guard()


@pytest.mark.parametrize("key", [None, 1, 1.5, ("a",), "\ud800"])
def test_keys_of_other_types(key: Any) -> None:
    """A key that is not text is a TypeError."""
    with pytest.raises(TypeError, match="WaitCounter key must be"):
        WaitCounter(key)


@pytest.mark.parametrize("arguments", [(), ("a", "b")])
def test_takes_one_key(arguments: tuple[str, ...]) -> None:
    """A counter takes exactly one key."""
    with pytest.raises(TypeError):
        WaitCounter(*arguments)


def test_guards_come_from_counters() -> None:
    """A guard has no constructor, as in torch."""
    with pytest.raises(TypeError, match=r"WaitCounter\(key\).guard\(\) returns one"):
        monitel._WaitCounterTracker()


def test_guard_methods_return_none(key: str) -> None:
    """Entering and leaving return None; leaving takes no keywords, as in torch."""
    guard: Any = WaitCounter(key).guard()
    assert guard.__enter__() is None
    with pytest.raises(TypeError):
        guard.__exit__(exc_type=None)
    assert guard.__exit__(None, None, None) is None
    assert 1 == wait_counters()[key].count


def test_exception_passes(key: str, clock: ManualClock) -> None:
    """A wait that ends with an exception is counted, and the exception is not suppressed."""
    guard = WaitCounter(key).guard()
    with pytest.raises(ValueError, match="seconds >= 0"), guard:
        clock.advance(-1)
    assert WaitReading(1, 0.0, 0.0, 0) == wait_counters()[key]


@pytest.mark.parametrize("readings", [0, 1])
def test_interrupted_guard_leaves_no_wait_in_flight(
    key: str, readings: int, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl+C while a wait begins or ends: a wait that is in flight forever would be reported as stuck."""
    left = [readings]

    def interrupt_once() -> int:
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        return clock.monotonic_ns()

    def wait() -> None:
        with WaitCounter(key).guard():
            pass

    monkeypatch.setattr("monitel.clock.monotonic_ns", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        wait()
    gc.collect()
    assert 0 == wait_counters()[key].active


def test_left_without_entering(key: str) -> None:
    """Leaving a guard that was not entered, or twice, counts nothing."""
    guard = WaitCounter(key).guard()
    guard.__exit__(None, None, None)
    assert WaitReading(0, 0.0, 0.0, 0) == wait_counters()[key]
    with guard:
        pass
    guard.__exit__(None, None, None)
    assert (1, 0) == (wait_counters()[key].count, wait_counters()[key].active)


def test_guard_is_used_again(key: str, clock: ManualClock) -> None:
    """A guard counts each use, even after its counter was released."""
    guard = WaitCounter(key).guard()
    for _ in range(3):
        with guard:
            clock.advance(2)
        clock.advance(10)
    assert WaitReading(3, 6.0, 2.0, 0) == wait_counters()[key]


def test_guards_of_one_counter_nest(key: str, clock: ManualClock) -> None:
    """Two guards are two waits, even at once."""
    counter = WaitCounter(key)
    with counter.guard():
        clock.advance(1)
        with counter.guard():
            clock.advance(1)
            assert WaitReading(0, 0.0, 0.0, 2) == wait_counters()[key]
    assert WaitReading(2, 3.0, 2.0, 0) == wait_counters()[key]


def test_one_guard_entered_twice(key: str, clock: ManualClock) -> None:
    """Entering again ends the first wait, leaving ends the second wait, and leaving again does nothing."""
    guard = WaitCounter(key).guard()
    with guard:
        clock.advance(1)
        with guard:
            assert WaitReading(1, 1.0, 1.0, 1) == wait_counters()[key]
            clock.advance(2)
        assert WaitReading(2, 3.0, 2.0, 0) == wait_counters()[key]
        clock.advance(4)
    assert WaitReading(2, 3.0, 2.0, 0) == wait_counters()[key]


def test_guard_lost_while_entered(key: str, clock: ManualClock) -> None:
    """A guard that is destructed while entered ends its wait, as in torch."""
    guard = WaitCounter(key).guard()
    guard.__enter__()
    clock.advance(2)
    del guard
    gc.collect()
    assert WaitReading(1, 2.0, 2.0, 0) == wait_counters()[key]


def test_left_by_another_thread(key: str, clock: ManualClock, run_threads: Callable[..., None]) -> None:
    """A wait may end in another thread."""
    guard = WaitCounter(key).guard()
    guard.__enter__()
    clock.advance(2)
    run_threads(lambda: guard.__exit__(None, None, None))
    assert WaitReading(1, 2.0, 2.0, 0) == wait_counters()[key]


def test_waits_of_a_thread(key: str, clock: ManualClock, run_threads: Callable[..., None]) -> None:
    """The earliest start of a thread's waits that are in progress; None if it is in no wait of the key."""
    counter, threads = WaitCounter(key), (get_ident(), -1)

    def waits() -> list[int | None]:
        return [wait_counter.waits_of(thread)[key] for thread in threads]

    assert [None, None] == waits()
    clock.advance(1)
    with counter.guard():
        began_ns = monitel.clock.monotonic_ns()
        clock.advance(1)
        lost = counter.guard()
        lost.__enter__()
        assert [began_ns, None] == waits()
        run_threads(lambda: lost.__exit__(None, None, None), lambda: counter.guard().__enter__())
    assert [None, None] == waits()
    with pytest.raises(KeyError), counter.guard():
        wait_counter.waits_of(get_ident())[f"{key}, unknown"]
    assert [None, None] == waits()


def test_threads(key: str, run_threads: Callable[..., None]) -> None:
    """Ten threads with a hundred waits each give a thousand waits (c10's test)."""

    def wait() -> None:
        for _ in range(100):
            with WaitCounter(key).guard():
                pass

    run_threads(*[wait] * 10)
    assert (1000, 0) == (wait_counters()[key].count, wait_counters()[key].active)


def test_readings_are_copies(key: str) -> None:
    """A reading does not change, and a change of the dict has no effect."""
    counter = WaitCounter(key)
    readings = wait_counters()
    reading: Any = readings.pop(key)
    with counter.guard():
        pass
    assert 0 == reading.count
    assert 1 == wait_counters()[key].count
    with pytest.raises(AttributeError):
        reading.count = 5


def test_logs_no_events(key: str) -> None:
    """A wait does not log an event."""
    with monitel.testing.capture_events() as events, WaitCounter(key).guard():
        pass
    assert [] == events


def test_readings_have_the_start_of_the_key(clock: ManualClock, key: str) -> None:
    """The start is the creation of the first counter of the key. A source may have none."""
    created = clock.time_ns()
    WaitCounter(key)
    clock.advance(5)
    with WaitCounter(key).guard():
        clock.advance(1)
    assert created == wait_counters()[key].start_ns == dict(own_waits())[key].start_ns
    assert 0 == WaitReading(1, 1.0, 1.0, 0).start_ns
    assert 0 < began_ns() <= time.time_ns()


def test_own_keys_are_read_without_a_lock_and_without_sources(key: str, theirs: dict[str, WaitReading]) -> None:
    """A thread that hangs with the lock stops no reading."""
    theirs["elsewhere"] = WaitReading(2, 3.0, 2.0, 1)
    entered, released = Event(), Event()

    def hold() -> None:
        with wait_counter._lock:
            entered.set()
            released.wait(20)

    with WaitCounter(key).guard():
        pass
    thread = Thread(target=hold, daemon=True)
    thread.start()
    assert entered.wait(20)
    try:
        found = dict(own_waits())
        assert (1, key in wait_keys()) == (found[key].count, True)
        assert "elsewhere" not in found
        assert theirs["elsewhere"] == source_waits()["elsewhere"]
        assert thread.is_alive()
    finally:
        released.set()
        thread.join(20)


def test_each_reader_gets_the_longest_wait_once() -> None:
    """Two readers have separate maxima, and reading resets the maximum."""
    with monitel.testing.ManualClock() as clock:
        first, second = monitel.WaitMaxima(), monitel.WaitMaxima()
        for seconds in (1.0, 3.0, 2.0):
            with monitel.WaitCounter("maxima").guard():
                clock.advance(seconds)
        assert {"maxima": 3.0} == first.read()
        with monitel.WaitCounter("maxima").guard():
            clock.advance(0.5)
        assert {"maxima": 0.5} == first.read()
        assert {} == first.read()
        assert {"maxima": 3.0} == second.read()


def test_first_reading_includes_earlier_waits(key: str) -> None:
    """A reader that is created later gets the maximum since the process started."""
    with monitel.testing.ManualClock() as clock:
        for seconds in (2.0, 1.0):
            with WaitCounter(key).guard():
                clock.advance(seconds)
        WaitCounter("never waited for")
        maxima = monitel.WaitMaxima()
    assert {key: 2.0} == maxima.read()
    assert {} == maxima.read()


def test_while_another_thread_imports_torch(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """A partially imported torch has no ``torch.compiler`` yet, and compiles nothing."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    with WaitCounter(key).guard():
        pass
    assert 1 == wait_counters()[key].count


@pytest.fixture
def theirs() -> Iterator[dict[str, WaitReading]]:
    """Return the readings of a source, for the test to fill."""
    readings: dict[str, WaitReading] = {}

    def source() -> dict[str, WaitReading]:
        return readings

    wait_counter.add_source(source)
    yield readings
    wait_counter.remove_source(source)


def test_sources_are_read(key: str, theirs: dict[str, WaitReading]) -> None:
    """Readings include those of a source; a key that is counted in this process takes precedence."""
    theirs["elsewhere"] = WaitReading(2, 3.0, 2.0, 1)
    theirs[key] = WaitReading(9, 9.0, 9.0, 9)
    WaitCounter(key)
    assert WaitReading(2, 3.0, 2.0, 1) == wait_counters()["elsewhere"]
    assert WaitReading(0, 0.0, 0.0, 0) == wait_counters()[key]


def test_longest_wait_of_a_source(theirs: dict[str, WaitReading]) -> None:
    """The longest wait is known if it is a new maximum or was the only wait; otherwise it is omitted."""
    maxima = monitel.WaitMaxima()
    theirs["elsewhere"] = WaitReading(3, 8.0, 5.0, 0)
    assert {"elsewhere": 5.0} == maxima.read()
    assert {} == maxima.read()
    theirs["elsewhere"] = WaitReading(4, 9.0, 5.0, 0)
    assert {"elsewhere": 1.0} == maxima.read()
    theirs["elsewhere"] = WaitReading(6, 12.0, 5.0, 0)
    assert {} == maxima.read()
    theirs["elsewhere"] = WaitReading(9, 30.0, 7.0, 0)
    assert {"elsewhere": 7.0} == maxima.read()


def test_last_readings_of_a_removed_source_are_kept() -> None:
    """Readings of a removed source are kept, without active waits, including the longest wait."""

    def source() -> dict[str, WaitReading]:
        return gone

    gone = {"gone": WaitReading(2, 3.0, 2.0, 1)}
    wait_counter.add_source(source)
    maxima = monitel.WaitMaxima()
    assert 2.0 == maxima.read()["gone"]
    gone["gone"] = WaitReading(3, 4.0, 2.0, 1)
    wait_counter.remove_source(source)
    gone["gone"] = WaitReading(9, 9.0, 9.0, 9)
    wait_counter.remove_source(source)
    assert WaitReading(3, 4.0, 2.0, 0) == wait_counters()["gone"]
    assert [1.0, None] == [maxima.read().get("gone"), maxima.read().get("gone")]
    wait_counter.add_source(source)
    assert WaitReading(9, 9.0, 9.0, 9) == wait_counters()["gone"]
    wait_counter.remove_source(source)


def test_forked_child_has_no_sources(run_script: RunScript) -> None:
    """The counts of a source in the child may include those of the parent."""
    ended = run_script(
        """
def source():
    return {"gone": monitel.WaitReading(1, 1.0, 1.0, 0)}

monitel.wait_counter.add_source(lambda: {"elsewhere": monitel.WaitReading(2, 3.0, 2.0, 1)})
monitel.wait_counter.add_source(source)
monitel.wait_counter.remove_source(source)
if os.fork() == 0:
    say("child", *monitel.wait_counters())
    os._exit(0)
os.wait()
say("parent", *monitel.wait_counters())
"""
    )
    assert ["child", "parent gone elsewhere"] == ended.lines


def test_forked_child_continues_only_the_waits_of_the_forking_thread(run_script: RunScript) -> None:
    """The other threads do not exist there: nothing would end their waits."""
    ended = run_script(
        """
from threading import Event, Thread

entered, done = Event(), Event()
counter = monitel.WaitCounter("wait")

def wait():
    with counter.guard():
        entered.set()
        done.wait()

thread = Thread(target=wait)
thread.start()
entered.wait()
with counter.guard():
    if os.fork() == 0:
        say("child", monitel.wait_counters()["wait"].active)
    else:
        os.wait()
        say("parent", monitel.wait_counters()["wait"].active)
        done.set()
        thread.join()
reading = monitel.wait_counters()["wait"]
say(reading.count, reading.active)
os._exit(0)
"""
    )
    assert ["child 1", "1 0", "parent 2", "2 0"] == ended.lines
