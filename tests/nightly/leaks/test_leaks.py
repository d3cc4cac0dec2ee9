"""Windows in C leak neither memory nor references, whether their functions succeed or fail."""

import ctypes
import gc
import sys
import tracemalloc
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

import monitel
from monitel.stats import _window
from monitel.stats.definition import Aggregation
from monitel.stats.window import key

Operation = Callable[[], object]
Make = Callable[[], Iterator[Operation]]  # called once; yields an operation that is repeated, and then cleans up

ROUNDS, REPETITIONS = 5, 1000
_WARM_UP = 100  # caches, free lists and tables reach their size
#: Values that are passed to C code and that the garbage collector does not track.
TEXT, BIG, REAL = "a text of a case", 10**12 + 7, 1234.5
EVERYTHING = [*Aggregation]
VALUES = [None, True, False, 0, 1, "", b"", (), TEXT, BIG, REAL, "no", "x"]
CASES: dict[str, Make] = {}


def case(make: Make) -> Make:
    CASES[make.__name__] = make
    return make


def refused(expected: type[BaseException], function: Callable[..., object], *arguments: Any, **named: Any) -> None:
    try:
        function(*arguments, **named)
    except expected:
        return
    raise AssertionError(f"{function} has accepted {arguments} {named}")


class Broken(Exception):  # noqa: N818  not an error
    """Raised by callbacks of a case."""


def fail(*_arguments: Any, **_named: Any) -> Any:
    raise Broken


@case
def stats_that_are_made() -> Iterator[Operation]:
    def operation() -> None:
        plain = monitel.Stat(TEXT, [Aggregation.MEAN], 60.0)
        plain.add(REAL)
        rich = monitel.Stat(TEXT, EVERYTHING, 60.0)
        rich.add(REAL)
        rich.flush()
        rich.add(BIG)
        assert rich.count == plain.count == 1

    yield operation


@case
def samples() -> Iterator[Operation]:
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
        for wrong in ((), (REAL, REAL), (TEXT,), (broke,), (10**400,)):
            refused(TypeError, stat.add, *wrong)
        refused(TypeError, stat.add, REAL, v=REAL)
        refused(TypeError, stat.add, wrong=REAL)

    yield operation


@case
def windows_that_close() -> Iterator[Operation]:
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


@case
def pending_samples() -> Iterator[Operation]:
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


@case
def windows_as_bytes() -> Iterator[Operation]:
    stats = [monitel.Stat(f"x{each}", EVERYTHING, 60.0) for each in range(3)]
    found: list[int] = []
    with monitel.register_event_handler(lambda _event: found.append(len(_window.open_windows()))):

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


@case
def functions_of_windows() -> Iterator[Operation]:
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


class Growth(NamedTuple):
    """The growth in one round, which is flat if it does not come with each repetition."""

    heap_bytes: int  # memory of Python's allocators, including the raw one, which C code uses
    objects: int  # number of objects that the garbage collector tracks
    references: int  # references to these objects, and to the values that the operation passes to C code


#: A leaked object has at least 16 bytes, so a leak in each tenth repetition is found.
MOST = Growth(heap_bytes=REPETITIONS * 16 // 10, objects=REPETITIONS // 10, references=REPETITIONS // 10)


def steady_growth(operation: Operation, values: Sequence[Any]) -> Growth:
    """Repeat an operation thousands of times, and return the growth that there is in each round.

    The references to ``values`` are counted although the garbage collector does not track them.
    """
    for _ in range(_WARM_UP):
        operation()
    tracemalloc.start(1)
    try:
        readings = [_reading(values)]
        for _ in range(ROUNDS):
            for _ in range(REPETITIONS):
                operation()
            readings.append(_reading(values))
    finally:
        tracemalloc.stop()
    rounds = [[late - early for early, late in zip(*each, strict=True)] for each in pairwise(readings)]
    return Growth(*(min(each) for each in zip(*rounds, strict=True)))


def leaks(growth: Growth) -> dict[str, int]:
    return {name: number for name, number in growth._asdict().items() if number > getattr(MOST, name)}


def _reading(values: Sequence[Any]) -> Growth:
    gc.collect()
    heap_bytes, _ = tracemalloc.get_traced_memory()
    tracked = gc.get_objects()
    references = sum(map(sys.getrefcount, tracked)) + sum(map(sys.getrefcount, values))
    return Growth(heap_bytes, len(tracked), references)


pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="CPython without the GIL frees references later"
)


@pytest.fixture(autouse=True)
def _quiet(both_twins: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Skip without the extension; ignore exceptions of callbacks, and collect garbage only where it is measured."""
    monkeypatch.setattr("sys.unraisablehook", lambda _report: None)
    gc.disable()
    gc.unfreeze()  # references to all objects count
    yield
    gc.enable()


@pytest.mark.parametrize("name", CASES)
def test_operation_leaks_nothing(name: str) -> None:
    """Repeated a thousand times, five times: memory, objects and references do not grow with the repetitions."""
    made = CASES[name]()
    assert {} == leaks(steady_growth(next(made), VALUES))
    assert next(made, None) is None


def test_leak_is_found() -> None:
    """Even of the smallest sizes: a reference, and a container."""
    increase = ctypes.pythonapi.Py_IncRef
    assert {"references"} == leaks(steady_growth(lambda: increase(ctypes.py_object(TEXT)), VALUES)).keys()
    found = leaks(steady_growth(lambda: increase(ctypes.py_object([])), VALUES))
    assert {"heap_bytes", "objects", "references"} == found.keys()
