"""Stat: add(), get(), count, discarded, identity and events."""

from __future__ import annotations

import copy
import datetime as dt
import gc
import math
import pickle
import weakref
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    MakeStat = Callable[..., Any]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, *(lambda s, p=p: pickle.dumps(s, p) for p in range(6))]
)
def test_copy_and_pickle_raise(make_stat: MakeStat, duplicate: Callable[[Any], Any]) -> None:
    """Copying or pickling a Stat is a TypeError that names the alternative."""
    with pytest.raises(TypeError, match="cannot copy or pickle Stat 'x': create it in the worker"):
        duplicate(make_stat())


def test_second_init_is_ignored(make_stat: MakeStat, monitel: ModuleType) -> None:
    """A second __init__ has no effect, as in torch."""
    stat = make_stat()
    stat.add(1)
    stat.__init__("other", [], 1.0)
    assert ("x", 1, 60) == (stat.name, stat.count, stat.window_size.total_seconds())


def test_add_without_init(monitel: ModuleType) -> None:
    """`Stat.__new__(Stat).add(1)` is a RuntimeError (torch: SIGSEGV); so is a subclass that forgets __init__."""

    class Forgetful(monitel.Stat):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            pass

    for stat in (monitel.Stat.__new__(monitel.Stat), Forgetful()):
        with pytest.raises(RuntimeError, match=r"must call super\(\).__init__\(name, aggregations, window_size\)"):
            stat.add(1)
        stat.flush()
        assert (0, True) == (stat.count, "not initialised" in repr(stat))


def test_without_new(monitel: ModuleType, twin: str, unraisable: list[BaseException | None]) -> None:
    """object.__new__ does not initialize the window: an error in C, harmless in Python."""
    if twin == "c":
        with pytest.raises(TypeError, match="not safe"):
            object.__new__(monitel.Stat)
    else:
        object.__new__(monitel.Stat)
    gc.collect()
    assert [] == unraisable


def test_subclass(monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """A subclass may have additional attributes and extend add()."""

    class Doubling(monitel.Stat):  # type: ignore[misc, name-defined]
        def add(self, v: float) -> None:
            self.seen = v
            super().add(2 * v)

    stat = Doubling("x", [monitel.SUM], 60.0)
    stat.add(3)
    stat.flush()
    assert (3, {"x.sum": 6.0}) == (stat.seen, events[0].data)


def test_identity(make_stat: MakeStat) -> None:
    """Stats compare and hash by identity; their properties cannot be assigned, and they have no other attributes."""
    stat = make_stat()
    assert {stat} != {make_stat()}
    for attribute in ("name", "count", "max_samples", "discarded", "anything"):
        with pytest.raises(AttributeError):
            setattr(stat, attribute, 1)
    names = "VALUE, MEAN, COUNT, SUM, MAX, MIN, HISTOGRAM, STDDEV"
    assert f"<Stat 'x' [{names}] every 0:01:00, 0 samples open>" == repr(stat)


def test_takes_weak_references(make_stat: MakeStat) -> None:
    """A Stat can be referenced weakly, as in torch."""
    stat = make_stat()
    reference = weakref.ref(stat)
    assert stat is reference()
    del stat
    assert reference() is None


class _Index:
    def __index__(self) -> int:
        return 3


class _Both(_Index):
    def __float__(self) -> float:
        return 0.5


class _Float(float):
    def __float__(self) -> float:
        return 99.0  # torch uses the float directly


@pytest.mark.parametrize(
    ("value", "added"),
    [
        (2.5, 2.5),
        (-3, -3.0),
        (True, 1.0),
        (2**53 + 1, 2.0**53),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 4), 0.25),
        (_Index(), 3.0),
        (_Both(), 0.5),
        (_Float(1.5), 1.5),
        (math.inf, math.inf),
    ],
)
def test_real_numbers_are_added(make_stat: MakeStat, monitel: ModuleType, value: Any, added: float) -> None:
    """Any real number is added as a float; the parameter's name is `v`."""
    stat = make_stat()
    stat.add(v=value)
    stat.flush()
    assert (added, float) == (stat.get()[monitel.SUM], type(stat.get()[monitel.SUM]))


def test_numpy_scalars_are_added(make_stat: MakeStat, monitel: ModuleType) -> None:
    """NumPy scalars and zero-dimensional arrays are real numbers."""
    np = pytest.importorskip("numpy")
    stat = make_stat()
    for value in (np.float32(0.5), np.int64(2), np.bool_(True), np.array(4.0)):
        stat.add(value)
    stat.flush()
    assert (7.5, 4) == (stat.get()[monitel.SUM], stat.get()[monitel.COUNT])


class _OnlyInt:
    def __int__(self) -> int:
        return 1


class _NoFloat:
    def __float__(self) -> Any:
        return "text"


@pytest.mark.parametrize("value", ["1", b"1", None, [1.0], 1j, 10**400, _OnlyInt(), _NoFloat(), Decimal("sNaN")])
def test_values_of_other_types(make_stat: MakeStat, value: Any) -> None:
    """A value that is not a real number is a TypeError and is not counted."""
    stat = make_stat()
    with pytest.raises(TypeError, match=r"add\(\) takes a real number"):
        stat.add(value)
    assert (0, 0) == (stat.count, stat.discarded)


