"""Ranges: who is told of what, from which thread and task, with which times and parents. Over both twins."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import ModuleType

    from monitel.profiler import record_function

    RunScript = Any
    RunThreads = Any

SECOND = 1_000_000_000


@pytest.fixture
def ranges(monitel: ModuleType, twin: str) -> Any:
    """Give the recording layer of the twin under test, with nobody listening."""
    ranges = monitel.profiler.ranges
    assert f"monitel.profiler._ranges_{twin}" == ranges.Range.__module__
    assert () == ranges._listeners
    return ranges


@pytest.fixture
def record(ranges: Any) -> type[record_function]:
    """Give record_function."""
    found: type[record_function] = ranges.record_function
    return found


@pytest.fixture
def told(ranges: Any) -> Iterator[list[tuple[str, Any]]]:
    """Collect ("began" or "ended", range)."""
    told: list[Any] = []
    with ranges.listen(
        began=lambda each: told.append(("began", each)), ended=lambda each: told.append(("ended", each))
    ):
        yield told
    assert () == ranges._listeners


def names(told: list[Any], what: str = "began") -> list[str]:
    """Name what began, or ended."""
    return [each.name for kind, each in told if kind == what]


def parents(told: list[Any]) -> list[tuple[str, str | None]]:
    """Give each range's name and its parent's."""
    return [(each.name, each.parent and each.parent.name) for kind, each in told if kind == "began"]


def test_attributes(monitel: ModuleType, ranges: Any, record: type[record_function], clock: Any) -> None:
    """A range knows its name, args, parent, track, step and times; the same object begins and ends."""
    told: list[Any] = []
    with ranges.listen(began=told.append, ended=told.append):
        monitel.set_step(7)
        with record("outer", "details"):
            clock.advance(1)
            assert ["outer"] == [each.name for each in told]
            assert told[0] is ranges.current_range()
            assert (None, -1) == (told[0].end_ns, told[0].monotonic_end_ns)
            with record("inner", {"n": 1}):
                clock.advance(2)
            clock.advance(3)
    outer, inner, inner_again, outer_again = told
    assert (outer, inner) == (outer_again, inner_again)
    assert ("details", {"n": 1}) == (outer.args, inner.args)
    assert (None, outer) == (outer.parent, inner.parent)
    assert (7, 7) == (outer.step, inner.step)
    assert (0, 6 * SECOND, SECOND, 3 * SECOND) == (
        *(outer.monotonic_start_ns, outer.monotonic_end_ns),
        *(inner.monotonic_start_ns, inner.monotonic_end_ns),
    )
    epoch_ns = clock.time_ns() - clock.monotonic_ns()
    assert (epoch_ns + SECOND, epoch_ns + 3 * SECOND) == (inner.start_ns, inner.end_ns)
    assert outer.track is inner.track
    assert (threading.get_native_id(), "MainThread", None) == (
        *(outer.track.thread_id, outer.track.thread_name),
        outer.track.task_name,
    )
    assert f"<Range 'inner' in MainThread, {2 * SECOND} ns>" == repr(inner)
    assert ranges.current_range() is None


def test_wall_clock_times(ranges: Any, record: type[record_function]) -> None:
    """Times lie between readings of the wall clock around them, but for what two readings of clocks differ by."""
    with ranges.listen() as listening:
        before = time.time_ns()
        with record("a") as label:
            pass
        after = time.time_ns()
        range_: Any = label._opened
        assert listening in ranges._listeners
    assert before - 1_000_000 <= range_.start_ns <= range_.end_ns <= after + 1_000_000


def test_wall_clock_set_back(ranges: Any, record: type[record_function], clock: Any) -> None:
    """A range during which the wall clock is set back has its true length; the next listener has the new time."""
    told: list[Any] = []
    with ranges.listen(ended=told.append):
        with record("a"):
            clock.advance(1)
            clock.set_wall_clock(-3600)
        with ranges.listen(), record("b"):
            clock.advance(1)
    assert [SECOND, SECOND] == [each.end_ns - each.start_ns for each in told]
    assert clock.time_ns() == told[1].end_ns


def test_nothing_is_recorded_while_nobody_listens(ranges: Any, record: type[record_function]) -> None:
    """What begins then is unknown to who listens later: neither its end nor a parent shows."""
    told: list[Any] = []
    with record("before"):
        assert ranges.current_range() is None
        with ranges.listen(began=told.append, ended=told.append):
            with record("within"):
                pass
            late = record("late").__enter__()
    late.__exit__(None, None, None)
    assert ["within", "within", "late", "late"] == [each.name for each in told]
    assert told[0].parent is None


def test_who_hears_is_fixed_at_the_beginning(ranges: Any, record: type[record_function]) -> None:
    """A listener hears of no end whose beginning came before it, and of each whose beginning it heard."""
    first: list[Any] = []
    second: list[Any] = []
    with ranges.listen(ended=first.append):
        with record("a"):
            listening = ranges.listen(ended=second.append)
        with record("b"):
            listening.close()
            listening.close()
        with record("c"):
            pass
    assert ["a", "b", "c"] == [each.name for each in first]
    assert ["b"] == [each.name for each in second]


def test_body_raises(told: list[Any], record: type[record_function]) -> None:
    """An exception ends the range and passes."""
    with pytest.raises(KeyError), record("a"):
        raise KeyError
    assert ["a"] == names(told, "ended")


def test_a_listener_raises(ranges: Any, record: type[record_function], told: list[Any], unraisable: list[Any]) -> None:
    """A listener's Exception is reported and stops neither the code nor the other listeners."""
    def fail(each: Any) -> None:
        raise KeyError(each.name)

    with ranges.listen(began=lambda each: 1 / 0, ended=fail), ranges.listen(ended=told.append), record("a"):
        pass
    assert [ZeroDivisionError, KeyError] == [type(error) for error in unraisable]
    assert 3 == len(told)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_listener_is_interrupted(ranges: Any, record: type[record_function], error: type[BaseException]) -> None:
    """Ctrl-C passes; a range whose block does not run has ended, and is nobody's parent."""

    def interrupt(_range: Any) -> None:
        raise error

    with ranges.listen(began=interrupt), pytest.raises(error), record("a"):
        pytest.fail("the block must not run")
    assert ranges.current_range() is None
    with ranges.listen(ended=interrupt), pytest.raises(error), record("a"):
        pass
    assert ranges.current_range() is None


