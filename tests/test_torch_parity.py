"""The same calls to torch.monitor and to monitel: the same results, but for the differences that design.md lists."""

from __future__ import annotations

import copy
import datetime as dt
import json
import math
import pickle
import threading
import time
import types
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, deque
from contextlib import contextmanager
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[Any], Any]

torch: Any = pytest.importorskip("torch", reason="compares with torch.monitor: torch is not installed")
np: Any = pytest.importorskip("numpy", reason="compares NumPy values too: numpy is not installed")

pytestmark = pytest.mark.torch

HOURS = dt.timedelta(hours=100)  # the windows of both are on the real clock: none of these ends
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive


def plain(value: Any) -> Any:
    """Make what a call gave comparable across the two: 1, 1.0 and True apart, NaN equal to itself."""
    if type(value).__name__ == "Aggregation":
        return f"Aggregation.{value.name}"
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if isinstance(value, type) else f"{type(value).__name__} {value!r}"


def outcome(call: Call, monitor: Any) -> Any:
    """Give what a call comes to: its result, or the type of its exception."""
    try:
        return plain(call(monitor))
    except Exception as error:
        return type(error)


@contextmanager
def recorded(monitor: Any) -> Iterator[list[Any]]:
    """Collect the events; torch crashes at exit if a handler stays registered."""
    events: list[Any] = []
    handle = monitor.register_event_handler(events.append)
    try:
        yield events
    finally:
        monitor.unregister_event_handler(handle)


def five(m: Any) -> list[Any]:
    """All aggregations that torch reports."""
    return [m.MEAN, m.COUNT, m.SUM, m.MAX, m.MIN]


def make(m: Any, max_samples: Any = 2**63 - 1, **changes: Any) -> Any:
    """Make a Stat."""
    given = {"name": "x", "aggregations": five(m), "window_size": HOURS, "max_samples": max_samples}
    return m.Stat(**{**given, **changes})


def fill(m: Any, *samples: Any, **changes: Any) -> Any:
    """Make a Stat that the samples fill; give what it and its event say."""
    with recorded(m) as events:
        stat = make(m, **{"max_samples": len(samples), **changes})
        for sample in samples:
            assert stat.add(sample) is None
        return stat.name, stat.get(), stat.count, [(each.name, each.data) for each in events]


def event(m: Any, **changes: Any) -> Any:
    """Make an Event."""
    return m.Event(**{"name": "n", "timestamp": MOMENT, "data": {"a": 1}, **changes})


def special(base: Any, *arguments: Any, **methods: Any) -> Any:
    """Make an object of a subclass whose ``__method__`` returns this, or raises it if it is an exception type."""

    def method(result: Any) -> Callable[[Any], Any]:
        def call(_self: object) -> Any:
            if isinstance(result, type):
                raise result
            return result

        return call

    namespace = {f"__{name}__": method(result) for name, result in methods.items()}
    return type(f"Special {base.__name__} {methods}", (base,), namespace)(*arguments)


Level = IntEnum("Level", {"HIGH": 3})
Sized = type("Sized", (), {"__len__": lambda _: 1, "__getitem__": lambda self, index: [self.member][index]})
Table = type("Table", (), {"items": lambda _: [("a", 1)], "__getitem__": lambda *_: 1})  # a pandas.Series, say


def sized(m: Any) -> Any:
    """Make an object with a length and items by number."""
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
    *(lambda _: "SUM", lambda _: b"", lambda _: None, lambda m: m.Aggregation, lambda _: [4], lambda _: ["SUM"]),
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
    """Log to a handler that raises, and log again without it."""

    def handler(_event: Any) -> None:
        raise error

    heard: list[str] = []
    handles = [m.register_event_handler(lambda event: heard.append(event.name)), m.register_event_handler(handler)]
    with pytest.raises(type(error)) as caught:
        m.log_event(event(m))
    m.unregister_event_handler(handles.pop())
    m.log_event(event(m))
    m.unregister_event_handler(handles.pop())
    return heard, caught.value is error


