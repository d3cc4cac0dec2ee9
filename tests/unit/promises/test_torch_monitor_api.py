"""The API of torch.monitor: Aggregation, Stat, Event, handlers, wait counters and the TensorBoard handler."""

import copy
import datetime as dt
import gc
import math
import operator
import pickle
import threading
import weakref
from collections import ChainMap, OrderedDict, UserDict, deque
from collections.abc import Callable
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from functools import partial
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import monitel as installed
from monitel import Aggregation, Event, Severity, log_event, register_event_handler, unregister_event_handler

MakeStat = Callable[..., Any]

TORCHS_NUMBERS = {"VALUE": 0, "MEAN": 2, "COUNT": 3, "SUM": 4, "MAX": 5, "MIN": 6}
NUMBERS = {**TORCHS_NUMBERS, "HISTOGRAM": 100, "STDDEV": 101}
MINUTE = dt.timedelta(seconds=60)
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive
EAST = dt.timezone(dt.timedelta(hours=5))
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def test_aggregation_has_torchs_names_numbers_and_order() -> None:
    """The members are an enum in torch's order, followed by monitel's two; each is also a name of the package."""
    assert issubclass(Aggregation, Enum)
    assert list(NUMBERS.items()) == [(member.name, member.value) for member in Aggregation]
    for name, number in NUMBERS.items():
        member = getattr(installed, name)
        assert member is Aggregation[name]
        assert (number, number, float(number)) == (int(member), operator.index(member), float(member))
        assert (f"<Aggregation.{name}: {number}>", f"Aggregation.{name}") == (repr(member), str(member))


def test_aggregation_is_found_by_its_number() -> None:
    """As in torch by position, by keyword and by a NumPy integer; any other argument raises."""
    assert [Aggregation.SUM] * 3 == [Aggregation(4), Aggregation(value=4), Aggregation(np.int64(4))]
    for number in (1, 7, 99, -1, True, 2**40):  # torch accepts them, and crashes later
        with pytest.raises(ValueError, match=r"takes one of 0 \(VALUE\), 2 \(MEAN\)"):
            Aggregation(number)
    for wrong in ("SUM", None, 4.5, b"4"):
        with pytest.raises(TypeError, match="takes one of"):
            Aggregation(wrong)


def test_aggregation_is_not_a_number() -> None:
    """A member does not equal its number, has no order and cannot be changed; copies are the member itself."""
    member: Any = Aggregation.SUM
    assert 4 not in {member: 1}
    combining: list[Any] = [operator.lt, operator.or_]
    for combine in combining:
        with pytest.raises(TypeError):
            combine(member, Aggregation.MAX)
    with pytest.raises(AttributeError):
        member.value = 5
    assert {id(member)} == {*(id(pickle.loads(pickle.dumps(member, each))) for each in PROTOCOLS)}
    assert member is copy.deepcopy(member)


def test_stat_takes_torchs_arguments(monitel: ModuleType) -> None:
    """Name, aggregations, window_size and max_samples come by position and by keyword; the others by keyword only."""
    by_position = monitel.Stat("x", [monitel.SUM], MINUTE, 5)
    by_keyword = monitel.Stat(name="x", aggregations=[monitel.SUM], window_size=MINUTE, max_samples=5)
    for stat in (by_position, by_keyword):
        found = (stat.name, stat.definition.aggregations, stat.window_size, stat.max_samples)
        assert ("x", (monitel.SUM,), MINUTE, 5) == found
    names = monitel.Stat("x", ["max", "Mean", "MEAN", monitel.SUM], MINUTE).definition.aggregations
    assert (monitel.MEAN, monitel.SUM, monitel.MAX) == names
    assert 2**63 - 1 == monitel.Stat("x", [], MINUTE).max_samples
    with pytest.raises(TypeError, match="positional"):
        monitel.Stat("x", [], MINUTE, 1, "s")


def test_names_of_aggregations_work_in_any_case(make_stat: MakeStat, monitel: ModuleType) -> None:
    assert (monitel.MEAN, monitel.MAX) == make_stat(aggregations=["mean", "MAX"]).definition.aggregations