def test_exit_without_enter(record: type[record_function], ranges: Any) -> None:
    """Torch's AssertionError, whoever listens; also for a second exit."""
    with pytest.raises(AssertionError, match="Expected record to be set"):
        record("a").__exit__(None, None, None)
    with ranges.listen():
        with pytest.raises(AssertionError, match="Expected record to be set"):
            record("a").__exit__(None, None, None)
        with record("a") as label:
            pass
        with pytest.raises(AssertionError, match="Expected record to be set"):
            label.__exit__(None, None, None)


@pytest.mark.parametrize(("name", "shown"), [(1, "1"), (None, "None"), ("\ud800", "\ud800"), ("", "")])
def test_names(told: list[Any], record: type[record_function], name: Any, shown: str) -> None:
    """A name that is no str shows as text: a profile is no moment to find out by an exception."""
    with record(name):
        pass
    assert [shown] == names(told)
    assert type(told[0][1].name) is str


def test_one_object_again_and_within_itself(told: list[Any], record: type[record_function]) -> None:
    """One object can be entered again, also before it was left: each has its own range."""
    label = record("a")
    with label:
        with label:
            pass
        with label:
            pass
    assert [("a", None), ("a", "a"), ("a", "a")] == parents(told)
    began = [each for kind, each in told if kind == "began"]
    assert [began[1], began[2], began[0]] == [each for kind, each in told if kind == "ended"]


def test_threads_that_share_one_object(told: list[Any], record: type[record_function], run_threads: RunThreads) -> None:
    """Threads that use one object at once have a range each, ended by the thread that began it."""
    label, both = record("a"), threading.Barrier(2)

    def use() -> None:
        with label:
            both.wait(30)
            with record("inner"):
                both.wait(30)

    run_threads(use, use)
    began = [each for kind, each in told if kind == "began"]
    assert 4 == len({id(each) for each in began}) == len([each for kind, each in told if kind == "ended"])
    inner = [each for each in began if each.name == "inner"]
    assert [each.track for each in inner] == [each.parent.track for each in inner]
    assert inner[0].track is not inner[1].track


def test_every_thread(told: list[Any], record: type[record_function]) -> None:
    """Ranges of every thread are recorded, with its name and number; no parent is taken from another thread."""
    found: list[int] = []

    def work() -> None:
        found.append(threading.get_native_id())
        with record("work"):
            pass

    with record("main"):
        thread = threading.Thread(target=work, name="loader")
        thread.start()
        thread.join(30)
    assert [("main", None), ("work", None)] == parents(told)
    track = told[1][1].track
    assert (found[0], "loader", "loader") == (track.thread_id, track.thread_name, str(track))


