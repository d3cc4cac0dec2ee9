"""Stat: how it is made, what add() takes, what get(), count and discarded say."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import gc
import inspect
import math
import pickle
import weakref
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    MakeStat = Callable[..., Any]


def test_constructor_has_torchs_parameters(monitel: ModuleType) -> None:
    """Name, aggregations, window_size, max_samples go by position and by keyword."""
    by_position = monitel.Stat("x", [monitel.SUM], dt.timedelta(seconds=2), 5)
    by_keyword = monitel.Stat(
        name="x", aggregations=[monitel.SUM], window_size=dt.timedelta(seconds=2), max_samples=5
    )
    for stat in (by_position, by_keyword):
        assert ("x", (monitel.SUM,), dt.timedelta(seconds=2), 5) == (
            stat.name,
            stat.definition.aggregations,
            stat.window_size,
            stat.max_samples,
        )


def test_additions_are_keyword_only(monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """What torch does not know goes by keyword only, and is found on every window."""
    with pytest.raises(TypeError, match="positional"):
        monitel.Stat("x", [], 60.0, 1, "s")
    given = {"split": "val", "shard": 3}
    stat = monitel.Stat("x", [], 60.0, unit="s", description="text", attributes=given, monotonic=True)
    given["split"] = "changed"
    stat.add(1)
    stat.flush()
    window = events[0].window
    assert ("x", "s", {"split": "val", "shard": 3}) == (window.name, window.unit, dict(window.attributes))
    assert ("text", True) == (window.definition.description, window.definition.monotonic)
    with pytest.raises(TypeError, match="item assignment"):
        window.attributes["split"] = "changed"


@pytest.mark.parametrize(
    "window_size",
    [
        dt.timedelta(0),
        dt.timedelta(microseconds=999),
        dt.timedelta(days=-1),
        0.0,
        0.0009,
        -1.0,
        math.nan,
        -math.inf,
    ],
)
def test_window_below_one_millisecond_is_refused(make_stat: MakeStat, window_size: Any) -> None:
    """A window_size of 0, < 1 ms, negative or nan is a ValueError that says what is allowed."""
    with pytest.raises(ValueError, match="window_size must be at least 1 ms, got"):
        make_stat(window_size=window_size)


@pytest.mark.parametrize(
    ("window_size", "says"),
    [
        (60, "got int; write 60.0 for seconds"),
        (10**400, "got int"),
        (True, "got bool"),
        ("60", "got str"),
        (None, "got NoneType"),
        (Decimal(60), "got Decimal"),
    ],
)
def test_window_of_another_type_is_refused(make_stat: MakeStat, window_size: Any, says: str) -> None:
    """An int is a TypeError that names 60.0, and so is whatever is neither timedelta nor float."""
    with pytest.raises(TypeError, match=f"seconds as a float such as 60.0, {says}"):
        make_stat(window_size=window_size)


@pytest.mark.parametrize("window_size", [0.0015, dt.timedelta(microseconds=1999)])
def test_window_is_cut_to_milliseconds(make_stat: MakeStat, window_size: Any) -> None:
    """A float is seconds; less than a millisecond is cut off, as in torch."""
    assert dt.timedelta(milliseconds=1) == make_stat(window_size=window_size).window_size


@pytest.mark.parametrize("window_size", [math.inf, 1e300, dt.timedelta.max])
def test_huge_window_never_rolls_over(make_stat: MakeStat, clock: Any, events: list[Any], window_size: Any) -> None:
    """A window_size of inf, or too long for 64 bits of ns, collects for ever."""
    stat = make_stat(window_size=window_size)
    stat.add(1)
    clock.advance(1e9)
    stat.add(2)
    assert (2, [], dt.timedelta.max) == (stat.count, events, stat.window_size)


@pytest.mark.parametrize("max_samples", [0, -1, -(2**63), False])
def test_max_samples_below_one_is_refused(make_stat: MakeStat, max_samples: int) -> None:
    """A max_samples < 1 is a ValueError that says how to have no limit."""
    with pytest.raises(ValueError, match=r"max_samples must be at least 1, got .*leave it out for no limit"):
        make_stat(max_samples=max_samples)


@pytest.mark.parametrize("max_samples", [1.0, "1", None, math.inf, 2**63, -(2**63) - 1])
def test_max_samples_must_be_an_int64(make_stat: MakeStat, max_samples: Any) -> None:
    """What is no int of 64 bits is a TypeError, as in torch."""
    with pytest.raises(TypeError, match="max_samples must"):
        make_stat(max_samples=max_samples)


class _Sequence:
    def __init__(self, *members: Any) -> None:
        self._members = members

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: int) -> Any:
        return self._members[index]


@pytest.mark.parametrize(
    "container",
    [
        *(list, tuple, set, frozenset, deque),
        lambda them: (each for each in them),
        lambda them: map(copy.copy, them),
        lambda them: _Sequence(*them),
        lambda them: dict.fromkeys(them).keys(),
        lambda them: {1: them[0]}.values(),
    ],
)
def test_aggregations_come_in_any_container(monitel: ModuleType, container: Callable[[list[Any]], Any]) -> None:
    """Every container that torch takes is taken; duplicates merge."""
    stat = monitel.Stat("x", container([monitel.MAX, monitel.MAX]), 60.0)
    assert (monitel.MAX,) == stat.definition.aggregations


@pytest.mark.parametrize(
    "wrong",
    [
        lambda monitel: None,
        lambda monitel: monitel.SUM,
        lambda monitel: monitel.Aggregation,
        lambda monitel: "SUM",
        lambda monitel: [4],
        lambda monitel: ["SUM"],
        lambda monitel: [monitel.SUM, None],
        lambda monitel: {monitel.SUM: 1},
        lambda monitel: iter([monitel.SUM]),
    ],
)
def test_other_aggregations_are_refused(monitel: ModuleType, wrong: Callable[[ModuleType], Any]) -> None:
    """What is no list of members is a TypeError that shows one."""
    with pytest.raises(TypeError, match=r"aggregations must .*monitel\.MEAN"):
        monitel.Stat("x", wrong(monitel), 60.0)


def test_no_aggregations(make_stat: MakeStat, clock: Any, events: list[Any]) -> None:
    """Without aggregations the samples are counted, and an event without data is logged."""
    stat = make_stat(aggregations=[])
    stat.add(1)
    assert (1, {}) == (stat.count, stat.get())
    stat.flush()
    assert [({}, 1)] == [(event.data, event.window.count) for event in events]


@pytest.mark.parametrize(("name", "read"), [("", ""), ("a\0b", "a\0b"), ("pérte", "pérte"), (b"bytes", "bytes")])
def test_names(make_stat: MakeStat, name: Any, read: str) -> None:
    """Any text is a name; bytes are decoded, as in torch."""
    assert read == make_stat(name).name


@pytest.mark.parametrize("name", [None, 1, "\ud800"])
def test_other_names_are_refused(make_stat: MakeStat, name: Any) -> None:
    """A name that is no text, or text that UTF-8 cannot hold, is a TypeError."""
    with pytest.raises(TypeError, match="Stat name must be"):
        make_stat(name)


@pytest.mark.parametrize(
    ("attributes", "error", "says"),
    [
        ({"": 1}, ValueError, "attribute names must not be empty"),
        ({1: 1}, TypeError, "attribute name must be a str"),
        ({"a": None}, TypeError, "'a': a value must be a str, int, float or bool, got NoneType"),
        ({"a": 2**63}, ValueError, "'a'"),
        ({"a": "\ud800"}, TypeError, "'a'"),
        ([("a", 1)], TypeError, "attributes must be a mapping"),
    ],
)
def test_attributes_that_cannot_be_sent_are_refused(
    make_stat: MakeStat, attributes: Any, error: type[Exception], says: str
) -> None:
    """Empty attribute keys are refused at construction, and so is what no exporter could send."""
    with pytest.raises(error, match=says):
        make_stat(attributes=attributes)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, *(lambda s, p=p: pickle.dumps(s, p) for p in range(6))]
)
def test_copy_and_pickle_are_refused(make_stat: MakeStat, duplicate: Callable[[Any], Any]) -> None:
    """Copy or pickle of a Stat is a TypeError that says what to do instead."""
    with pytest.raises(TypeError, match="cannot copy or pickle Stat 'x': create it in the worker"):
        duplicate(make_stat())


def test_second_init_is_ignored(make_stat: MakeStat, monitel: ModuleType) -> None:
    """A second __init__ changes nothing, as in torch."""
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
    """What object.__new__ makes passes over the window: C refuses it, in Python it goes as silently as it came."""
    if twin == "c":
        with pytest.raises(TypeError, match="not safe"):
            object.__new__(monitel.Stat)
    else:
        object.__new__(monitel.Stat)
    gc.collect()
    assert [] == unraisable


def test_subclass(monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """A subclass may have attributes of its own and extend add()."""

    class Doubling(monitel.Stat):  # type: ignore[misc, name-defined]
        def add(self, v: float) -> None:
            self.seen = v
            super().add(2 * v)

    stat = Doubling("x", [monitel.SUM], 60.0)
    stat.add(3)
    stat.flush()
    assert (3, {"x.sum": 6.0}) == (stat.seen, events[0].data)


def test_identity(make_stat: MakeStat) -> None:
    """Stats compare and hash by identity; what they show cannot be assigned, and nothing else can."""
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
        return 99.0  # torch reads the float itself


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
    """Whatever is a real number is added as a float; `v` is also the parameter's name."""
    stat = make_stat()
    stat.add(v=value)
    stat.flush()
    assert (added, float) == (stat.get()[monitel.SUM], type(stat.get()[monitel.SUM]))