@pytest.mark.parametrize(("raised", "expected"), [(ZeroDivisionError, TypeError), (KeyboardInterrupt,) * 2])
def test_float_that_raises(make_stat: MakeStat, raised: type[BaseException], expected: type[BaseException]) -> None:
    """An exception of `__float__` is the cause of a TypeError (torch loses it); a BaseException is not caught."""
    error = raised("why")
    value = type("Value", (), {"__float__": lambda self: (_ for _ in ()).throw(error)})()
    stat = make_stat()
    with pytest.raises(expected, match="why") as caught:
        stat.add(value)
    assert error in (caught.value, caught.value.__cause__)
    assert 0 == stat.count


@pytest.mark.parametrize(
    ("samples", "smallest", "largest"),
    [
        ([math.nan, 1.0, 2.0], math.nan, math.nan),
        ([1.0, math.nan, 2.0], 1.0, 2.0),
        ([-math.inf, math.inf], -math.inf, math.inf),
        ([-0.0, 0.0], -0.0, -0.0),
    ],
)
def test_min_and_max(
    make_stat: MakeStat, monitel: ModuleType, samples: list[float], smallest: float, largest: float
) -> None:
    """A first NaN is kept, a later one ignored; of two zeros the first one is kept; as in torch."""
    stat = make_stat()
    for sample in samples:
        stat.add(sample)
    stat.flush()
    assert (repr(smallest), repr(largest)) == (repr(stat.get()[monitel.MIN]), repr(stat.get()[monitel.MAX]))


def test_sum_is_plain(make_stat: MakeStat, monitel: ModuleType) -> None:
    """Samples are added from first to last, without compensation, and a NaN makes the sum NaN."""
    stat = make_stat()
    for sample in (1e16, 1.0, -1e16):
        stat.add(sample)
    stat.flush()
    assert 0.0 == stat.get()[monitel.SUM]
    stat.add(math.nan)
    stat.add(1.0)
    stat.flush()
    assert [True, True] == [math.isnan(stat.get()[each]) for each in (monitel.SUM, monitel.MEAN)]


def test_value_hook_receives_other_values(make_stat: MakeStat, monitel: ModuleType) -> None:
    """Values that are not exactly float or int are passed to a hook, which may keep the sample for later."""
    seen: list[Any] = []

    def hook(stat: Any, value: Any) -> float | None:
        seen.append((stat, value))
        return 5.0 if value == "five" else None

    stat = make_stat()
    previous = monitel._window.set_value_hook(hook)
    try:
        for value in (1.0, 2, "five", "later"):
            stat.add(value)
    finally:
        assert hook is monitel._window.set_value_hook(previous)
    stat.flush()
    assert [(stat, "five"), (stat, "later")] == seen
    assert (3, 8.0) == (stat.get()[monitel.COUNT], stat.get()[monitel.SUM])


def test_get_returns_the_last_closed_window(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """get() gives 0.0 before a window was closed, never the open window, and ignores empty ones."""
    stat = make_stat()
    stat.add(1)
    assert dict.fromkeys(set(stat.definition.aggregations) - {monitel.HISTOGRAM}, 0.0) == stat.get()
    stat.add(3)
    stat.add(2)
    assert 3 == stat.count
    stat.flush()
    expected = {"VALUE": 2.0, "MEAN": 2.0, "COUNT": 3.0, "SUM": 6.0, "MAX": 3.0, "MIN": 1.0}
    expected["STDDEV"] = math.sqrt(2 / 3)
    assert list(expected.items()) == [(aggregation.name, value) for aggregation, value in stat.get().items()]
    assert {float} == set(map(type, stat.get().values()))
    assert 0 == stat.count
    stat.flush()
    clock.advance(120)
    stat.flush()
    stat.add(7)
    stat.get().clear()  # a new dict each time
    assert list(expected.values()) == list(stat.get().values())
    assert 1 == len(events)


def test_event_of_a_window(make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """`<name>.value` and others are floats, and the timestamp is the naive local time of logging."""
    stat = make_stat("loss", [monitel.SUM, monitel.COUNT, monitel.VALUE])
    stat.add(2)
    stat.add(1)
    clock.advance(61.5)
    stat.add(4)
    (event,) = events
    assert ("torch.monitor.Stat", monitel.Severity.INFO) == (event.name, event.severity)
    assert [("loss.value", 1.0), ("loss.count", 2.0), ("loss.sum", 3.0)] == list(event.data.items())
    assert {float} == set(map(type, event.data.values()))
    assert dt.datetime.fromtimestamp(1_767_225_661.5) == event.timestamp  # noqa: DTZ006
    window = event.window
    assert (2, 3.0, 1.0, 2.0, 1.0, 1.5) == (
        window.count,
        window.sum,
        window.min,
        window.max,
        window.last,
        window.mean,
    )


def test_garbage_collector_does_not_track_windows(
    make_stat: MakeStat, twin: str, monitel: ModuleType, events: list[Any]
) -> None:
    """Closing the windows of many Stats causes no full garbage collection, which takes long in a large process."""
    if twin == "py":
        pytest.skip("only C can hide an object from the garbage collector")
    make_stat().add(1)
    monitel.flush()
    window = events[0].window
    assert [] == [each for each in (window, window.histogram, window.histogram.positive) if gc.is_tracked(each)]
