"""The table of cases: operations of the open window in C, used well and used wrongly, which a test repeats."""

from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import monitel
from monitel.stats import _window
from monitel.stats.definition import Aggregation
from monitel.stats.window import key

_Make = Callable[[], Iterator[Callable[[], object]]]


class Case(NamedTuple):
    """An operation."""

    covers: frozenset[str]  # names of the functions and methods in C that it calls
    make: Callable[[], Iterator[Callable[[], object]]]  # called once; yields the operation, and then cleans up


CASES: dict[str, Case] = {}
#: Values that are passed to C code and that the garbage collector does not track.
TEXT, BIG, REAL = "a text of a case", 10**12 + 7, 1234.5
EVERYTHING = [*Aggregation]
VALUES = [None, True, False, 0, 1, "", b"", (), TEXT, BIG, REAL, "no", "x"]


def covers(names: str) -> Callable[[_Make], _Make]:
    """Add a case that calls these functions, whose names are separated by spaces."""

    def add(make: _Make) -> _Make:
        CASES[make.__name__] = Case(frozenset(names.split()), make)
        return make

    return add


def refused(
    expected: type[BaseException] | tuple[type[BaseException], ...],
    function: Callable[..., object],
    *arguments: Any,
    **named: Any,
) -> None:
    try:
        function(*arguments, **named)
    except expected:
        return
    raise AssertionError(f"{function} has accepted {arguments} {named}")


class Broken(Exception):  # noqa: N818  not an error
    """Raised by callbacks of a case."""


def fail(*_arguments: Any, **_named: Any) -> Any:
    raise Broken


@covers("Accumulator.__new__ Accumulator._open Accumulator._close Accumulator.count Accumulator.add own_add")
def stats_that_are_made() -> Iterator[Callable[[], object]]:
    """A Stat is made, used and destructed, with every aggregation and with one; a subclass is made."""

    def operation() -> None:
        plain = monitel.Stat(TEXT, [Aggregation.MEAN], 60.0)
        plain.add(REAL)
        rich = monitel.Stat(TEXT, EVERYTHING, 60.0)
        rich.add(REAL)
        rich.flush()
        rich.add(BIG)
        assert rich.count == plain.count == 1

    yield operation


@covers("own_add")
def classes_with_their_own_add() -> Iterator[Callable[[], object]]:
    """A type gets the method; an object that cannot have it raises."""

    class Own(_window.Accumulator):  # type: ignore[misc,unused-ignore]
        pass

    def operation() -> None:
        assert _window.own_add(Own) is Own
        refused(TypeError, _window.own_add, int)

    yield operation


@covers("Accumulator.add")
def samples() -> Iterator[Callable[[], object]]:
    """Samples of every kind, and arguments that are refused."""
    stat = monitel.Stat("x", EVERYTHING, 60.0)

    class Convertible:
        def __float__(self) -> float:
            return REAL

    class Broke:
        __float__ = fail

    convertible, broke = Convertible(), Broke()

    def operation() -> None:
        for value in (REAL, BIG, True, 10**300, -0.0, float("nan"), float("inf"), 5e-324, convertible):
            stat.add(value)
        stat.add(v=REAL)
        refused(TypeError, stat.add)
        refused(TypeError, stat.add, REAL, REAL)
        refused(TypeError, stat.add, REAL, v=REAL)
        refused(TypeError, stat.add, wrong=REAL)
        refused(TypeError, stat.add, TEXT)
        refused(TypeError, stat.add, broke)
        refused(TypeError, stat.add, 10**400)

    yield operation


@covers(
    "Accumulator.add Accumulator._close Accumulator.discarded "
    "Accumulator.max_samples expired live Accumulator._serial Accumulator._window_ns"
)
def windows_that_close() -> Iterator[Callable[[], object]]:
    """By time, by samples and by a flush, with handlers, one of which raises; samples beyond the limit."""
    with monitel.testing.ManualClock() as clock, monitel.register_event_handler(fail):
        stat = monitel.Stat("x", EVERYTHING, 1.0, 2)

        def operation() -> None:
            clock.advance(1)
            stat.add(REAL)
            clock.advance(1)
            refused(Broken, stat.add, REAL)
            refused(Broken, stat.add, REAL)
            stat.add(REAL)
            clock.advance(1)
            stat.add(REAL)
            clock.advance(1)
            assert stat in _window.expired()
            assert stat in _window.live()
            refused(Broken, monitel.close_expired_windows)
            stat._close(True)
            stat.add(REAL)
            refused(Broken, stat.flush)
            assert (stat.count, stat.discarded > 0, stat.max_samples) == (0, True, 2)
            assert (stat._window_ns, stat._serial > 0) == (10**9, True)

        yield operation


@covers("Accumulator._open Accumulator._reserve Accumulator._reset Accumulator._close")
def pending_samples() -> Iterator[Callable[[], object]]:
    """Values that come later: kept by a window, closed with it, and left out beyond the limit."""
    clock = memoryview(array("q", (0, 0)))
    kept: list[Any] = []

    @_window.own_add
    class Raw(_window.Accumulator):  # type: ignore[misc,unused-ignore]
        def _log_closed(self, *closed: Any) -> None:
            kept[:] = closed

    raw: Any = Raw()
    raw._open(10**9, 3, clock, 0, 0)

    def operation() -> None:
        collector = [REAL]
        assert (collector, None) == raw._reserve(collector)
        raw.add(REAL)
        assert raw._reserve(None)[1] is not None
        assert (None, None) == raw._reserve(collector)
        clock[0] += 10**9
        raw._reserve(collector)
        raw._close(False)
        raw._reserve(collector)
        raw._reset()
        clock[0] += 10**9
        refused(TypeError, raw._open, TEXT)
        refused(ValueError, raw._open, 0, 3, clock, 0, 0)
        raw._open(10**9, 3, clock, 1, 1)

    yield operation
    raw._reset()


@covers("open_windows forget")
def windows_as_bytes() -> Iterator[Callable[[], object]]:
    """The open windows of Stats, and one that is passed to a handler meanwhile."""
    stats = [monitel.Stat(f"x{each}", EVERYTHING, 60.0) for each in range(3)]
    found: list[int] = []
    with monitel.register_event_handler(lambda _event: found.append(len(_window.open_windows()[0]))):

        def operation() -> None:
            for stat in stats:
                stat.add(REAL)
            _window.open_windows()
            stats[0].flush()
            refused(TypeError, _window.forget, TEXT, 1)
            content, *_ = stats[1]._close(False) or (b"",)
            _window.forget(*key(content))
            found.clear()

        yield operation


@covers("set_step get_step set_value_hook live expired")
def functions_of_windows() -> Iterator[Callable[[], object]]:
    def operation() -> None:
        _window.set_step(BIG)
        assert BIG == _window.get_step()
        refused(OverflowError, _window.set_step, 1 << 70)  # type: ignore[arg-type,unused-ignore]
        refused(TypeError, _window.set_step, TEXT)
        _window.set_step(None)
        previous = _window.set_value_hook(fail)
        stat = monitel.Stat(TEXT, [Aggregation.MEAN], 60.0)
        refused(Broken, stat.add, TEXT)
        assert fail is _window.set_value_hook(lambda _stat, _value: None)
        stat.add(TEXT)  # type: ignore[arg-type,unused-ignore]
        _window.set_value_hook(lambda _stat, _value: TEXT)  # type: ignore[arg-type,return-value,unused-ignore]
        refused(TypeError, stat.add, TEXT)
        _window.set_value_hook(previous)

    yield operation