def test_numpy_scalars_are_added(make_stat: MakeStat, monitel: ModuleType) -> None:
    """NumPy scalars and arrays without dimension are real numbers."""
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
def test_other_values_are_refused(make_stat: MakeStat, value: Any) -> None:
    """What is no real number is a TypeError and is not counted."""
    stat = make_stat()
    with pytest.raises(TypeError, match=r"add\(\) takes a real number"):
        stat.add(value)
    assert (0, 0) == (stat.count, stat.discarded)


@pytest.mark.parametrize(("raised", "comes_out"), [(ZeroDivisionError, TypeError), (KeyboardInterrupt,) * 2])
def test_float_that_raises(
    make_stat: MakeStat, raised: type[BaseException], comes_out: type[BaseException]
) -> None:
    """`__float__` that raises gives a TypeError from it (torch loses the cause); a BaseException passes."""
    error = raised("why")
    value = type("Value", (), {"__float__": lambda self: (_ for _ in ()).throw(error)})()
    stat = make_stat()
    with pytest.raises(comes_out, match="why") as caught:
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
    """A first NaN sticks and a later one is ignored; of two zeros the first stays; as in torch."""
    stat = make_stat()
    for sample in samples:
        stat.add(sample)
    stat.flush()
    assert (repr(smallest), repr(largest)) == (repr(stat.get()[monitel.MIN]), repr(stat.get()[monitel.MAX]))


