"""Ranges: the calls that listeners receive, with which attributes and times. Over both twins."""

from __future__ import annotations

import contextvars
import threading
import time
import weakref
from asyncio import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

    from monitel.profiler import record_function

    RunScript = Any
    RunThreads = Any

SECOND = 1_000_000_000


def names(received: list[Any], what: str = "began") -> list[str]:
    """Return the names of the ranges that began, or ended."""
    return [each.name for kind, each in received if kind == what]


def parents(received: list[Any]) -> list[tuple[str, str | None]]:
    """Return each range's name and its parent's name."""
    return [(each.name, each.parent and each.parent.name) for kind, each in received if kind == "began"]


def test_attributes(monitel: ModuleType, ranges: Any, record: type[record_function], clock: Any) -> None:
    """A range has name, args, parent, track, step and times; both callbacks receive the same object."""
    received: list[Any] = []
    with ranges.listen(began=received.append, ended=received.append):
        monitel.set_step(7)
        with record("outer", "details"):
            clock.advance(1)
            assert ["outer"] == [each.name for each in received]
            assert received[0] is ranges.current_range()
            assert (None, -1) == (received[0].end_ns, received[0].monotonic_end_ns)
            with record("inner", {"n": 1}):
                clock.advance(2)
            clock.advance(3)
    outer, inner, inner_again, outer_again = received
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
    """Unix times lie between readings of the wall clock before and after, within a millisecond."""
    with ranges.listen() as listening:
        before = time.time_ns()
        with record("a"):
            range_: Any = ranges.current_range()
        after = time.time_ns()
        assert listening in ranges.listeners.active
    assert before - 1_000_000 <= range_.start_ns <= range_.end_ns <= after + 1_000_000


def test_wall_clock_set_back(ranges: Any, record: type[record_function], clock: Any) -> None:
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


def test_nothing_is_recorded_without_listeners(ranges: Any, record: type[record_function]) -> None:
    """A range that begins without listeners is never reported, neither its end nor as a parent."""
    received: list[Any] = []
    with record("before"):
        assert ranges.current_range() is None
        with ranges.listen(began=received.append, ended=received.append):
            with record("within"):
                pass
            late = record("late").__enter__()
    late.__exit__(None, None, None)
    assert ["within", "within", "late", "late"] == [each.name for each in received]
    assert received[0].parent is None


def test_listeners_of_an_end_are_fixed_at_the_beginning(ranges: Any, record: type[record_function]) -> None:
    """A listener receives the ends of exactly the ranges that began while it was subscribed."""
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


def test_exception_in_the_block(received: list[Any], record: type[record_function]) -> None:
    """An exception in the block ends the range and propagates."""
    with pytest.raises(KeyError), record("a"):
        raise KeyError
    assert ["a"] == names(received, "ended")