def test_wrong_arguments_of_a_stat_raise(make_stat: MakeStat, monitel: ModuleType) -> None:
    """TypeError for a wrong type, ValueError for a wrong value, each with what was expected."""
    table: list[tuple[type[Exception], str, str, list[Any]]] = [
        (TypeError, "window_size", r"a float such as 60.0, got", [60, True, "60", None, Decimal(60)]),
        (TypeError, "max_samples", "max_samples must", [1.0, "1", None, 2**63, -(2**63) - 1]),
        (TypeError, "aggregations", "aggregations must be", [monitel.SUM, "SUM", [4], ["x"], {monitel.SUM: 1}]),
        (TypeError, "name", "Stat name must be", [None, 1, "\ud800"]),
        (ValueError, "window_size", "must be at least 1 ms", [dt.timedelta(microseconds=999), 0.0009, -1.0, math.nan]),
        (ValueError, "max_samples", "must be at least 1, got .*leave it out for no limit", [0, -1, -(2**63), False]),
    ]
    for kind, argument, message, wrong in table:
        for each in wrong:
            with pytest.raises(kind, match=message):
                make_stat(**{argument: each})
    with pytest.raises(TypeError):
        monitel.Stat("x", [])


def test_window_size_is_a_timedelta_or_seconds(make_stat: MakeStat) -> None:
    """The size is truncated to milliseconds, as in torch; without an end it is the longest timedelta."""
    sizes = [dt.timedelta(microseconds=1999), 0.0015, dt.timedelta(0, 2), 2.0]
    found = [make_stat(window_size=size).window_size / dt.timedelta(milliseconds=1) for size in sizes]
    assert [1, 1, 2000, 2000] == found
    endless = [make_stat(window_size=size).window_size for size in (math.inf, 1e300, dt.timedelta.max)]
    assert [dt.timedelta.max] * 3 == endless


def test_aggregations_come_in_any_container_of_torch(monitel: ModuleType) -> None:
    """Duplicates are ignored; the order of the results is fixed."""
    chosen = [monitel.MIN, monitel.MAX, monitel.MIN]
    for make in (list, tuple, set, frozenset, deque, lambda them: (each for each in them), dict.fromkeys):
        given: Any = make(chosen)
        stat = monitel.Stat("x", given.keys() if isinstance(given, dict) else given, MINUTE)
        assert (monitel.MAX, monitel.MIN) == stat.definition.aggregations


class _Index:
    def __index__(self) -> int:
        return 3


class _Number(_Index):
    def __float__(self) -> float:
        return 0.5


class _Float(float):
    def __float__(self) -> float:
        return 99.0  # torch uses the float directly


def test_every_real_number_is_a_sample(make_stat: MakeStat, monitel: ModuleType) -> None:
    """The parameter's name is v; bools, Decimals, Fractions, and NumPy scalars are numbers, as in torch."""
    samples: list[tuple[Any, float]] = [
        *((2.5, 2.5), (-3, -3.0), (True, 1.0), (2**53 + 1, 2.0**53), (math.inf, math.inf), (_Float(1.5), 1.5)),
        *((Decimal("0.5"), 0.5), (Fraction(1, 4), 0.25), (_Index(), 3.0), (_Number(), 0.5)),
        *((np.float32(0.5), 0.5), (np.int64(2), 2.0), (np.bool_(True), 1.0), (np.array(4.0), 4.0)),
    ]
    stat = make_stat()
    for given, added in samples:
        stat.add(v=given)
        stat.flush()
        total, count = (stat.get()[each] for each in (monitel.SUM, monitel.COUNT))
        assert (added, float, 1.0) == (total, type(total), count)


def test_other_values_raise_and_are_not_counted(make_stat: MakeStat) -> None:
    """Text, None, complex numbers and ints beyond a float are TypeErrors; so is an exception of __float__."""
    stat = make_stat()
    no_float = type("NoFloat", (), {"__float__": lambda self: "text"})()
    error = ZeroDivisionError("why")
    raising = type("Raising", (), {"__float__": lambda self: (_ for _ in ()).throw(error)})()
    for value in ("1", b"1", None, [1.0], 1j, 10**400, no_float, raising, Decimal("sNaN")):
        with pytest.raises(TypeError, match=r"add\(\) takes a real number") as caught:
            stat.add(value)
        assert value is not raising or caught.value.__cause__ is error
    for arguments, keywords in (((), {}), ((1, 2), {}), ((1,), {"v": 1}), ((), {"x": 1})):
        with pytest.raises(TypeError, match=r"^Stat\.add\(\) "):
            stat.add(*arguments, **keywords)
    assert (0, 0) == (stat.count, stat.discarded)


