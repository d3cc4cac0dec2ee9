"""Signal handlers, destructors, clocks and numbers that use a Stat in the middle of its add(), or emit() in emit()."""

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from itertools import count, pairwise
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, delivered_by
from tests.support.producers import fill, run_together, running
from tests.support.twins import MakeStat

import monitel as installed
from monitel.process.os_threads import call_in_main_thread

NO_LIMIT = 2**63 - 1
INTERRUPTS = 200
HALF: Any = Fraction(1, 2)  # a number that has to be converted


@pytest.fixture
def exact(monitel: ModuleType, twin: str) -> None:
    """Skip where the reference names a limit."""
    if twin == "py" and sys.version_info < (3, 11):
        pytest.skip("CPython 3.10 runs signal handlers between any two lines: see docs/reference/stats.md")


def interrupt(handle: Callable[[int], object], work: Callable[[], object]) -> None:
    """Repeat ``work`` in this thread while signals interrupt it; ``handle`` gets the number of the signal.

    A thread sends each to this one when the last was handled; one of the system's timer may arrive in a native thread.
    """
    main, handled = threading.get_ident(), threading.Semaphore(0)
    numbers = iter(range(1, INTERRUPTS + 1))
    in_time: list[bool] = []

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        try:
            handle(next(numbers))
        finally:
            handled.release()

    def send() -> None:
        for _ in range(INTERRUPTS):
            signal.pthread_kill(main, signal.SIGALRM)
            in_time.append(handled.acquire(timeout=DEADLINE))

    previous = signal.signal(signal.SIGALRM, on_signal)
    try:
        with running(send):
            while len(in_time) < INTERRUPTS:
                work()
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert all(in_time)


@contextmanager
def after_each_call(package: ModuleType, interruption: Callable[[], object]) -> Iterator[list[int]]:
    """Interrupt Python code of a package after each of its calls into C, where CPython runs signal handlers."""
    folder, interruptions = str(Path(package.__file__ or "").parent), []

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "c_return" and frame.f_code.co_filename.startswith(folder):
            interruptions.append(1)
            interruption()

    sys.setprofile(profile)
    try:
        yield interruptions
    finally:
        sys.setprofile(None)


def check(stat: Any, events: list[Any], added: int, total: float) -> None:
    """Check that each sample is in one window or discarded, and that windows agree with their distributions."""
    stat.flush()
    windows = sorted((each.window for each in events if each.window), key=lambda window: int(window.end_ns))
    assert added == sum(window.count for window in windows) + stat.discarded
    assert stat.discarded or total == sum(window.sum for window in windows)
    for window in windows:
        found = window.histogram
        buckets = sum(count for _, _, count in found.buckets())
        assert (window.count, window.sum, window.min, window.max) == (found.count, found.sum, found.min, found.max)
        assert window.count == buckets > 0
    assert [] == [pair for pair in pairwise(windows) if pair[0].end_ns > pair[1].start_ns]


@pytest.mark.parametrize("max_samples", [NO_LIMIT, 40])
@pytest.mark.usefixtures("exact", "frequent_switches")
def test_signal_handler_adds_to_the_stat_that_it_interrupts(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], max_samples: int
) -> None:
    """And flushes it."""
    stat = make_stat("x", None, 0.1, max_samples)
    rounds, samples = [0], [float(1 << number * 5 % 8) for number in range(8)]  # sums are exact

    def work() -> None:
        for sample in samples:
            stat.add(sample)
        rounds[0] += 1

    def handle(number: int) -> None:
        stat.add(2.0 ** -(number % 12))  # into another bucket
        if number % 3 == 0:
            monitel.flush()

    interrupt(handle, work)
    of_signals = [2.0 ** -(number % 12) for number in range(1, INTERRUPTS + 1)]
    check(stat, events, rounds[0] * len(samples) + INTERRUPTS, rounds[0] * sum(samples) + sum(of_signals))