def assigned(m: Any, given: tuple[str, Any]) -> Any:
    """Assign an attribute of an Event, and read it."""
    made = event(m)
    setattr(made, *given)
    return getattr(made, given[0])


def with_handle(m: Any, use: Callable[[Any], Any]) -> Any:
    """Use a registered handler's handle."""
    handle = m.register_event_handler(print)
    try:
        return use(handle)
    finally:
        m.unregister_event_handler(handle)


def weak(made: Any) -> bool:
    """Say whether there is a weak reference to it."""
    return weakref.ref(made)() is made


ASSIGNED = [
    *(("name", b"x"), ("name", 1), ("timestamp", dt.date(2026, 1, 2)), ("timestamp", 1), ("other", 1)),
    *(("data", {b"b": Level.HIGH}), ("data", None), ("data", {"b": None})),
]
COPIES = [copy.copy, copy.deepcopy, pickle.dumps]

#: Reference row: what is called with each value, the values.
ROWS: dict[str, tuple[Callable[[Any, Any], Any], list[Any]]] = {
    "1.1 Aggregation": (
        lambda m, given: [m.Aggregation(given), m.Aggregation(value=given)],
        [0, 2, 3, 4, 5, 6, False, np.int64(4), np.array(4), Decimal(4), "SUM", b"4", None, [4], 4.5],
    ),
    "1.1 members": (
        lambda m, read: [(name, read(getattr(m, name))) for name in (each.name for each in monitel.aggregation.TORCHS)],
        [int, float, str, repr, format, bool, lambda member: (member.name, member.value)],
    ),
    "1.2 name": (lambda m, given: m.Stat(given, [m.SUM], HOURS).name, TEXTS),
    "1.2 aggregations": (lambda m, container: fill(m, 3, aggregations=container(m)), CONTAINERS),
    "1.2 window_size": (lambda m, given: fill(m, 1, 2, window_size=given), WINDOWS),
    "1.2 max_samples": (lambda m, given: fill(m, 1, 2, 3, max_samples=given), LIMITS),
    "1.2 set": (lambda m, name: setattr(make(m), name, 1), ["name", "count", "add", "other"]),
    "1.2 copies": (lambda m, copied: copied(make(m)), COPIES),
    "1.3 add": (fill, SAMPLES),
    "1.3 sums": (lambda m, series: fill(m, *series), SERIES),
    "1.5 name": (lambda m, given: event(m, name=given).name, TEXTS),
    "1.5 timestamp": (lambda m, given: event(m, timestamp=given).timestamp, TIMESTAMPS),
    "1.5 data": (lambda m, given: event(m, data=given).data, MAPPINGS),
    "1.5 value": (lambda m, given: event(m, data={"a": given}).data, VALUES),
    "1.5 key": (lambda m, given: event(m, data={given: 1}).data, [each for each in TEXTS if each != b"c"]),
    "1.5 set": (assigned, ASSIGNED),
    "1.5 del": (lambda m, name: delattr(event(m), name), ["name", "timestamp", "data", "other"]),
    "1.6 raises": (raising, [ValueError(), KeyboardInterrupt(), SystemExit(1), GeneratorExit()]),
    "1.6 handle": (with_handle, [*COPIES, weak]),
    "1.6 register": (lambda m, given: m.register_event_handler(given), [1, "print", [], object()]),
    "1.6 unregister": (lambda m, given: m.unregister_event_handler(given), [1, "print", [], print]),
    "1.6 log_event": (lambda m, given: m.log_event(given), [None, 1, "n", {}, int]),
    "1.8 key": (lambda m, given: m._WaitCounter(given).guard().__enter__(), TEXTS),
}


