"""Calls of torch.monitor and of monitel have equal results; differences: tests/unit/promises/test_torch_monitor_api."""

import copy
import datetime as dt
import json
import math
import pickle
import re
import threading
import types
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import monitel

Call = Callable[[Any], Any]

HOURS = dt.timedelta(hours=100)  # the windows of both are on the real clock: none of these ends
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive


def plain(value: Any) -> Any:
    """Make a result comparable: 1, 1.0 and True differ, and NaN equals itself."""
    if type(value).__name__ == "Aggregation":
        return f"Aggregation.{value.name}"
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if isinstance(value, type) else f"{type(value).__name__} {value!r}"


def outcome(call: Callable[..., Any], monitor: Any, *given: Any) -> Any:
    """Return the comparable result of a call, or the type of its exception."""
    try:
        return plain(call(monitor, *given))
    except Exception as error:
        return type(error)


@contextmanager
def registered(monitor: Any, *handlers: Any) -> Iterator[list[Any]]:
    """Register handlers for a block. They are unregistered, because torch crashes at exit otherwise."""
    handles: list[Any] = []
    try:
        handles.extend(map(monitor.register_event_handler, handlers))
        yield handles
    finally:
        while handles:
            monitor.unregister_event_handler(handles.pop())


@contextmanager
def recorded(monitor: Any) -> Iterator[list[Any]]:
    """Collect the events."""
    events: list[Any] = []
    with registered(monitor, events.append):
        yield events


def make(m: Any, max_samples: Any = 2**63 - 1, **changes: Any) -> Any:
    five = [m.MEAN, m.COUNT, m.SUM, m.MAX, m.MIN]
    given = {"name": "x", "aggregations": five, "window_size": HOURS, "max_samples": max_samples}
    return m.Stat(**{**given, **changes})


def fill(m: Any, *samples: Any, **changes: Any) -> Any:
    """Fill a Stat with samples; return its name, results and count, and its events."""
    with recorded(m) as events:
        stat = make(m, **{"max_samples": len(samples), **changes})
        for sample in samples:
            assert stat.add(sample) is None
        return stat.name, stat.get(), stat.count, [(each.name, each.data) for each in events]


def event(m: Any, **changes: Any) -> Any:
    return m.Event(**{"name": "n", "timestamp": MOMENT, "data": {"a": 1}, **changes})


def special(base: Any, *arguments: Any, **methods: Any) -> Any:
    """Create an object of a subclass whose ``__method__`` returns a value, or raises it if it is an exception type."""

    def method(result: Any) -> Callable[[Any], Any]:
        def call(_self: object) -> Any:
            if isinstance(result, type):
                raise result
            return result

        return call

    namespace = {f"__{name}__": method(result) for name, result in methods.items()}
    return type(f"Special {base.__name__} {methods}", (base,), namespace)(*arguments)


def weak(made: Any) -> bool:
    return weakref.ref(made)() is made


def with_handle(m: Any, use: Callable[[Any], Any]) -> Any:
    with registered(m, print) as (handle,):
        return use(handle)


Level = IntEnum("Level", {"HIGH": 3})
Sized = type("Sized", (), {"__len__": lambda _: 1, "__getitem__": lambda self, index: [self.member][index]})
Table = type("Table", (), {"items": lambda _: [("a", 1)], "__getitem__": lambda *_: 1})  # as a pandas.Series


def sized(m: Any) -> Any:
    """Create an object with a length and numbered items."""
    made: Any = Sized()
    made.member = m.SUM
    return made


TEXTS = [
    *("a", "", "\0é€😀", b"b", bytearray(b"c"), "\ud800", special(str, "s"), np.str_("n"), np.bytes_(b"n")),
    *(None, 1, 1.0, True, memoryview(b"a"), object()),
]

CONTAINERS: list[Call] = [
    *(lambda m: [m.SUM, m.MAX], lambda m: (m.SUM, m.MAX), lambda m: {m.SUM}, lambda m: frozenset({m.SUM})),
    *(lambda m: (each for each in [m.SUM]), lambda m: map(copy.copy, [m.SUM]), lambda m: deque([m.SUM]), sized),
    *(lambda m: {m.SUM: 1}.keys(), lambda m: {1: m.SUM}.values(), lambda m: UserList([m.SUM]), lambda _: []),
    *(lambda m: np.array([m.SUM], dtype=object), lambda m: [m.SUM, m.MAX, m.SUM], lambda m: [m.Aggregation(4)]),
    *(lambda m: {1: m.SUM}.items(), lambda m: {m.SUM: 1}, lambda _: {}, lambda m: UserDict({0: m.SUM})),
    *(lambda m: iter([m.SUM]), lambda m: filter(None, [m.SUM]), lambda _: (1 / 0 for _ in [1]), lambda m: m.SUM),
    *(lambda _: "SUM", lambda _: b"", lambda _: None, lambda m: m.Aggregation, lambda _: [4], lambda _: ["x"]),
    *(lambda m: [m.SUM, None], lambda m: [m.SUM, 4]),
]