def test_get_has_the_last_closed_window(monitel: ModuleType, clock: Any) -> None:
    """0.0 before a window was closed, never the open window; floats only, COUNT included; a new dict each time."""
    stat = monitel.Stat("x", [monitel.Aggregation[name] for name in TORCHS_NUMBERS], 60.0)
    for sample in (1, 3, 2):
        stat.add(sample)
    assert dict.fromkeys(TORCHS_NUMBERS, 0.0) == {each.name: value for each, value in stat.get().items()}
    assert 3 == stat.count
    stat.flush()
    expected = {"VALUE": 2.0, "MEAN": 2.0, "COUNT": 3.0, "SUM": 6.0, "MAX": 3.0, "MIN": 1.0}
    assert list(expected.items()) == [(each.name, value) for each, value in stat.get().items()]
    assert {float} == {*map(type, stat.get().values())}
    clock.advance(120)
    stat.flush()  # of nothing
    stat.add(7)
    stat.get().clear()
    assert (1, list(expected.values())) == (stat.count, list(stat.get().values()))


def test_minimum_and_maximum_are_torchs(make_stat: MakeStat, monitel: ModuleType) -> None:
    """A first NaN is kept and a later one ignored; of two zeros the first is kept."""
    nan, inf = math.nan, math.inf
    table = [([nan, 1.0], nan, nan), ([1.0, nan, 2.0], 1.0, 2.0), ([-inf, inf], -inf, inf), ([-0.0, 0.0], -0.0, -0.0)]
    for samples, smallest, largest in table:
        stat = make_stat()
        for sample in samples:
            stat.add(sample)
        stat.flush()
        assert (repr(smallest), repr(largest)) == (repr(stat.get()[monitel.MIN]), repr(stat.get()[monitel.MAX]))


def test_sum_is_plain(make_stat: MakeStat, monitel: ModuleType) -> None:
    """Doubles are added from first to last, without compensation; a NaN makes sum and mean NaN."""
    stat = make_stat()
    for samples, expected in (((1e16, 1.0, -1e16), 0.0), ((math.nan, 1.0), math.nan)):
        for sample in samples:
            stat.add(sample)
        stat.flush()
        assert repr(expected) == repr(stat.get()[monitel.SUM])
    assert math.isnan(stat.get()[monitel.MEAN])


def test_event_of_a_window_is_torchs(monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """Its name, its keys, floats as values, and as timestamp the naive local time at which it was logged."""
    stat = monitel.Stat("loss", [monitel.Aggregation[name] for name in TORCHS_NUMBERS], MINUTE)
    for sample in (5, 1, 3):
        stat.add(sample)
    clock.advance(61.5)
    stat.add(4)
    (event,) = events
    assert ("torch.monitor.Stat", monitel.STAT_EVENT, monitel.Severity.INFO) == (event.name, event.name, event.severity)
    expected = {"value": 3.0, "mean": 3.0, "count": 3.0, "sum": 9.0, "max": 5.0, "min": 1.0}
    assert [(f"loss.{suffix}", value) for suffix, value in expected.items()] == list(event.data.items())
    assert {float} == {*map(type, event.data.values())}
    assert dt.datetime.fromtimestamp(1_767_225_661.5) == event.timestamp  # noqa: DTZ006  local


def test_stat_is_identified_by_itself(make_stat: MakeStat, monitel: ModuleType) -> None:
    """Stats are compared by identity, take weak references, cannot be copied or pickled; properties are read-only."""
    stat = make_stat()
    assert {stat} != {make_stat()}
    assert stat is weakref.ref(stat)()
    pickles = [partial(pickle.dumps, protocol=protocol) for protocol in (0, 2, 5)]
    duplicates: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, *pickles]
    for duplicate in duplicates:
        with pytest.raises(TypeError, match="cannot copy or pickle Stat 'x'"):
            duplicate(stat)
    for name in ("name", "count", "window_size", "other"):
        with pytest.raises(AttributeError):
            setattr(stat, name, 1)
    names = "VALUE, MEAN, COUNT, SUM, MAX, MIN, HISTOGRAM, STDDEV"
    assert f"<Stat 'x' [{names}] every 0:01:00, 0 samples open>" == repr(stat)


