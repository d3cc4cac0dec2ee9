"""Ranges: what listeners receive, with which times, parents and errors; shared by threads, tasks and listeners."""

import _thread
import asyncio
import contextvars
import signal
import threading
import weakref
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from threading import Event
from typing import Any

import pytest
from tests.support.inbox import DEADLINE
from tests.support.producers import record_ranges, repeating, run_together

import monitel
from monitel.profiler import ranges
from monitel.profiler import record_function as record
from monitel.testing import ManualClock

SECOND = 1_000_000_000
THREADS = 3
BLOCKS = 300  # of each thread

pytestmark = pytest.mark.usefixtures("clean_profiler")


def test_range_has_name_args_parent_step_track_and_exact_times(clock: ManualClock) -> None:
    """A listener receives one object when a range begins and when it ends, with everything about the range."""
    received: list[Any] = []
    with ranges.listen(began=received.append, ended=received.append):
        monitel.set_step(7)
        with record("outer", "details"):
            clock.advance(1)
            with record("inner", {"n": 1}):
                current: Any = ranges.current_range()
                assert current is received[1]
                clock.advance(2)
                assert received[1].end_ns is None
            clock.advance(3)
    outer, inner = received[:2]
    assert [outer, inner, inner, outer] == received
    assert [("outer", "details", None, 7), ("inner", {"n": 1}, outer, 7)] == [
        (each.name, each.args, each.parent, each.step) for each in (outer, inner)
    ]
    now_ns = clock.time_ns()
    assert [(now_ns - 6 * SECOND, now_ns), (now_ns - 5 * SECOND, now_ns - 3 * SECOND)] == [
        (each.start_ns, each.end_ns) for each in (outer, inner)
    ]
    track = inner.track
    assert (threading.get_native_id(), "MainThread", None) == (track.thread_id, track.thread_name, track.task_name)
    assert ranges.current_range() is None


def test_listener_receives_the_ends_of_ranges_that_began_while_it_listened() -> None:
    """The listeners of an end are those of the begin; without a listener nothing is recorded."""
    first: list[str] = []
    second: list[str] = []
    with record("before"):
        assert ranges.current_range() is None
        listening = ranges.listen(ended=lambda each: first.append(each.name))
        with record("a"):
            late = ranges.listen(ended=lambda each: second.append(each.name))
        with record("b"):
            listening.close()
        with record("c"):
            late.close()
    record_ranges("after")
    assert (["a", "b"], ["b", "c"]) == (first, second)


def test_exception_that_leaves_a_range_is_its_error() -> None:
    ended: list[Any] = []
    with ranges.listen(ended=lambda each: ended.append((each.name, each.error_type))):
        with record("catching"), suppress(KeyError), record("step"), record("forward"):
            raise KeyError
        for stop in (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError):
            with pytest.raises(stop), record("stopped"):
                raise stop
    expected = [("forward", "KeyError"), ("step", "KeyError"), ("catching", None), *[("stopped", None)] * 4]
    assert expected == ended


def test_failing_listener_harms_nobody(unraisable: list[Any]) -> None:
    """Its exception goes to ``sys.unraisablehook``; the block and other listeners go on."""
    ended: list[str] = []
    with ranges.listen(began=lambda _: 1 / 0), ranges.listen(ended=lambda each: ended.append(each.name)), record("a"):
        ended.append("block")
    assert (["block", "a"], [ZeroDivisionError]) == (ended, [*map(type, unraisable)])


def test_what_a_signal_handler_raises_is_the_applications(unraisable: list[Any]) -> None:
    """Also in a listener, whose own errors harm nobody; other listeners receive the range."""

    def on_alarm(_number: int, _frame: Any) -> None:
        raise TimeoutError("too slow")

    def listener(_range: Any) -> None:
        signal.raise_signal(signal.SIGALRM)

    ended: list[str] = []
    previous = signal.signal(signal.SIGALRM, on_alarm)
    try:
        both = ranges.listen(ended=listener), ranges.listen(ended=lambda each: ended.append(each.name))
        with both[0], both[1], pytest.raises(TimeoutError, match="too slow"), record("a"):
            pass
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert (["a"], []) == (ended, unraisable)