SAMPLES = [
    *(0, 1, -7, True, 2**53 + 1, 2**1023, 10**400, -(10**400), Level.HIGH, special(int, 3, float=9.0)),
    *(1.5, -0.0, math.inf, -math.inf, math.nan, 5e-324, special(float, 2.5, float=9.0)),
    *(Decimal("1.5"), Decimal("NaN"), Decimal("sNaN"), Fraction(1, 3), "1", b"1", None, [1], {}, 1j, object(), float),
    *(np.float64(1.5), np.float32(0.1), np.float16(1.5), np.longdouble(1.5), np.int8(-3), np.uint64(2**64 - 1)),
    *(np.bool_(True), np.array(1.5), np.array(3), np.array([1.0, 2.0]), np.array("1"), np.array("x")),
    *(np.str_("1"), np.bytes_(b"1"), np.datetime64(1, "s"), np.timedelta64(1, "s"), dt.timedelta(1), MOMENT, ...),
    *(special(object, float=2.0), special(object, index=2), special(object, float=2.0, index=3)),
    *(special(object, int=2), special(object, index=10**400), special(object, float="x"), special(object, index="x")),
    *(special(object, float=ValueError), special(object, index=ValueError)),
    *(torch.tensor(1.5), torch.tensor([[3]]), torch.tensor(True), torch.tensor([1.5], dtype=torch.bfloat16)),
    *(torch.nn.Parameter(torch.ones(1)), torch.tensor(1.5, requires_grad=True), torch.ones(2), torch.ones(0)),
    *(torch.tensor(1j), torch.tensor(1.0, device="meta")),
]

WINDOWS = [
    *(HOURS, special(dt.timedelta, 4), dt.timedelta.max, 3e5, special(float, 3e5), np.float64(3e5), math.inf, 1e300),
    *(360_000, 10**400, True, "60", None, Decimal(60), Fraction(60), 1j, dt.time(1), MOMENT, object()),
    *(np.float32(3e5), np.int64(60), np.timedelta64(60, "s"), np.array(3e5), torch.tensor(3e5)),
]

LIMITS = [
    *(1, 2, True, Level.HIGH, 2**63 - 1, 2**63, -(2**63) - 1, 2.0, math.inf, "2", b"2", None, 1j, [2], object()),
    *(Decimal("2.7"), Fraction(5, 2), dt.timedelta(2), np.str_("2"), np.bytes_(b"2"), np.timedelta64(2, "s")),
    *(np.int64(2), np.int8(2), np.bool_(True), np.float64(2), np.float32(2), np.array(2), np.array([1, 2])),
    *(special(object, index=2), special(object, int=2), special(object, index=1, int=2), special(object, float=2.0)),
    *(special(object, int=ValueError), special(object, index=ValueError), special(object, int="2")),
    *(torch.tensor(2), torch.ones(2)),
]

VALUES = [
    *("s", "", "\0", special(str, "s"), b"b", np.str_("n"), np.bytes_(b"n"), bytearray(b"b"), memoryview(b"b")),
    *(0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**40, Level.HIGH, special(int, 5, int=9)),
    *(1.5, -0.0, math.inf, math.nan, special(float, 1.5, float=9.0), None, [1], {}, (1,), 1j, object(), int, ...),
    *(np.float64(1.5), np.float32(0.1), np.float16(1.5), np.longdouble(1.5), np.int64(3), np.int8(-3)),
    *(np.uint64(3), np.uint64(2**64 - 1), np.array(1.5), np.array(1), np.void(b"12"), torch.tensor(1.0)),
    *(np.datetime64(1, "s"), np.datetime64(1, "ns"), np.timedelta64(1, "ns"), MOMENT, dt.timedelta(1)),
    *(Decimal(1), Fraction(1), special(object, float=2.0), special(object, index=2)),
]

TIMESTAMPS = [
    *(MOMENT, MOMENT.replace(1700), MOMENT.replace(1969), MOMENT.replace(2262, 1), special(dt.datetime, 2026, 1, 2)),
    *(dt.date(2026, 1, 2), dt.time(1, 2, 3), None, 0, 1.5, "2026-01-02", dt.timedelta(1), np.datetime64("2026-01-02")),
]