def test_stat_can_be_subclassed(monitel: ModuleType, events: list[Any]) -> None:
    """A subclass may have attributes and extend add(); without __init__, add() raises, where torch crashes."""

    class Doubling(monitel.Stat):  # type: ignore[misc, name-defined]
        def add(self, v: float) -> None:
            self.seen = v
            super().add(2 * v)

    class Forgetful(monitel.Stat):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            pass

    stat = Doubling("x", [monitel.SUM], 60.0)
    stat.add(3)
    monitel.Stat.__init__(stat, "other", [], 1.0)  # a second one has no effect, as in torch
    stat.flush()
    assert ("x", 3, {"x.sum": 6.0}) == (stat.name, stat.seen, events[0].data)
    for made in (monitel.Stat.__new__(monitel.Stat), Forgetful()):
        with pytest.raises(RuntimeError, match=r"must call super\(\).__init__\(name, aggregations, window_size\)"):
            made.add(1)
        made.flush()
        assert 0 == made.count


def make(**changes: Any) -> Event:
    return Event(**{"name": "epoch", "timestamp": MOMENT, "data": {"epoch": 3, "loss": 0.25}, **changes})


def plain(value: object) -> tuple[type, str]:
    return type(value), repr(value)


def test_event_takes_three_arguments() -> None:
    """Name, timestamp and data are required, by position or by keyword; severity is INFO unless given by keyword."""
    event = Event("epoch", MOMENT, {"epoch": 3})
    assert ("epoch", MOMENT, {"epoch": 3}, Severity.INFO) == (event.name, event.timestamp, event.data, event.severity)
    assert (event, None) == (Event(name="epoch", timestamp=MOMENT, data={"epoch": 3}), event.window)
    wrong: list[tuple[Any, ...]] = [(), ("a",), ("a", MOMENT), ("a", MOMENT, {}, Severity.INFO)]
    for arguments in wrong:
        with pytest.raises(TypeError):
            Event(*arguments)


class _Level(IntEnum):
    HIGH = 3


class _Text(str):
    __slots__ = ()


def test_values_of_an_event_become_plain() -> None:
    """A str, int, float or bool stays, while torch makes a bool a float; NumPy scalars and subclasses convert."""
    table: list[tuple[Any, Any]] = [
        *((value, value) for value in ("é€😀", "\0", 0, 2**63 - 1, -(2**63), -0.0, math.inf, math.nan, True, False)),
        *((_Text("text"), "text"), (b"text", "text"), (_Level.HIGH, 3), (Severity.WARN, 13), (_Float(1.5), 1.5)),
        *((np.bool_(True), True), (np.uint64(2**63 - 1), 2**63 - 1), (np.float32(0.5), 0.5), (np.str_("a"), "a")),
    ]
    for given, kept in table:
        assert plain(kept) == plain(make(data={"a": given}).data["a"])
    event = make(name=b"loss", data={b"loss": 1})
    assert [(str, "'loss'")] * 2 == [plain(event.name), *map(plain, event.data)]


def test_wrong_arguments_of_an_event_raise() -> None:
    """The error of a value names its key; ints beyond 64 bits, and text that UTF-8 cannot hold, are errors."""
    of_other_types: list[Any] = [None, [], {}, (1,), 1j, bytearray(b"a"), _Number(), MOMENT, Decimal(1), np.array(1.5)]
    for value in [*of_other_types, Aggregation.SUM]:
        with pytest.raises(TypeError, match=r"'loss'.*must be a str, int, float or bool, got"):
            make(data={"loss": value})
    too_large: list[Any] = [2**63, -(2**63) - 1, np.uint64(2**63)]
    for value in too_large:
        with pytest.raises(ValueError, match=r"'a'.*64 bits"):
            make(data={"a": value})
    wrong: dict[str, list[Any]] = {
        "name must be a str": [{"name": None}, {"name": 1}],
        r"key .*must be a str": [{"data": {1: 1}}, {"data": {None: 1}}],
        "must be a mapping": [{"data": None}, {"data": [("a", 1)]}, {"data": ""}],
        "must be a datetime": [{"timestamp": each} for each in (None, 0, 1.5, "2026", np.datetime64("2026-01-02"))],
        "UTF-8": [{"name": "\ud800"}, {"data": {"\ud800": 1}}, {"data": {"a": "\ud800"}}],
    }
    for message, changes in wrong.items():
        for each in changes:
            with pytest.raises(TypeError, match=message):
                make(**each)