@pytest.mark.parametrize(
    ("use", "given"),
    [
        pytest.param(use, given, id=ascii(f"{row} {type(given).__name__} {given!s:.20}")[1:-1])
        for row, (use, values) in ROWS.items()
        for given in values
    ],
)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning")
def test_accepted_and_refused_values(use: Callable[[Any, Any], Any], given: Any) -> None:
    """Every value of a row of the reference is taken as the same by both, or refused by the same exception."""
    assert outcome(lambda m: use(m, given), torch.monitor) == outcome(lambda m: use(m, given), monitel)


def life(m: Any) -> Any:
    """Follow a window of three, and the samples beyond it, to the destruction of its Stat."""
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


def refused_samples(m: Any) -> Any:
    """Find what is refused not counted."""
    stat = make(m)
    for sample in ("1", None, 10**400, special(object, float=ValueError)):
        with pytest.raises(TypeError):
            stat.add(sample)
    return stat.count, stat.add(1), stat.count


def initialised_again(m: Any) -> Any:
    """Call the constructor a second time."""
    stat = make(m, 1)
    return stat.__init__("y", None, None), stat.name, stat.add(1), stat.get()


def subclass(m: Any) -> Any:
    """Use a subclass with an add() and an attribute of its own."""
    stat = type("Twice", (m.Stat,), {"add": lambda self, v: m.Stat.add(self, 2 * v)})("x", [m.SUM], HOURS, 1)
    stat.more = 5
    return stat.add(3), stat.get(), stat.more


def handlers(m: Any) -> Any:
    """Log to handlers that come, come twice, and go."""
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
    """Change what an Event was made of."""
    given = {"a": 1}
    made = event(m, data=given)
    given["b"] = 2
    return made.data


def scalars(m: Any) -> Any:
    """Give TensorBoard's handler a Stat's Event, another Event, and what looks like one."""
    writer = types.SimpleNamespace(calls=[])
    writer.add_scalar = lambda *args, **kwargs: writer.calls.append((args, kwargs))
    handler = m.TensorboardEventHandler(writer=writer)
    handler(m.Event(m.STAT_EVENT, MOMENT, {"a.sum": 1.5}))
    handler(m.Event("other", MOMENT, {"a.sum": 1.5}))
    handler(types.SimpleNamespace(name="torch.monitor.Stat", timestamp=MOMENT, data={"a": "text", "b": None}))
    return writer.calls, list(vars(handler))


def refusing_writer(m: Any) -> Any:
    """Give TensorBoard's handler a writer that raises."""
    handle = m.register_event_handler(m.TensorboardEventHandler(None))
    try:
        return make(m, 1).add(1)
    finally:
        m.unregister_event_handler(handle)