@pytest.mark.parametrize("max_samples", [NO_LIMIT, 3])
@pytest.mark.usefixtures("exact")
def test_interruption_after_any_call_loses_nothing(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any], max_samples: int
) -> None:
    """As above, at each place where CPython runs signal handlers: the Python window has many, the C window few."""
    stat, added, depth = make_stat("x", None, 60.0, max_samples), [0], [0]

    def add() -> None:
        added[0] += 1
        stat.add(1.0)

    def interruption() -> None:
        depth[0] += 1
        add()
        if depth[0] % 3 == 0:
            stat.flush()

    interrupted = 0
    for number in range(30):
        with after_each_call(monitel, interruption) as interruptions:
            add()
            if number % 5 == 4:
                clock.advance(60)
            if number % 7 == 6:
                monitel.flush()
        interrupted += len(interruptions)
        if windows := [event.window for event in events]:
            latest = max(windows, key=lambda window: int(window.end_ns))  # it may be logged before an earlier one
            got = stat.get()
            assert (latest.count, latest.sum) == (got[monitel.COUNT], got[monitel.SUM])
    assert interrupted > 30
    check(stat, events, added[0], float(added[0]))


def test_thread_adds_during_any_call(make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """As above, by another thread, which waits where there is a lock: a lock that is missing loses a sample."""
    stat, threads = make_stat(), []

    def interruption() -> None:
        threads.append(threading.Thread(target=stat.add, args=(1.0,)))
        threads[-1].start()
        threads[-1].join(0.001)

    with after_each_call(monitel, interruption):
        for number in range(8):
            stat.add(1.0)
            if number % 3 == 2:
                clock.advance(60)
            if number % 4 == 3:
                stat.flush()
    for thread in threads:
        thread.join(DEADLINE)
    check(stat, events, 8 + len(threads), 8.0 + len(threads))


def test_interrupted_stat_stops_no_description_of_windows(make_stat: MakeStat, monitel: ModuleType, clock: Any) -> None:
    """Code that interrupts a Stat may wait for a lock of whoever describes the open windows, as a snapshot does."""
    stat, lock, waited = make_stat("x", [monitel.COUNT]), threading.Lock(), list[bool]()
    open_windows = monitel.stats.window_sinks.open_windows

    def interruption() -> None:
        begun = threading.Event()

        def describe() -> None:
            with lock:
                begun.set()
                open_windows()

        if all(waited):  # one that fails is enough
            threading.Thread(target=describe, daemon=True).start()
            begun.wait(5)
            waited.append(lock.acquire(timeout=5))
            if waited[-1]:
                lock.release()

    stat.add(1.0)
    with after_each_call(monitel, interruption):
        clock.advance(60)
        fill(stat, 1.0)
    assert all(waited)
    stat.add(1.0)  # its window is in the next description
    assert stat._serial in {installed.stats.window.key(each)[0] for each in open_windows()}


@pytest.mark.usefixtures("frequent_switches")
def test_signal_handler_emits_within_emit(events: list[Any]) -> None:
    """Each event is handled once, and a counter and a wait that are interrupted are exact."""
    counter, wait, emitted = installed.counter("events"), installed.WaitCounter("wait"), [0]

    def work() -> None:
        installed.emit("work", number=emitted[0])
        emitted[0] += 1
        counter.add(1000)
        with wait.guard():
            pass

    def handle(number: int) -> None:
        installed.emit("signal", number=number)
        counter.add()
        with wait.guard():
            installed.counters()

    interrupt(handle, work)
    for name, numbers in (("work", range(emitted[0])), ("signal", range(1, INTERRUPTS + 1))):
        assert [*numbers] == [event.data["number"] for event in events if event.name == name]
    assert 1000 * emitted[0] + INTERRUPTS == counter.total
    reading = installed.wait_counters()["wait"]
    assert (emitted[0] + INTERRUPTS, 0) == (reading.count, reading.active)


def test_call_in_the_main_thread_that_schedules_another_does_not_hold_it_up() -> None:
    """Rounds of a pipeline schedule such calls: on a busy machine the next round may come before the call ends."""
    calls: list[int] = []

    def again() -> None:
        calls.append(len(calls))
        if len(calls) < 3:
            call_in_main_thread(again)

    call_in_main_thread(again)
    at_once = [*calls]
    while len(calls) < 3:
        call_in_main_thread(again)
    assert [0] == at_once


class _Phoenix:
    """Adds a sample and logs an event when the garbage collector destructs it."""

    def __init__(self, die: Callable[[], object]) -> None:
        self.itself = self
        self.die = die

    def __del__(self) -> None:
        self.die()


def test_destructors_add_and_emit(make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """The garbage collector may run them anywhere in add(), flush() and emit(): nothing is lost."""
    stat = make_stat("x", None, 60.0, 20)
    destructed = [0]

    def die() -> None:
        destructed[0] += 1
        stat.add(0.5)
        monitel.emit("destructed")

    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for number in range(300):
            _Phoenix(die)
            stat.add(2.0)
            monitel.emit("alive")
            if number % 7 == 0:
                stat.flush()
            if number % 20 == 0:
                clock.advance(60)
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert 300 == destructed[0]
    check(stat, events, 600, 750.0)
    names = [event.name for event in events]
    assert (300, 300) == (names.count("alive"), names.count("destructed"))


def test_number_may_use_its_stat(make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """A ``__float__`` that adds to the Stat, flushes it, and crosses a boundary loses no sample."""
    stat = make_stat("x", None, 60.0, 3)

    class Number:
        def __float__(self) -> float:
            stat.add(1)
            clock.advance(50)
            monitel.flush()
            return 100.0

    stat.add(Number())
    fill(stat, Number())
    assert [1.0, 101.0, 100.0] == [event.window.sum for event in events]


class _Interrupted(BaseException):
    """As KeyboardInterrupt, which would end the tests if it came too late."""


@pytest.mark.usefixtures("frequent_switches")
def test_interrupted_add_leaves_no_lock(make_stat: MakeStat, events: list[Any]) -> None:
    """After Ctrl+C anywhere inside add(), other threads can use the Stat, and it has consistent numbers."""
    stat, raised, armed = make_stat("x", None, 3600.0), [0], list[bool]()

    def work() -> None:
        with suppress(_Interrupted):
            armed.append(True)
            for _ in range(100):
                stat.add(1.0)
            armed.clear()

    def handle(_number: int) -> None:
        if armed:
            armed.clear()
            raised[0] += 1
            raise _Interrupted

    interrupt(handle, work)
    count = stat.count
    run_together(stat.flush)
    assert raised[0] > INTERRUPTS // 2
    assert [(count, count)] == [(event.window.count, event.window.sum) for event in events]


class _AlarmError(Exception):
    pass


#: Most of them with a value that has to be converted, or is left out.
CALLS: dict[str, Callable[[installed.Stat], object]] = {
    "log": lambda _: installed.log({"a": HALF, "b": None}, split="é"),
    "emit": lambda _: installed.emit("event", {1: "é", "b": None}, c=2.0),
    "config": lambda _: installed.config({"a": SimpleNamespace(b={1, 2}), "c": [HALF], "d": print}),
    "counter": lambda _: installed.counter("amounts").add(HALF),
    "window": lambda stat: fill(stat, HALF),
    "step": lambda _: installed.set_step((installed.get_step() or 0) + 1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_exception_of_a_signal_handler_leaves_each_call(start: Start, call: Callable[[installed.Stat], object]) -> None:
    """As that of ``signal.alarm()``, with which an application limits the time of a step."""
    stat = installed.Stat("x", [installed.MEAN], 3600.0)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        raise _AlarmError

    def ended(number: int) -> int | None:
        """Raise in an interruption of the call; return the number of interruptions if the call ends all the same."""
        interruptions = []

        def interruption() -> None:
            interruptions.append(1)
            if len(interruptions) == number:
                signal.raise_signal(signal.SIGALRM)

        with suppress(_AlarmError), after_each_call(installed, interruption):
            call(stat)
            return len(interruptions)
        return None

    with delivered_by(start()):
        call(stat)
        previous = signal.signal(signal.SIGALRM, on_signal)
        try:
            number, had = next((each, had) for each in count(1) if (had := ended(each)) is not None)
        finally:
            signal.signal(signal.SIGALRM, previous)
    assert 1 < had < number