def test_timestamps_of_an_event() -> None:
    """Zone and fold are kept, which torch drops; a date is midnight, a time is on 1970-01-01, as in torch."""
    moments = (MOMENT, MOMENT.replace(1), MOMENT.replace(9999), MOMENT.replace(tzinfo=EAST, fold=1))
    table: list[tuple[Any, dt.datetime]] = [
        *((each, each) for each in moments),
        (dt.date(2026, 1, 2), MOMENT.replace(hour=0, minute=0, second=0, microsecond=0)),
        (dt.time(3, 4, 5, 678901), MOMENT.replace(1970, 1, 1)),
        (type("Moment", (dt.datetime,), {})(2026, 1, 2, 3, 4, 5, 678901), MOMENT),
    ]
    for given, kept in table:
        assert plain(kept) == plain(make(timestamp=given).timestamp)


def test_attributes_of_an_event_can_be_assigned() -> None:
    """Values are checked as by the constructor; after an error the Event is unchanged; nothing can be deleted."""
    event = make()
    given = [("name", b"other", "other"), ("data", {"a": _Level.HIGH}, {"a": 3}), ("severity", 17, 17)]
    for name, value, kept in given:
        setattr(event, name, value)
        assert kept == getattr(event, name)
    wrong: list[tuple[str, Any]] = [("name", None), ("timestamp", 1), ("data", {"a": None}), ("severity", 10)]
    for name, value in [*wrong, ("window", None), ("other", 1)]:
        event = make()
        with pytest.raises((TypeError, ValueError, AttributeError)):
            setattr(event, name, value)
        assert make() == event
    with pytest.raises(AttributeError):
        del event.data


def test_data_of_an_event_is_its_own_dict() -> None:
    """Every mapping is copied in its order; an item that is added later is kept, which torch loses."""
    for kind in (dict, OrderedDict, MappingProxyType, ChainMap, UserDict):
        given: Any = {"b": 1, "a": 2}
        event = make(data=kind(given))
        event.data["later"] = 3
        assert [("b", 1), ("a", 2), ("later", 3)] == list(event.data.items())
        assert {"b": 1, "a": 2} == given


def test_events_compare_by_value() -> None:
    """All four values count, the order of data does not; the hash stays; eval() of the repr restores the Event."""
    assert make(data={"loss": 0.25, "epoch": 3}) == make()
    changes: list[dict[str, Any]] = [
        *({"name": "other"}, {"timestamp": MOMENT.replace(tzinfo=EAST)}, {"data": {"epoch": 3, "loss": 0.5}}),
        {"severity": Severity.ERROR},
    ]
    for change in changes:
        assert make(**change) != make()
        event = make(**change)
        assert event == eval(repr(event), {"Event": Event, "Severity": Severity, "datetime": dt})
    known = {event}
    event.data["later"] = 1
    assert event in known


class _Checkpoint(Event):
    path = ""


def test_events_can_be_copied_and_pickled() -> None:
    """With additional attributes, and with the window of a Stat, where torch raises or aborts."""
    event: Any = _Checkpoint("saved", MOMENT.replace(tzinfo=EAST, fold=1), {"ok": True}, severity=Severity.WARN)
    event.path = "/a"
    with installed.testing.capture_events() as events:
        installed.Stat("loss", [Aggregation.SUM], 60.0, 1, unit="s", attributes={"split": "val"}).add(0.5)
    for original in (event, *events):
        pickled = [pickle.loads(pickle.dumps(original, protocol)) for protocol in PROTOCOLS[2:]]
        for again in (copy.copy(original), copy.deepcopy(original), *pickled):
            assert (original, type(original), original.window) == (again, type(again), again.window)
            assert getattr(original, "path", None) == getattr(again, "path", None)


def test_severity_has_opentelemetrys_numbers() -> None:
    """The first number of each of OpenTelemetry's ranges; names count in any case, and a wrong one lists the others."""
    numbers = {"TRACE": 1, "DEBUG": 5, "INFO": 9, "WARN": 13, "ERROR": 17, "FATAL": 21}
    assert numbers == {severity.name: int(severity) for severity in Severity}
    for name in ("warn", "WARNING", "Warning", 13, Severity.WARN):
        assert Severity.WARN is make(severity=name).severity
    assert Severity.FATAL is make(severity="critical").severity
    for wrong in (0, 10, "loud", "", None):
        with pytest.raises(ValueError, match=r"must be one of Severity.TRACE, .*Severity.FATAL, got"):
            make(severity=wrong)