def test_threads_that_threading_did_not_start(told: list[Any], record: type[record_function]) -> None:
    """A thread of another library's is recorded and leaves no dummy in threading.enumerate()."""
    import _thread

    done = threading.Event()

    def work() -> None:
        with record("work"):
            pass
        found.append(len(threading.enumerate()))
        done.set()

    found: list[int] = []
    _thread.start_new_thread(work, ())
    assert done.wait(30)
    assert "thread" == told[0][1].track.thread_name
    assert [len(threading.enumerate())] == found


def test_what_is_kept_by_range(ranges: Any, record: type[record_function], run_threads: RunThreads) -> None:
    """A listener that keeps ids from each beginning to its end always finds the parent's: what spans need."""
    ids: dict[Any, str] = {}
    paths: list[str] = []

    def began(each: Any) -> None:
        assert each.parent is None or each.parent.end_ns is None
        ids[each] = f"{ids[each.parent]}/{each.name}" if each.parent else each.name

    def ended(each: Any) -> None:
        paths.append(ids.pop(each))

    async def job(name: str) -> None:
        with record(name):
            await asyncio.sleep(0)
            with record("part"):
                await asyncio.sleep(0)

    async def main() -> None:
        with record("main"):
            await asyncio.gather(job("a"), job("b"))

    def work() -> None:
        with record("thread"):
            asyncio.run(main())

    with ranges.listen(began=began, ended=ended):
        run_threads(work, work)
    assert {} == ids
    expected = ["thread", "thread/main", *(f"thread/main/{name}" for name in ("a", "a/part", "b", "b/part"))]
    assert sorted(expected * 2) == sorted(paths)


def test_many_threads_lose_nothing(told: list[Any], record: type[record_function], run_threads: RunThreads) -> None:
    """Eight threads at once: every range begins and ends, within its own thread's."""

    def work() -> None:
        for _ in range(300):
            with record("outer"), record("inner"):
                pass

    run_threads(*[work] * 8)
    assert 4800 == len(names(told)) == len(names(told, "ended"))
    for kind, each in told:
        if kind == "began" and each.name == "inner":
            assert "outer" == each.parent.name
            assert each.track is each.parent.track
            assert each.parent.monotonic_start_ns <= each.monotonic_start_ns
            assert each.monotonic_end_ns <= each.parent.monotonic_end_ns


def test_tasks_that_take_turns(told: list[Any], record: type[record_function]) -> None:
    """Each of three interleaved tasks has its own track and its own parents."""

    async def job(number: int) -> None:
        with record(f"job {number}"):
            for step in range(3):
                with record(f"step {number}.{step}"):
                    await asyncio.sleep(0)
                    with record(f"part {number}.{step}"):
                        await asyncio.sleep(0)

    async def main() -> None:
        with record("main"):
            jobs = [asyncio.create_task(job(number), name=f"job-{number}") for number in range(3)]
            await asyncio.gather(*jobs)

    asyncio.run(main())
    found = parents(told)
    assert ("main", None) == found[0]
    order = [name for name, _ in found if name.startswith("part")]
    assert ["part 0.0", "part 1.0", "part 2.0"] == order[:3]  # they do take turns
    for name, parent in found[1:]:
        kind, _, number = name.partition(" ")
        expected = {"job": "main", "step": f"job {number[0]}", "part": f"step {number}"}[kind]
        assert expected == parent
    tracks = {each.name: each.track for kind, each in told}
    assert "job-1 (MainThread)" == str(tracks["job 1"]) == str(tracks["part 1.2"])
    assert tracks["job 1"] is tracks["part 1.2"] is not tracks["job 2"]
    gc.collect()
    assert {} == sys.modules[type(tracks["main"]).__module__]._of_tasks


def test_a_task_outlives_the_range_that_made_it(told: list[Any], record: type[record_function], ranges: Any) -> None:
    """Its first range names the one it was made in, unless that has ended by then."""

    async def later(name: str, go: asyncio.Event) -> None:
        await go.wait()
        with record(name):
            pass

    async def main() -> None:
        go = asyncio.Event()
        with record("making"):
            task = asyncio.create_task(later("after", go))
            await asyncio.sleep(0)
        go.set()
        await task

    asyncio.run(main())
    assert [("making", None), ("after", None)] == parents(told)