def test_sum_is_plain(make_stat: MakeStat, monitel: ModuleType) -> None:
    """Samples are added up from first to last, without compensation, and a NaN stays in the sum."""
    stat = make_stat()
    for sample in (1e16, 1.0, -1e16):
        stat.add(sample)
    stat.flush()
    assert 0.0 == stat.get()[monitel.SUM]
    stat.add(math.nan)
    stat.add(1.0)
    stat.flush()
    assert [True, True] == [math.isnan(stat.get()[each]) for each in (monitel.SUM, monitel.MEAN)]


def test_value_hook_sees_what_is_no_plain_number(make_stat: MakeStat, monitel: ModuleType) -> None:
    """Values that are not exactly float or int go through one hook, which may keep a sample for later."""
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


def test_get_says_the_last_closed_window(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """get() is 0.0 each before a window was closed, never the open one, and closing an empty one leaves it."""
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
    """`<name>.value` and the others are floats, the timestamp is naive local time of logging; .window has it all."""
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
    """Windows of many Stats that are closed at once cause no full collection, which is long in a large process."""
    if twin == "py":
        pytest.skip("only C can hide an object from the garbage collector")
    make_stat().add(1)
    monitel.flush()
    window = events[0].window
    assert [] == [each for each in (window, window.histogram, window.histogram.positive) if gc.is_tracked(each)]


def test_stat_gets_or_creates(monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """monitel.stat() makes a Stat of torch's aggregations and 60 s, keeps it alive, and finds it again."""
    monitel.stat("registered").add(1)
    gc.collect()
    assert [] == events
    stat = monitel.stat("registered")
    assert (1, dt.timedelta(seconds=60)) == (stat.count, stat.window_size)
    assert monitel.aggregation.TORCHS == stat.definition.aggregations
    assert stat is monitel.stat(b"registered", unit="", window_size=60.0)


def test_stat_is_found_by_name_and_attributes(monitel: ModuleType) -> None:
    """Attributes are part of the identity, whatever their order; 1, 1.0 and True differ."""
    stats = [
        monitel.stat("x"),
        monitel.stat("y"),
        *(monitel.stat("x", attributes={"a": value}) for value in (1, 1.0, True, "1")),
        monitel.stat("x", attributes={"a": 1, "b": 2}),
    ]
    assert len(stats) == len(set(stats))
    assert stats[-1] is monitel.stat("x", attributes={"b": 2, "a": 1})


@pytest.mark.parametrize(
    "other", [{"window_size": 1.0}, {"max_samples": 2}, {"unit": "ms"}, {"aggregations": []}, {"monotonic": True}]
)
def test_stat_refuses_other_settings(monitel: ModuleType, other: dict[str, Any]) -> None:
    """Asking for a known Stat with other settings is a ValueError that names the setting."""
    monitel.stat("x", unit="s", max_samples=5)
    with pytest.raises(ValueError, match=rf"Stat 'x' was made with {next(iter(other))}=.*, not "):
        monitel.stat("x", **other)


@pytest.mark.parametrize("wrong", [{"name": ["x"]}, {"name": "x", "window_size": 60}, {"name": "x", "attributes": 1}])
def test_stat_checks_its_arguments(monitel: ModuleType, wrong: dict[str, Any]) -> None:
    """What Stat() refuses, monitel.stat() refuses as well, and keeps nothing."""
    with pytest.raises(TypeError, match="must be"):
        monitel.stat(**wrong)
    assert {} == monitel.registry._stats


def _seconds(stat: Any) -> tuple[float, ...]:
    stat.flush()
    return tuple(value for aggregation, value in stat.get().items() if aggregation.name in {"COUNT", "SUM"})


def test_time_of_a_block(make_stat: MakeStat, clock: Any) -> None:
    """`with stat.time():` adds the seconds of the block, nested ones too, and of a block that raises."""
    stat = make_stat()
    with stat.time():
        clock.advance(1.5)
        with stat.time():
            clock.advance(0.25)
    assert (2.0, 2.0) == _seconds(stat)

    def fail() -> None:
        clock.advance(3)
        raise KeyError

    with pytest.raises(KeyError), stat.time():
        fail()
    assert (1.0, 3.0) == _seconds(stat)
    timer = stat.time()
    for _ in range(2):
        with timer:
            clock.advance(1)
    assert (2.0, 2.0) == _seconds(stat)


def test_time_of_a_function(make_stat: MakeStat, clock: Any) -> None:
    """`@stat.time()` times each call by itself, recursive ones too, and keeps the function's name."""
    stat = make_stat()

    @stat.time()  # type: ignore[untyped-decorator]
    def recursive(depth: int, *, step: float = 1) -> int:
        """Say it."""
        clock.advance(step)
        return depth and recursive(depth - 1, step=step)

    assert (0, "recursive", "Say it.") == (recursive(1, step=2), recursive.__name__, recursive.__doc__)
    assert (2.0, 6.0) == _seconds(stat)
    with pytest.raises(TypeError):
        recursive()
    assert (1.0, 0.0) == _seconds(stat)


def test_time_of_a_coroutine_function(make_stat: MakeStat, clock: Any) -> None:
    """`@stat.time()` times a coroutine function until its result is there, calls at the same time each by itself."""
    stat = make_stat()

    @stat.time()  # type: ignore[untyped-decorator]
    async def load(seconds: float, gate: asyncio.Event) -> float:
        await gate.wait()
        clock.advance(seconds)
        return seconds

    async def main() -> list[float]:
        gate = asyncio.Event()
        loads = [asyncio.create_task(load(seconds, gate)) for seconds in (1, 2)]
        await asyncio.sleep(0)
        gate.set()
        return list(await asyncio.gather(*loads))

    assert inspect.iscoroutinefunction(load)
    assert [1, 2] == asyncio.run(main())
    assert (2.0, 1.0 + 3.0) == _seconds(stat)