MAPPINGS = [
    *(kind({"b": 1, "a": 2}) for kind in (dict, OrderedDict, ChainMap, UserDict, Counter, types.MappingProxyType)),
    *(Table(), None, [("a", 1)], (), set(), "", 0),
]

SERIES = [
    *([1, 2, 3, 4], [3, 1, 2], [0.1] * 10, [1e308, 1e308], [math.inf, -math.inf], [1e16, 1, -1e16], [-0.0, 0.0]),
    *([math.nan, 1, 2], [1, math.nan, 2], [0.0, -0.0], [True, Decimal("0.5"), np.float32(0.1)]),
]


def raising(m: Any, error: BaseException) -> Any:
    """Log to a handler that raises, then log without it."""
    received: list[str] = []
    with registered(m, lambda event: received.append(event.name)):
        with registered(m, Mock(side_effect=error)), pytest.raises(type(error)) as caught:
            m.log_event(event(m))
        m.log_event(event(m))
    return received, caught.value is error


def assigned(m: Any, given: tuple[str, Any]) -> Any:
    made = event(m)
    setattr(made, *given)
    return getattr(made, given[0])


ASSIGNED = [
    *(("name", b"x"), ("name", 1), ("timestamp", dt.date(2026, 1, 2)), ("timestamp", 1), ("other", 1)),
    *(("data", {b"b": Level.HIGH}), ("data", None), ("data", {"b": None})),
]

COPIES = [copy.copy, copy.deepcopy, pickle.dumps]

#: By name: a function, and the values with which it is called.
ROWS: dict[str, tuple[Callable[[Any, Any], Any], list[Any]]] = {
    "Aggregation: value": (
        lambda m, given: [m.Aggregation(given), m.Aggregation(value=given)],
        [0, 2, 3, 4, 5, 6, False, np.int64(4), np.array(4), Decimal(4), "SUM", b"4", None, [4], 4.5],
    ),
    "Aggregation: members": (
        lambda m, read: [
            (name, read(getattr(m, name))) for name in (each.name for each in monitel.stats.definition.TORCHS)
        ],
        [int, float, str, repr, format, bool, lambda member: (member.name, member.value)],
    ),
    "Stat: name": (lambda m, given: m.Stat(given, [m.SUM], HOURS).name, TEXTS),
    "Stat: aggregations": (lambda m, container: fill(m, 3, aggregations=container(m)), CONTAINERS),
    "Stat: window_size": (lambda m, given: fill(m, 1, 2, window_size=given), WINDOWS),
    "Stat: max_samples": (lambda m, given: fill(m, 1, 2, 3, max_samples=given), LIMITS),
    "Stat: set": (lambda m, name: setattr(make(m), name, 1), ["name", "count", "add", "other"]),
    "Stat: copies": (lambda m, copied: copied(make(m)), COPIES),
    "add: sample": (fill, SAMPLES),
    "add: sums": (lambda m, series: fill(m, *series), SERIES),
    "Event: name": (lambda m, given: event(m, name=given).name, TEXTS),
    "Event: timestamp": (lambda m, given: event(m, timestamp=given).timestamp, TIMESTAMPS),
    "Event: data": (lambda m, given: event(m, data=given).data, MAPPINGS),
    "Event: value": (lambda m, given: event(m, data={"a": given}).data, VALUES),
    "Event: key": (lambda m, given: event(m, data={given: 1}).data, [each for each in TEXTS if each != b"c"]),
    "Event: set": (assigned, ASSIGNED),
    "Event: del": (lambda m, name: delattr(event(m), name), ["name", "timestamp", "data", "other"]),
    "handlers: raises": (raising, [ValueError(), KeyboardInterrupt(), SystemExit(1), GeneratorExit()]),
    "handlers: handle": (with_handle, [*COPIES, weak]),
    "handlers: register": (lambda m, given: m.register_event_handler(given), [1, "print", [], object()]),
    "handlers: unregister": (lambda m, given: m.unregister_event_handler(given), [1, "print", [], print]),
    "handlers: log_event": (lambda m, given: m.log_event(given), [None, 1, "n", {}, int]),
    "_WaitCounter: key": (lambda m, given: m._WaitCounter(given).guard().__enter__(), TEXTS),
}


def named(given: Any) -> str:
    """Return a value's type and text. Addresses of objects differ between both."""
    return re.sub(r" at 0x\w+", "", f"{type(given).__name__} {given!s:.40}")