def test_handlers_are_called_in_order_in_the_logging_thread() -> None:
    """Handlers get the very Event, in the order of registration; the parameters have torch's names."""
    calls: list[tuple[str, Event, int]] = []

    def handler(name: str) -> Callable[[Event], str]:
        return lambda event: calls.append((name, event, threading.get_ident())) or "ignored"  # type: ignore[func-returns-value]

    logged = type("Special", (Event,), {})("epoch", MOMENT, {})
    assert log_event(event=logged) is None  # type: ignore[func-returns-value]  # that is the point
    first, second = register_event_handler(callback=handler("a")), register_event_handler(handler("b"))
    log_event(logged)
    unregister_event_handler(handler=first)
    log_event(logged)
    unregister_event_handler(second)
    log_event(logged)
    assert [(name, logged, threading.get_ident()) for name in "abb"] == calls
    assert all(received is logged for _, received, _ in calls)


def test_each_registration_is_separate() -> None:
    """A callable that is registered twice is called twice; unregistering is idempotent, where torch removes another."""
    received: list[Event] = []
    first, second = register_event_handler(received.append), register_event_handler(received.append)
    log_event(make())
    for _ in range(3):
        unregister_event_handler(first)
    log_event(make())
    assert 3 == len(received)
    with second:  # leaving the block unregisters
        log_event(make())
    log_event(make())
    assert 4 == len(received)


def test_garbage_collection_of_a_handle_unregisters_nothing() -> None:
    """The registry keeps the callable alive, until it is unregistered."""
    received: list[Event] = []

    def handler(event: Event) -> None:
        received.append(event)

    alive, handles = weakref.ref(handler), [register_event_handler(handler)]
    kept = weakref.ref(handles.pop())
    del handler
    gc.collect()
    log_event(make())
    assert [make()] == received
    left = kept()
    assert left is not None
    unregister_event_handler(left)
    del left
    assert alive() is None


def test_handlers_of_wrong_types_raise() -> None:
    """A handler must be callable, None included, which torch accepts; a handle cannot be made, copied or pickled."""
    for wrong in (None, 1, "print"):
        given: Any = wrong
        with pytest.raises(TypeError, match="takes a callable, got"):
            register_event_handler(given)
        with pytest.raises(TypeError, match="takes the handle"):
            unregister_event_handler(given)
        with pytest.raises(TypeError, match="takes an Event, got"):
            log_event(given)
    with pytest.raises(TypeError, match=r"register_event_handler\(callback\) returns one"):
        installed.EventHandlerHandle()
    with register_event_handler(print) as handle:
        for duplicate in (copy.copy, pickle.dumps):
            with pytest.raises(TypeError, match="register the handler in the process that needs it"):
                duplicate(handle)


class _Writer:
    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def add_scalar(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append((args, kwargs))


def test_tensorboard_handler_writes_each_value_of_a_window() -> None:
    """As in torch: a scalar for each key, at the time of the event, without a step; other events are ignored."""
    writer = _Writer()
    handler = installed.TensorboardEventHandler(writer=writer)
    handler(Event("epoch", MOMENT, {"a": 1.0}))
    when = MOMENT.astimezone(dt.timezone.utc)
    for timestamp in (MOMENT, when):
        handler(Event("torch.monitor.Stat", timestamp, {"a.sum": 1.5}))
    handler(SimpleNamespace(name="torch.monitor.Stat", timestamp=MOMENT, data={"b": "text"}))  # type: ignore[arg-type]
    expected = [("a.sum", 1.5), ("a.sum", 1.5), ("b", "text")]
    assert [(each, {"walltime": MOMENT.timestamp()}) for each in expected] == writer.calls


def test_wait_counter_is_torchs() -> None:
    """The class has torch's name too; a key is text; guard() returns a new context manager without a constructor."""
    assert installed._WaitCounter is installed.WaitCounter
    encoded: Any = b"data"
    counters = [installed.WaitCounter("data"), installed.WaitCounter(key="data"), installed._WaitCounter(encoded)]
    assert ["data"] * 3 == [each.key for each in counters]
    guards: list[Any] = [each.guard() for each in counters]
    assert {installed._WaitCounterTracker} == {*map(type, guards)}
    for guard in guards:
        assert (None, None) == (guard.__enter__(), guard.__exit__(None, None, None))
    assert 3 == installed.wait_counters()["data"].count
    for wrong in ((), ("a", "b"), (None,), (1,)):
        with pytest.raises(TypeError):
            installed.WaitCounter(*wrong)
    with pytest.raises(TypeError, match=r"WaitCounter\(key\).guard\(\) returns one"):
        installed._WaitCounterTracker()