def test_overlapping_ranges_of_one_context(told: list[Any], record: type[record_function], ranges: Any) -> None:
    """Ranges that end out of order, as in suspended generators, leave later ones the right parents."""

    def generate() -> Iterator[int]:
        with record("generator"):
            yield 1
            yield 2

    generator = generate()
    next(generator)
    with record("consumer"):
        assert [2] == list(generator)  # ends "generator" within "consumer"
        with record("inner"):
            assert "inner" == ranges.current_range().name
    with record("next"):
        pass
    assert [("generator", None), ("consumer", "generator"), ("inner", "consumer"), ("next", None)] == parents(told)


def test_left_in_another_context(told: list[Any], record: type[record_function], ranges: Any) -> None:
    """A range that is entered in one context and left in another ends, and is nobody's parent."""
    context = contextvars.copy_context()
    label = context.run(record("a").__enter__)
    label.__exit__(None, None, None)
    assert ["a"] == names(told, "ended")
    context.run(record("b").__enter__).__exit__(None, None, None)
    assert [("a", None), ("b", None)] == parents(told)


def test_decorated_functions(told: list[Any], record: type[record_function]) -> None:
    """Each call has a range, a recursive one within itself; the function keeps its name."""

    @record("factorial")
    def factorial(n: int) -> int:
        """Say n!."""
        return n * factorial(n - 1) if n else 1

    assert 6 == factorial(3)
    assert [None, "factorial", "factorial", "factorial"] == [parent for _, parent in parents(told)]
    assert ("factorial", "Say n!.") == (factorial.__name__, factorial.__doc__)


def test_decorated_coroutines(ranges: Any, record: type[record_function], clock: Any) -> None:
    """A coroutine's range goes from the first await to the result."""

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
    """A generator has a range for each time it runs, not while its consumer does."""

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


def test_decorated_generators_take_all_that_generators_take(record: type[record_function], told: list[Any]) -> None:
    """send(), throw(), close() and return values pass through."""
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
    assert len(names(told)) == len(names(told, "ended"))


def test_decorated_async_generators(record: type[record_function], told: list[Any]) -> None:
    """An asynchronous generator has a range for each time it runs, awaiting included."""

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
    assert ["g"] * 3 == names(told) == names(told, "ended")
    asyncio.run(leave())
    assert [True] * 3 == closed
    assert len(names(told)) == len(names(told, "ended"))


def test_ranges_can_be_dropped(ranges: Any, record: type[record_function]) -> None:
    """Nothing keeps a range, or what it was given, after it has ended; nor a long line of parents (no recursion)."""

    class Args(dict[str, Any]):
        """Something to refer to weakly."""

    args = Args()
    found = weakref.ref(args)
    last: list[Any] = []
    with ranges.listen(began=lambda each: last.__setitem__(slice(None), [each])):
        with record("a", args):
            pass
        del args
        contexts = [contextvars.copy_context()]
        labels = [record("link") for _ in range(100_000)]
        for label in labels:
            contexts[0].run(label.__enter__)
        for label in reversed(labels):
            contexts[0].run(label.__exit__, None, None, None)
    contexts.clear()
    labels.clear()
    last.clear()
    assert found() is None


def test_ranges_are_made_by_labels_only(ranges: Any) -> None:
    """Range has no constructor, and its attributes cannot be set."""
    with pytest.raises(TypeError, match=r"cannot create 'monitel\.profiler\._ranges_c\.Range' instances"):
        ranges.Range()


def test_repr(record: type[record_function], ranges: Any) -> None:
    """Both say what they are."""
    assert "record_function('a')" == repr(record("a"))
    assert "record_function('a', 'b')" == repr(record("a", "b"))
    with ranges.listen(), record("a"):
        assert "<Range 'a' in MainThread, running>" == repr(ranges.current_range())


def test_forked_child(run_script: RunScript) -> None:
    """A forked child has no listeners of the parent's; what it records has its own thread's number."""
    ended = run_script("""
from monitel.profiler import ranges, record_function
told = []
listening = ranges.listen(ended=told.append)
with record_function("parent"):
    pass
child = os.fork()
if child == 0:
    with record_function("unheard"):
        pass
    with ranges.listen(ended=told.append), record_function("child"):
        pass
    say([each.name for each in told], told[1].track.thread_id == os.getpid())
    os._exit(0)
os.waitpid(child, 0)
with record_function("parent again"):
    pass
say([each.name for each in told], told[1].track.thread_id == os.getpid())
""")
    assert ["['parent', 'child'] True", "['parent', 'parent again'] True"] == ended.lines