@pytest.mark.parametrize(("use", "values"), ROWS.values(), ids=ROWS)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning")
def test_values_are_accepted_and_refused_as_in_torch(use: Callable[[Any, Any], Any], values: list[Any]) -> None:
    """Both accept a value with the same result, or refuse it with the same exception."""
    theirs = [(named(each), outcome(use, torch.monitor, each)) for each in values]
    assert theirs == [(named(each), outcome(use, monitel, each)) for each in values]


def life(m: Any) -> Any:
    """Fill a window of three samples, add more, and destruct the Stat."""
    with recorded(m) as events:
        stat = make(m, 3)
        seen = [(stat.add(sample), stat.count, stat.get(), len(events)) for sample in range(6)]
        assert stat.get() is not stat.get()
        del stat
        return seen, [(each.name, each.data) for each in events]


def destruction(m: Any) -> Any:
    """Destruct a Stat with samples and one without."""
    with recorded(m) as events:
        stats = [make(m), make(m)]
        stats[0].add(5)
        before = len(events)
        stats.clear()
        return before, [(each.name, each.data) for each in events]


def initialized_again(m: Any) -> Any:
    """Call the constructor a second time."""
    stat = make(m, 1)
    return stat.__init__("y", None, None), stat.name, stat.add(1), stat.get()


def subclass(m: Any) -> Any:
    """Use a subclass that overrides add() and has an attribute."""
    stat = type("Twice", (m.Stat,), {"add": lambda self, v: m.Stat.add(self, 2 * v)})("x", [m.SUM], HOURS, 1)
    stat.more = 5
    return stat.add(3), stat.get(), stat.more


def handlers(m: Any) -> Any:
    """Log to handlers that are registered once, registered twice, and unregistered."""
    calls: list[Any] = []
    logged = type("Special", (m.Event,), {})("n", MOMENT, {})

    def second(event: Any) -> None:
        calls.append(("second", event is logged, dict(event.data)))

    def first(event: Any) -> str:
        event.data = {"changed": len(calls)}
        calls.append(("first", event is logged, threading.current_thread() is threading.main_thread()))
        return "ignored"

    handles = [m.register_event_handler(callback=first), *(m.register_event_handler(second) for _ in range(2))]
    returned = m.log_event(event=logged)
    for handle in handles:
        m.unregister_event_handler(handler=handle)
        m.log_event(logged)
    return calls, returned, logged.data


def data_is_copied(m: Any) -> Any:
    given = {"a": 1}
    made = event(m, data=given)
    given["b"] = 2
    return made.data


def scalars(m: Any) -> Any:
    """Call TensorBoard's handler with a Stat's Event, another Event, and a look-alike."""
    writer = Mock()
    handler = m.TensorboardEventHandler(writer=writer)
    handler(m.Event(m.STAT_EVENT, MOMENT, {"a.sum": 1.5}))
    handler(m.Event("other", MOMENT, {"a.sum": 1.5}))
    handler(types.SimpleNamespace(name="torch.monitor.Stat", timestamp=MOMENT, data={"a": "text", "b": None}))
    return writer.mock_calls, list(vars(handler))


def refusing_writer(m: Any) -> Any:
    """Use TensorBoard's handler with a writer that raises."""
    with registered(m, m.TensorboardEventHandler(None)):
        return make(m, 1).add(1)