def test_decorated_code_has_ranges_while_it_runs(clock: ManualClock) -> None:
    """A function per call, a coroutine up to its result, generators each time they run; ends are not errors."""

    @record("function")
    def function(depth: int) -> int:
        """Return 0."""
        clock.advance(1)
        return function(depth - 1) if depth else 0

    @record("coroutine")
    async def coroutine() -> None:
        clock.advance(1)
        await asyncio.sleep(0)
        clock.advance(1)
        raise KeyError

    @record("generator")
    def generate() -> Generator[object, object, None]:
        yield (yield 1)
        clock.advance(2)

    ended: list[tuple[str, int, str | None]] = []

    def note(each: Any) -> None:
        ended.append((each.name, (clock.time_ns() - each.start_ns) // SECOND, each.error_type))

    with ranges.listen(ended=note):
        assert (0, "function", "Return 0.") == (function(1), function.__name__, function.__doc__)
        with pytest.raises(KeyError):
            asyncio.run(coroutine())
        generator, closed, thrown = (generate() for _ in range(3))
        assert (1, "sent") == (next(generator), generator.send("sent"))
        clock.advance(10)
        assert [] == list(generator)
        next(closed)
        closed.close()
        next(thrown)
        with pytest.raises(KeyError):
            thrown.throw(KeyError())
    assert [
        *(("function", 1, None), ("function", 2, None), ("coroutine", 2, "KeyError")),
        *(("generator", seconds, None) for seconds in (0, 0, 2, 0, 0, 0)),
        ("generator", 0, "KeyError"),
    ] == ended


def test_parents_are_those_of_the_thread_and_of_the_task() -> None:
    """A thread begins without a parent; a task begins in the range in which it was created, unless that has ended."""
    found: dict[str, tuple[str | None, str]] = {}

    async def job(name: str, go: asyncio.Event) -> None:
        await go.wait()
        with record(name):
            await asyncio.sleep(0)
            with record(f"{name}.part"):
                await asyncio.sleep(0)

    async def both() -> None:
        go = asyncio.Event()
        with record("making"):
            tasks = [asyncio.create_task(job("late", go), name="task late")]
        with record("main"):
            tasks += [asyncio.create_task(job(each, go), name=f"task {each}") for each in "ab"]
            go.set()
            await asyncio.gather(*tasks)

    def ended(each: Any) -> None:
        found[each.name] = each.parent and each.parent.name, str(each.track)

    with ranges.listen(ended=ended), record("outermost"):
        thread = threading.Thread(target=record_ranges, args=["in thread"], name="loader")
        thread.start()
        thread.join(DEADLINE)
        asyncio.run(both())
    assert ["outermost"] * 2 == [found.pop(name)[0] for name in ("making", "main")]
    assert {
        "in thread": (None, "loader"),
        **{each: ("main", f"task {each} (MainThread)") for each in "ab"},
        "late": ("outermost", "task late (MainThread)"),
        **{f"{each}.part": (each, f"task {each} (MainThread)") for each in ("a", "b", "late")},
        "outermost": (None, "MainThread"),
    } == found


def test_range_that_is_known_afterwards_is_recorded() -> None:
    """``record_past`` takes the times of ``now()``, and a name that is not text becomes text."""
    ended: list[Any] = []
    number: Any = 5
    with ranges.listen(ended=ended.append):
        end_ns = ranges.now()
        ranges.record_past(number, end_ns - 3 * SECOND, end_ns)
    assert [("5", 3 * SECOND)] == [(each.name, each.end_ns - each.start_ns) for each in ended]


def test_wall_clock_set_back(clock: Any) -> None:
    """A range during which the wall clock is set back has its true length; the next range has the new time."""
    received: list[Any] = []
    with ranges.listen(ended=received.append):
        with record("a"):
            clock.advance(1)
            clock.set_wall_clock(-3600)
        with ranges.listen(), record("b"):
            clock.advance(1)
    assert [SECOND, SECOND] == [each.end_ns - each.start_ns for each in received]
    assert clock.time_ns() == received[1].end_ns


def test_ended_ranges_are_freed() -> None:
    """Ended ranges and their args are freed, and freeing a long chain of parents does not recurse."""

    class Args(dict[str, Any]):
        """A dict that can be referenced weakly."""

    args = Args()
    found = weakref.ref(args)
    last: list[Any] = []
    with ranges.listen(began=lambda each: last.__setitem__(slice(None), [each])):
        with record("a", args):
            pass
        del args
        contexts = [contextvars.copy_context()]
        labels = [record("link") for _ in range(50_000)]
        for label in labels:
            contexts[0].run(label.__enter__)
        for label in reversed(labels):
            contexts[0].run(label.__exit__, None, None, None)
    contexts.clear()
    labels.clear()
    last.clear()
    assert found() is None


def test_block_without_listeners_ends_no_range_around_it() -> None:
    """A range ends with its block, even if blocks of the same object within it began after the listener was closed."""
    received: list[Any] = []
    label = record("a")
    listening = ranges.listen(ended=received.append)

    def blocks() -> None:
        with label:
            listening.close()
            for _ in range(2):
                with label, label:
                    pass
            assert [] == received
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        blocks()
    assert ["ValueError"] == [each.error_type for each in received]


def test_thread_started_without_threading() -> None:
    """A thread started without threading is recorded and adds no dummy to threading.enumerate()."""
    done, ended, found = threading.Event(), list[Any](), list[int]()

    def work() -> None:
        record_ranges("work")
        found.append(len(threading.enumerate()))
        done.set()

    with ranges.listen(ended=ended.append):
        _thread.start_new_thread(work, ())
        assert done.wait(DEADLINE)
    assert "thread" == ended[0].track.thread_name
    assert [len(threading.enumerate())] == found


def test_exit_of_one_thread_ends_no_range_of_another() -> None:
    """A thread that entered before the listener came leaves its block while another is within the same object."""
    label = record("a")
    entered, began, left = Event(), Event(), Event()
    received: list[Any] = []
    running: list[bool] = []

    def before() -> None:
        with label:
            entered.set()
            assert began.wait(DEADLINE)
        left.set()

    def after() -> None:
        assert entered.wait(DEADLINE)
        with ranges.listen(ended=received.append):
            with label:
                began.set()
                assert left.wait(DEADLINE)
                running.append(ranges.current_range() is not None and not received)
            running.append(ranges.current_range() is None)

    run_together(before, after)
    assert [True, True] == running
    assert 1 == len(received)


@pytest.mark.usefixtures("frequent_switches")
def test_threads_share_an_object_while_listeners_come_and_go() -> None:
    """Each range that began ends once, in its thread, after the ranges within it; no exit raises."""
    label = record("shared")
    began: list[Any] = []
    ended: list[Any] = []

    @label
    def call() -> None:
        with label:
            pass

    def work() -> None:
        for _ in range(BLOCKS):
            call()
            with label:
                for _ in range(2):
                    with label:
                        pass
        assert ranges.current_range() is None

    def listen() -> None:
        with ranges.listen(began=began.append, ended=ended.append):
            for _ in range(5):
                call()

    with repeating(listen):
        run_together(*[work] * THREADS)
    assert Counter(map(id, began)) == Counter(map(id, ended))
    assert len(began) == len(set(map(id, began)))
    assert all(each.monotonic_end_ns >= each.monotonic_start_ns for each in ended)
    position = {id(each): number for number, each in enumerate(ended)}
    assert all(position[id(each)] < position[id(each.parent)] for each in ended if id(each.parent) in position)
    assert all(each.parent is None or each.parent.track is each.track for each in ended)