CALLS: dict[str, Call] = {
    "1.1 equality": lambda m: [m.SUM == 4, 4 == m.SUM, m.SUM is None, m.SUM == m.Aggregation(4), m.SUM == m.MAX],
    "1.1 in": lambda m: [4 in {m.SUM: 1}, m.Aggregation(4) in {m.SUM: 1}],
    "1.1 index": lambda m: list(range(9))[m.SUM],
    "1.1 order": lambda m: m.SUM < m.MAX,
    "1.1 or": lambda m: m.SUM | m.MAX,
    "1.1 add": lambda m: m.SUM + 1,
    "1.1 set name": lambda m: setattr(m.SUM, "name", "x"),
    "1.1 set value": lambda m: setattr(m.SUM, "value", 1),
    "1.1 no argument": lambda m: m.Aggregation(),
    "1.1 copy": lambda m: [copy.copy(m.SUM) == m.SUM, copy.deepcopy(m.SUM) == m.SUM],
    "1.1 pickle": lambda m: [pickle.loads(pickle.dumps(m.SUM, p)) == m.SUM for p in range(2, 6)],
    "1.2 keywords": lambda m: m.Stat(name="x", aggregations=[m.SUM], window_size=HOURS, max_samples=1).name,
    "1.2 missing": lambda m: m.Stat("x", [m.SUM]),
    "1.2 unknown": lambda m: make(m, more=1),
    "1.2 too many": lambda m: m.Stat("x", [m.SUM], HOURS, 1, 2),
    "1.2 dict": lambda m: make(m).__dict__,
    "1.2 weakref": lambda m: weak(make(m)),
    "1.2 equality": lambda m: [(stat := make(m)) == stat, stat == make(m), hash(stat) == hash(stat)],
    "1.2 subclass": subclass,
    "1.2 second init": initialised_again,
    "1.3 v": lambda m: make(m).add(v=1),
    "1.3 none": lambda m: make(m).add(),
    "1.3 two": lambda m: make(m).add(1, 2),
    "1.3 both": lambda m: make(m).add(1, v=1),
    "1.3 unknown": lambda m: make(m).add(value=1),
    "1.3 member": lambda m: fill(m, m.SUM),
    "1.3 refused": refused_samples,
    "1.4 life": life,
    "1.4 destruction": destruction,
    "1.4 get": lambda m: make(m).get(1),
    "1.5 missing": lambda m: m.Event("n", MOMENT),
    "1.5 too many": lambda m: m.Event("n", MOMENT, {}, 1),
    "1.5 unknown": lambda m: event(m, more=1),
    "1.5 dict": lambda m: event(m).__dict__,
    "1.5 weakref": lambda m: weak(event(m)),
    "1.5 data is copied": data_is_copied,
    "1.6 handlers": handlers,
    "1.6 make handle": lambda m: m.EventHandlerHandle(),
    "1.7 scalars": scalars,
    "1.7 writer raises": refusing_writer,
    "1.8 no key": lambda m: m._WaitCounter(),
    "1.8 two keys": lambda m: m._WaitCounter("a", "b"),
    "1.8 make guard": lambda m: m._WaitCounterTracker(),
    "1.8 guard(1)": lambda m: m._WaitCounter("a").guard(1),
    "1.8 keyword": lambda m: m._WaitCounter("a").guard().__exit__(exc_type=None),
    "1.8 exit": lambda m: m._WaitCounter("a").guard().__exit__(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls(call: Call) -> None:
    """What a row of the reference says of arguments, attributes, states, handlers and guards is so in both."""
    assert outcome(call, torch.monitor) == outcome(call, monitel)


def heard_after_a_failure(m: Any) -> Any:
    """Count who hears of an event whose first handler fails."""
    heard: list[Any] = []
    first, second = m.register_event_handler(lambda _: 1 / 0), m.register_event_handler(heard.append)
    with pytest.raises(ZeroDivisionError):
        m.log_event(event(m))
    m.unregister_event_handler(second)
    m.unregister_event_handler(first)
    return len(heard)


def failure_at_fill(m: Any) -> Any:
    """Fill a window whose handler fails, and add on."""
    heard: list[Any] = []

    def handler(event: Any) -> None:
        heard.append(event)
        raise ZeroDivisionError

    handle = m.register_event_handler(handler)
    stat = make(m, 1)
    outcomes = [outcome(lambda _: stat.add(1), m), outcome(lambda _: stat.add(2), m)]
    m.unregister_event_handler(handle)
    return outcomes, len(heard), stat.count, stat.get()[m.SUM]


def registered_none(m: Any) -> Any:
    """Register None, and log."""
    handle = m.register_event_handler(None)
    try:
        return [outcome(lambda m: m.log_event(event(m)), m)]
    finally:
        m.unregister_event_handler(handle)


def cause(m: Any) -> Any:
    """Find why a sample was refused."""
    with pytest.raises(TypeError) as caught:
        make(m).add(special(object, float=ValueError))
    return type(caught.value.__cause__)


def interrupt(m: Any) -> Any:
    """Interrupt the conversion of a sample."""
    try:
        make(m).add(special(object, float=KeyboardInterrupt))
    except BaseException as error:
        return type(error)


def stays_in_data(m: Any) -> Any:
    """Put a value into an Event's data."""
    made = event(m)
    made.data["b"] = 2
    return made.data


def window_of(size: Any) -> Call:
    """Fill a window of this size."""
    return lambda m: fill(m, 1, window_size=size)[2]


def limit_of(max_samples: Any) -> Call:
    """Fill a window of so many samples."""
    return lambda m: fill(m, 1, max_samples=max_samples)[2]


def copies(m: Any) -> Any:
    """See whether two handlers get one object when a Stat logs."""
    with recorded(m) as one, recorded(m) as other:
        make(m, 1).add(1)
    return one[0] is other[0]


CRASH = "takes the process down: not run"
VALUE_OF = [{"Aggregation.VALUE": "float 2.0"}, [["str 'torch.monitor.Stat'", {"str 'x.value'": "float 2.0"}]]]
EMPTY = [{}, [["str 'torch.monitor.Stat'", {}]]]
EAST = MOMENT.replace(tzinfo=dt.timezone(dt.timedelta(hours=5)))
FOLD = MOMENT.replace(fold=1)

#: Row of design.md, section 3: call, what torch does, what monitel does.
DIFFERENCES: dict[str, tuple[Call, Any, Any]] = {
    "Aggregation.VALUE": (lambda m: fill(m, 1, 2, aggregations=[m.VALUE])[1::2], EMPTY, VALUE_OF),
    "Aggregation(99)": (lambda m: m.Aggregation(99).name, "str '???'", ValueError),
    "Aggregation(True)": (lambda m: m.Aggregation(True), "Aggregation.???", ValueError),
    "Aggregation(4.0), which equals 4": (lambda m: m.Aggregation(4.0), TypeError, "Aggregation.SUM"),
    "Aggregation is an Enum: iter": (lambda m: len(list(m.Aggregation)), TypeError, "int 8"),
    "Aggregation is an Enum: len": (lambda m: len(m.Aggregation), TypeError, "int 8"),
    "Aggregation is an Enum: by name": (lambda m: m.Aggregation["SUM"], TypeError, "Aggregation.SUM"),
    "Aggregation is an Enum: identity": (lambda m: m.Aggregation(4) is m.SUM, "bool False", "bool True"),
    "Aggregation: pickle 0": (lambda m: pickle.loads(pickle.dumps(m.SUM, 0)), CRASH, "Aggregation.SUM"),
    **{f"window_size {size}": (window_of(size), CRASH, ValueError) for size in (0.0, 0.0001, HOURS * 0)},
    **{f"window_size {size}": (window_of(size), "int 0", ValueError) for size in (math.nan, -3e5, -HOURS)},
    **{f"max_samples {limit}": (limit_of(limit), "int 0", ValueError) for limit in (0, -1, -5, -(2**63), False)},
    "max_samples: discarded": (lambda m: [make(m, 1).discarded], AttributeError, ["int 0"]),
    "a handler raises": (heard_after_a_failure, "int 0", "int 1"),
    "a handler fails at fill": (
        failure_at_fill,
        [[ZeroDivisionError, ZeroDivisionError], "int 2", "int 0", "float 2.0"],
        [[ZeroDivisionError, "str 'NoneType None'"], "int 1", "int 0", "float 1.0"],
    ),
    "unregister None": (lambda m: m.unregister_event_handler(None), CRASH, TypeError),
    "register None": (registered_none, [RuntimeError], TypeError),
    "handle": (lambda m: with_handle(m, lambda handle: hasattr(handle, "__enter__")), "bool False", "bool True"),
    "Stat.__new__(Stat).add(1)": (lambda m: m.Stat.__new__(m.Stat).add(1), CRASH, RuntimeError),
    "Stat subclass without super().__init__()": (
        lambda m: type("Bare", (m.Stat,), {"__init__": lambda _: None})().add(1),
        TypeError,  # when it is made
        RuntimeError,
    ),
    "__float__ that raises": (cause, types.NoneType, ValueError),
    "__float__: BaseException passes": (interrupt, TypeError, KeyboardInterrupt),
    "bool": (lambda m: event(m, data={"a": True}).data["a"], "float 1.0", "bool True"),
    "np.bool_": (lambda m: event(m, data={"a": np.bool_(False)}).data["a"], "float 0.0", "bool False"),
    "aware timestamp": (lambda m: event(m, timestamp=EAST).timestamp, plain(MOMENT), plain(EAST)),
    "fold": (lambda m: event(m, timestamp=FOLD).timestamp.fold, "int 0", "int 1"),
    "event.data[k] = v": (stays_in_data, {"str 'a'": "int 1"}, {"str 'a'": "int 1", "str 'b'": "int 2"}),
    "Event ==": (lambda m: event(m) == event(m), "bool False", "bool True"),
    "Event hash": (lambda m: len({*map(hash, [event(m), event(m, data={})])}), "int 2", "int 1"),
    "Event repr": (lambda m: "'n'" in repr(event(m)), "bool False", "bool True"),
    "Event copy": (lambda m: copy.copy(event(m)).name, TypeError, "str 'n'"),
    "Event pickle": (lambda m: pickle.loads(pickle.dumps(event(m))).name, TypeError, "str 'n'"),
    "Event pickle 0": (lambda m: pickle.loads(pickle.dumps(event(m), 0)).name, CRASH, "str 'n'"),
    "_WaitCounter": (lambda m: m._WaitCounter("a").key, AttributeError, "str 'a'"),
    # in no row: the value range of times, text that is no UTF-8, one Event for all handlers of a Stat
    "timestamp in 3000": (lambda m: event(m, timestamp=MOMENT.replace(3000)).timestamp.year, "int 1830", "int 3000"),
    "value b'\\xff'": (lambda m: event(m, data={"a": b"\xff"}).data, TypeError, UnicodeDecodeError),
    "value '\\ud800'": (lambda m: event(m, data={"a": "\ud800"}), RuntimeError, TypeError),
    "Stat's Event is shared": (copies, "bool False", "bool True"),
}


@pytest.mark.parametrize(("call", "torchs", "ours"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_differences(call: Call, torchs: Any, ours: Any) -> None:
    """Where torch crashes or contradicts its documentation, monitel does what the row of design.md says."""
    if torchs is not CRASH:
        assert torchs == outcome(call, torch.monitor)
    assert ours == outcome(call, monitel)


def counted(monitor: Any, key: str) -> tuple[int, int]:
    """Read how many waits there were, and how many are in flight; torch shows it to its debug server only."""
    if monitor is monitel:
        return monitel.wait_counters()[key].count, monitel.wait_counters()[key].active
    c10d = pytest.importorskip("torch._C._distributed_c10d", reason="torch is built without distributed")
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
    """1.8: after every step as many waits are in flight as in torch, and in the end as many were counted."""

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


# ---- torch's own tests, in our words, over both


@pytest.fixture(params=[torch.monitor, monitel], ids=["torch", "monitel"])
def monitor(request: pytest.FixtureRequest) -> Any:
    """Give torch.monitor, then monitel."""
    return request.param


def test_upstream_interval_stat(monitor: Any) -> None:
    """test_monitor.py, test_counters.cpp Stat: windows of 1 ms end while samples come, and are logged."""
    with recorded(monitor) as events:
        stat = monitor.Stat("asdf", (monitor.SUM, monitor.COUNT), dt.timedelta(milliseconds=1))
        assert stat.name == "asdf"
        deadline = time.monotonic() + 60
        while not events and time.monotonic() < deadline:
            stat.add(2)
    assert {"asdf.sum", "asdf.count"} == set(events[0].data)
    assert events[0].data["asdf.sum"] == 2 * events[0].data["asdf.count"]


def test_upstream_fixed_count_stat(monitor: Any) -> None:
    """test_monitor.py, test_counters.cpp: 2 of 3 are open, the third closes, a fourth is discarded."""
    stat = monitor.Stat("asdf", (monitor.SUM, monitor.COUNT), HOURS, 3)
    zeros, full = {monitor.SUM: 0.0, monitor.COUNT: 0.0}, {monitor.SUM: 6.0, monitor.COUNT: 3.0}
    seen = [(stat.add(sample), stat.count, stat.get())[1:] for sample in (1, 2, 3, 4)]
    assert [(1, zeros), (2, zeros), (0, full), (0, full)] == seen


@pytest.mark.parametrize(
    ("aggregation", "samples", "expected"),
    [("SUM", [5, 6], 11), ("MEAN", [0, 10], 5), ("COUNT", [0, 10], 2), ("MIN", [5, -5, 0], -5), ("MAX", [5, 9, 0], 9)],
)
def test_upstream_counters(monitor: Any, aggregation: str, samples: list[int], expected: float) -> None:
    """test_counters.cpp: each aggregation is 0 until the window is full, in windows of up to ten years."""
    member = getattr(monitor, aggregation)
    for window_size in (dt.timedelta(hours=100), dt.timedelta(days=3650)):
        stat = monitor.Stat("a", [member], window_size, len(samples))
        assert {member: 0.0} == stat.get()
        for sample in samples:
            stat.add(sample)
        assert {member: expected} == stat.get()


def test_upstream_log_event(monitor: Any) -> None:
    """test_monitor.py: an Event of str, float and int by keywords; logged to nobody."""
    data = {"str": "a string", "float": 1234.0, "int": 1234}
    made = monitor.Event(name="torch.monitor.TestEvent", timestamp=dt.datetime.now(), data=data)  # noqa: DTZ005  naive
    assert ("torch.monitor.TestEvent", data) == (made.name, made.data)
    assert monitor.log_event(made) is None


def test_upstream_event_handler(monitor: Any) -> None:
    """test_monitor.py, test_events.cpp: a handler is called once an event, with it, until unregistered."""
    made = event(monitor)
    with recorded(monitor) as events:
        monitor.log_event(made)
        monitor.log_event(made)
    monitor.log_event(made)
    assert [made, made] == events


def test_upstream_tensorboard(monitor: Any) -> None:
    """test_monitor.py: of ten samples a window of five is one scalar for each aggregation."""
    scalars: dict[str, list[float]] = {}
    writer = types.SimpleNamespace(add_scalar=lambda tag, value, **_: scalars.setdefault(tag, []).append(value))
    handle = monitor.register_event_handler(monitor.TensorboardEventHandler(writer))
    stat = monitor.Stat("asdf", [monitor.SUM, monitor.COUNT], HOURS, 5)
    for sample in range(10):
        stat.add(sample)
    monitor.unregister_event_handler(handle)
    assert {"asdf.sum": [10.0], "asdf.count": [5.0]} == scalars


def test_upstream_wait_counter(monitor: Any, request: pytest.FixtureRequest, run_threads: Any) -> None:
    """test_monitor.py, WaitCounter_test.cpp: a handle five times, then ten threads of a hundred guards."""
    counter = monitor._WaitCounter(request.node.name)

    def wait(times: int) -> None:
        for _ in range(times):
            with counter.guard():
                pass

    wait(5)
    assert (5, 0) == counted(monitor, request.node.name)
    run_threads(*[lambda: wait(100)] * 10)
    assert (1005, 0) == counted(monitor, request.node.name)


def test_public_names_of_torch() -> None:
    """Every name of torch.monitor is in monitel too."""
    names = {name for name in dir(torch.monitor) if not name.startswith("__")} - {"TYPE_CHECKING"}
    assert set() == {name for name in names if not hasattr(monitel, name)}
    assert names > {"Stat", "Event", "log_event"}
    assert torch.monitor.STAT_EVENT == monitel.STAT_EVENT