CALLS: dict[str, Call] = {
    "Aggregation: equality": lambda m: [4 == m.SUM, *(m.SUM == each for each in (4, None, m.Aggregation(4), m.MAX))],
    "Aggregation: in": lambda m: [4 in {m.SUM: 1}, m.Aggregation(4) in {m.SUM: 1}],
    "Aggregation: index": lambda m: list(range(9))[m.SUM],
    "Aggregation: order": lambda m: m.SUM < m.MAX,
    "Aggregation: or": lambda m: m.SUM | m.MAX,
    "Aggregation: add": lambda m: m.SUM + 1,
    "Aggregation: set name": lambda m: setattr(m.SUM, "name", "x"),
    "Aggregation: set value": lambda m: setattr(m.SUM, "value", 1),
    "Aggregation: no argument": lambda m: m.Aggregation(),
    "Aggregation: copy": lambda m: [copy.copy(m.SUM) == m.SUM, copy.deepcopy(m.SUM) == m.SUM],
    "Aggregation: pickle": lambda m: [pickle.loads(pickle.dumps(m.SUM, p)) == m.SUM for p in range(2, 6)],
    "Stat: keywords": lambda m: m.Stat(name="x", aggregations=[m.SUM], window_size=HOURS, max_samples=1).name,
    "Stat: missing": lambda m: m.Stat("x", [m.SUM]),
    "Stat: unknown": lambda m: make(m, more=1),
    "Stat: too many": lambda m: m.Stat("x", [m.SUM], HOURS, 1, 2),
    "Stat: dict": lambda m: make(m).__dict__,
    "Stat: weakref": lambda m: weak(make(m)),
    "Stat: equality": lambda m: [(stat := make(m)) == stat, stat == make(m), hash(stat) == hash(stat)],
    "Stat: subclass": subclass,
    "Stat: second init": initialized_again,
    "add: v": lambda m: make(m).add(v=1),
    "add: none": lambda m: make(m).add(),
    "add: two": lambda m: make(m).add(1, 2),
    "add: both": lambda m: make(m).add(1, v=1),
    "add: unknown": lambda m: make(m).add(value=1),
    "add: member": lambda m: fill(m, m.SUM),
    "window: life": life,
    "window: destruction": destruction,
    "window: get": lambda m: make(m).get(1),
    "Event: missing": lambda m: m.Event("n", MOMENT),
    "Event: too many": lambda m: m.Event("n", MOMENT, {}, 1),
    "Event: unknown": lambda m: event(m, more=1),
    "Event: dict": lambda m: event(m).__dict__,
    "Event: weakref": lambda m: weak(event(m)),
    "Event: data is copied": data_is_copied,
    "handlers: handlers": handlers,
    "handlers: make handle": lambda m: m.EventHandlerHandle(),
    "TensorboardEventHandler: scalars": scalars,
    "TensorboardEventHandler: writer raises": refusing_writer,
    "_WaitCounter: no key": lambda m: m._WaitCounter(),
    "_WaitCounter: two keys": lambda m: m._WaitCounter("a", "b"),
    "_WaitCounter: make guard": lambda m: m._WaitCounterTracker(),
    "_WaitCounter: guard(1)": lambda m: m._WaitCounter("a").guard(1),
    "_WaitCounter: keyword": lambda m: m._WaitCounter("a").guard().__exit__(exc_type=None),
    "_WaitCounter: exit": lambda m: m._WaitCounter("a").guard().__exit__(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_have_equal_results(call: Call) -> None:
    """Arguments, attributes, states, handlers and guards behave the same in both."""
    assert outcome(call, torch.monitor) == outcome(call, monitel)


def counted(monitor: Any, key: str) -> tuple[int, int]:
    """Return the number of waits and of waits in flight. torch reports them only to its debug server."""
    if monitor is monitel:
        return monitel.wait_counters()[key].count, monitel.wait_counters()[key].active
    c10d = torch._C._distributed_c10d
    texts: list[str] = []
    answer = {"set_content": lambda _, text, __: texts.append(text), "set_status": lambda *_: None}
    c10d._get_handler("wait_counter_values")(
        type("Request", (c10d._Request,), {})(), type("Response", (c10d._Response,), answer)()
    )
    totals = json.loads(texts[0])[key]
    return totals["total_calls"], totals["active_count"]


@pytest.mark.parametrize(
    "steps",
    [
        *("", "enter exit", "exit", "enter exit exit", "enter exit enter exit", "enter enter exit", "enter enter"),
        *("enter lose", "enter exit lose", "enter new enter", "enter new enter exit lose", "enter new enter lose"),
    ],
)
def test_wait_totals(steps: str, request: pytest.FixtureRequest) -> None:
    """After every step, the number of waits in flight equals torch's, and at the end the number of waits does."""

    def walk(m: Any) -> Any:
        key = request.node.name
        guards = [m._WaitCounter(key).guard()]
        in_flight = []
        for step in steps.split():
            if step == "new":
                guards.append(m._WaitCounter(key).guard())
            elif step == "lose":
                guards.pop()
            else:
                getattr(guards[-1], f"__{step}__")()
            in_flight.append(counted(m, key)[1])
        while guards:
            guards.pop().__exit__()
        return in_flight, counted(m, key)

    assert walk(torch.monitor) == walk(monitel)


def test_public_names_of_torch() -> None:
    """Every name of torch.monitor is in monitel too."""
    names = {name for name in dir(torch.monitor) if not name.startswith("__")} - {"TYPE_CHECKING"}
    assert set() == {name for name in names if not hasattr(monitel, name)}
    assert names > {"Stat", "Event", "log_event"}
    assert torch.monitor.STAT_EVENT == monitel.STAT_EVENT