class StepError(Exception):
    """An exception of the application."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ZeroDivisionError(), "ZeroDivisionError"),
        (StepError(), f"{__name__}.StepError"),
        (StopIteration(), "StopIteration"),
        (KeyboardInterrupt(), None),
        (SystemExit(1), None),
        (GeneratorExit(), None),
        (CancelledError(), None),
    ],
    ids=repr,
)
def test_exception_that_leaves_ranges_is_their_error(
    ranges: Any, record: type[record_function], error: BaseException, expected: str | None
) -> None:
    """Each range that an Exception leaves has its type, as spans of OpenTelemetry do; Ctrl-C is not an error."""
    ended: list[Any] = []
    with ranges.listen(ended=ended.append):
        with record("retry"), suppress(type(error)), record("step"):
            with record("before"):
                pass
            with record("forward"):
                raise error
        with record("after"):
            pass
    assert {"before": None, "forward": expected, "step": expected, "retry": None, "after": None} == {
        each.name: each.error_type for each in ended
    }


def test_label_is_used_again_after_an_exception(ranges: Any, record: type[record_function]) -> None:
    """An error belongs to one range, and a running range has none."""
    ended: list[Any] = []
    label = record("step")
    with ranges.listen(began=lambda each: ended.append(each.error_type), ended=ended.append):
        with pytest.raises(KeyError), label:
            raise KeyError
        with label:
            pass
    assert [None, "KeyError", None, None] == [getattr(each, "error_type", each) for each in ended]


def test_exception_in_a_listener(
    ranges: Any, record: type[record_function], received: list[Any], unraisable: list[Any]
) -> None:
    """A listener's Exception is unraisable, and affects neither the block nor other listeners."""

    def fail(each: Any) -> None:
        raise KeyError(each.name)

    with ranges.listen(began=lambda each: 1 / 0, ended=fail), ranges.listen(ended=received.append), record("a"):
        pass
    assert [ZeroDivisionError, KeyError] == [type(error) for error in unraisable]
    assert 3 == len(received)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupt_in_a_listener(ranges: Any, record: type[record_function], error: type[BaseException]) -> None:
    """A KeyboardInterrupt propagates; a range whose block does not run has ended and is not a parent."""

    def interrupt(_range: Any) -> None:
        raise error

    with ranges.listen(began=interrupt), pytest.raises(error), record("a"):
        pytest.fail("the block must not run")
    assert ranges.current_range() is None
    with ranges.listen(ended=interrupt), pytest.raises(error), record("a"):
        pass
    assert ranges.current_range() is None


def test_exit_without_enter(record: type[record_function], ranges: Any) -> None:
    """Exit without enter, or a second exit, raises torch's AssertionError, with and without listeners."""
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
def test_names(received: list[Any], record: type[record_function], name: Any, shown: str) -> None:
    """A name that is not a str is converted to text."""
    with record(name):
        pass
    assert [shown] == names(received)
    assert type(received[0][1].name) is str


def test_reentered_object(received: list[Any], record: type[record_function]) -> None:
    """An object can be entered again, even before it was left; each entry has a separate range."""
    label = record("a")
    with label:
        with label:
            pass
        with label:
            pass
    assert [("a", None), ("a", "a"), ("a", "a")] == parents(received)
    began = [each for kind, each in received if kind == "began"]
    assert [began[1], began[2], began[0]] == [each for kind, each in received if kind == "ended"]


def test_ended_ranges_are_freed(ranges: Any, record: type[record_function]) -> None:
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
        labels = [record("link") for _ in range(100_000)]
        for label in labels:
            contexts[0].run(label.__enter__)
        for label in reversed(labels):
            contexts[0].run(label.__exit__, None, None, None)
    contexts.clear()
    labels.clear()
    last.clear()
    assert found() is None


def test_range_has_no_constructor(ranges: Any) -> None:
    """Range has no constructor."""
    with pytest.raises(TypeError, match=r"cannot create 'monitel\.profiler\.ranges\._ranges_c\.Range' instances"):
        ranges.Range()


def test_repr(record: type[record_function], ranges: Any) -> None:
    """The repr of record_function shows its arguments, that of a range its name and track."""
    assert "record_function('a')" == repr(record("a"))
    assert "record_function('a', 'b')" == repr(record("a", "b"))
    with ranges.listen(), record("a"):
        assert "<Range 'a' in MainThread, running>" == repr(ranges.current_range())


def test_forked_child(run_script: RunScript) -> None:
    """A forked child has none of the parent's listeners, and its ranges have its thread's id."""
    ended = run_script("""
from monitel.profiler import ranges, record_function
received = []
listening = ranges.listen(ended=received.append)
with record_function("parent"):
    pass
child = os.fork()
if child == 0:
    with record_function("unlistened"):
        pass
    with ranges.listen(ended=received.append), record_function("child"):
        pass
    say([each.name for each in received], received[1].track.thread_id == os.getpid())
    os._exit(0)
os.waitpid(child, 0)
with record_function("parent again"):
    pass
say([each.name for each in received], received[1].track.thread_id == os.getpid())
""")
    assert ["['parent', 'child'] True", "['parent', 'parent again'] True"] == ended.lines
