"""The same calls to torch.monitor and to monitel: the same results, but for what design.md lists."""

from __future__ import annotations

import copy
import datetime as dt
import gc
import json
import math
import pickle
import time
import types
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, deque
from contextlib import contextmanager
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[Any], Any]

torch: Any = pytest.importorskip("torch", reason="compares with torch.monitor: torch is not installed")
np: Any = pytest.importorskip("numpy", reason="compares NumPy values too: numpy is not installed")

pytestmark = pytest.mark.torch

HOURS = dt.timedelta(hours=100)  # the windows of both run on the real clock: none of them ends
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive
UTC = dt.timezone.utc


def plain(value: Any) -> Any:
    """Make what a call gave comparable across the two, with 1, 1.0 and True apart and NaN equal to itself."""
    if type(value).__name__ == "Aggregation":
        return f"Aggregation.{value.name}"
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return f"{type(value).__name__} {value!r}"


def outcome(call: Call, monitor: Any) -> Any:
    """What a call comes to: its result, or the type of its exception."""
    try:
        return plain(call(monitor))
    except Exception as error:
        return type(error)


def same(call: Call) -> Any:
    """Check that a call comes to the same in both; give what."""
    torchs = outcome(call, torch.monitor)
    assert torchs == outcome(call, monitel)
    return torchs


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


def filled(m: Any, samples: list[Any], **keywords: Any) -> Any:
    """Make a Stat whose window is full of the samples; give what it then says."""
    with recorded(m) as events:
        arguments = {"name": "x", "aggregations": five(m), "window_size": HOURS, "max_samples": len(samples)}
        stat = m.Stat(**{**arguments, **keywords})
        for sample in samples:
            assert stat.add(sample) is None
        return stat.name, stat.get(), stat.count, [(event.name, event.data) for event in events]


def event(m: Any, **changes: Any) -> Any:
    """Make an Event and read it."""
    made = m.Event(**{"name": "n", "timestamp": MOMENT, "data": {}, **changes})
    return made.name, made.timestamp, made.data


class Text(str):
    """A str that is not exactly one."""

    __slots__ = ()


class Whole(int):
    """An int whose number is not what its int() and float() say."""

    def __int__(self) -> int:
        return 9

    def __float__(self) -> float:
        return 9.0


class Real(float):
    """A float whose number is not what its float() says."""

    def __float__(self) -> float:
        return 9.0


class Level(IntEnum):
    """An int with a name."""

    HIGH = 3


class Word(str, Enum):
    """A str with a name."""

    YES = "yes"


class Moment(dt.datetime):
    """A datetime of a class of its own."""


class Window(dt.timedelta):
    """A timedelta of a class of its own."""


class Sized:
    """What has a length and items by number."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Iterable(Sized):
    """What can be iterated, and has no length."""

    __len__ = __getitem__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class Table:
    """What looks like a mapping and is not registered as one (wandb.config, pandas.Series)."""

    def items(self) -> list[tuple[str, int]]:
        """Give one item."""
        return [("a", 1)]

    def __getitem__(self, key: str) -> int:
        return 1


def number(**methods: Any) -> Any:
    """Make an object that stands for a number by these methods: exceptions are raised, others returned."""

    def method(result: Any) -> Any:
        def call(_self: object) -> Any:
            if isinstance(result, type):
                raise result
            return result

        return call

    return type("Number", (), {f"__{name}__": method(result) for name, result in methods.items()})()


TEXTS = ["a", "", "\0é€😀", b"b", bytearray(b"c"), b"\xff", "\ud800", Text("s"), Word.YES, np.str_("n"), np.bytes_(b"n")]
NO_TEXTS = [None, 1, 1.0, True, ["a"], memoryview(b"a"), object()]

SAMPLES = [
    *(0, 1, -7, True, 2**53 + 1, 2**1023, 10**400, -(10**400), Whole(3), Level.HIGH),
    *(1.5, -0.0, math.inf, -math.inf, math.nan, 5e-324, Real(2.5)),
    *(Decimal("1.5"), Decimal("NaN"), Decimal("sNaN"), Fraction(1, 3)),
    *(np.float64(1.5), np.float32(0.1), np.float16(1.5), np.longdouble(1.5), np.int8(-3), np.uint64(2**64 - 1)),
    *(np.bool_(True), np.array(1.5), np.array(3), np.array([1.0, 2.0]), np.array("1"), np.array("x")),
    *(np.str_("1"), np.bytes_(b"1"), np.datetime64(1, "s"), np.timedelta64(1, "s")),
    *("1", b"1", None, [1], (), {}, 1j, object(), float, ..., dt.timedelta(1), MOMENT),
    *(number(float=2.0), number(index=2), number(float=2.0, index=3), number(int=2), number(index=10**400)),
    *(number(float=Real(7)), number(float="x"), number(index="x"), number(float=ValueError), number(index=ValueError)),
]
TENSORS = {
    "0-d": lambda: torch.tensor(1.5),
    "1 element": lambda: torch.tensor([[3]]),
    "bool": lambda: torch.tensor(True),
    "bfloat16": lambda: torch.tensor([1.5], dtype=torch.bfloat16),
    "parameter": lambda: torch.nn.Parameter(torch.ones(1)),
    "requires_grad": lambda: torch.tensor(1.5, requires_grad=True),
    "2 elements": lambda: torch.ones(2),
    "empty": lambda: torch.ones(0),
    "complex": lambda: torch.tensor(1j),
    "meta": lambda: torch.tensor(1.0, device="meta"),
}
AGGREGATIONS: dict[str, Call] = {
    "list": lambda m: [m.SUM, m.MAX],
    "tuple": lambda m: (m.SUM, m.MAX),
    "set": lambda m: {m.SUM},
    "frozenset": lambda m: frozenset({m.SUM}),
    "generator": lambda m: (each for each in [m.SUM]),
    "map": lambda m: map(lambda each: each, [m.SUM]),
    "keys": lambda m: {m.SUM: 1}.keys(),
    "values": lambda m: {1: m.SUM}.values(),
    "deque": lambda m: deque([m.SUM]),
    "object array": lambda m: np.array([m.SUM], dtype=object),
    "sized": lambda m: Sized(m.SUM),
    "UserList": lambda m: UserList([m.SUM]),
    "empty": lambda _: [],
    "duplicates": lambda m: [m.SUM, m.MAX, m.SUM],
    "from number": lambda m: [m.Aggregation(4)],
    "raising generator": lambda _: (1 / 0 for _ in [1]),
    "items": lambda m: {1: m.SUM}.items(),
    "dict": lambda m: {m.SUM: 1},
    "empty dict": lambda _: {},
    "UserDict": lambda m: UserDict({0: m.SUM}),
    "iterator": lambda m: iter([m.SUM]),
    "chain": lambda m: chain([m.SUM]),
    "filter": lambda m: filter(None, [m.SUM]),
    "iterable": lambda m: Iterable(m.SUM),
    "str": lambda _: "SUM",
    "bytes": lambda _: b"",
    "None": lambda _: None,
    "member": lambda m: m.SUM,
    "class": lambda m: m.Aggregation,
    "numbers": lambda _: [4],
    "names": lambda _: ["SUM"],
    "one wrong": lambda m: [m.SUM, None],
}
WINDOWS = [
    *(HOURS, Window(hours=100), dt.timedelta.max, 3e5, Real(3e5), np.float64(3e5), math.inf, 1e300),
    *(360_000, True, "60", None, Decimal(60), Fraction(60), 1j, dt.time(1), MOMENT, object()),
    *(np.float32(60), np.int64(60), np.timedelta64(60, "s"), np.array(60.0)),
]
MAX_SAMPLES = [
    *(1, 2, True, Level.HIGH, 2**63 - 1, 2**63, -(2**63) - 1, 2.0, Real(2), math.inf, "2", b"2", None, 1j, [2]),
    *(Decimal("2.7"), Fraction(5, 2), dt.timedelta(2), object()),
    *(np.int64(2), np.int8(2), np.bool_(True), np.float64(2), np.float32(2), np.array(2), np.array([1, 2])),
    *(np.str_("2"), np.bytes_(b"2"), np.timedelta64(2, "s")),
    *(number(index=2), number(int=2), number(index=1, int=2), number(float=2.0), number(trunc=2)),
    *(number(int=ValueError), number(index=ValueError), number(int="2")),
]
VALUES = [
    *("s", "", "\0", Text("s"), Word.YES, b"b", np.str_("n"), np.bytes_(b"n")),
    *(0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**40, Level.HIGH, Whole(5)),
    *(1.5, -0.0, math.inf, math.nan, Real(1.5)),
    *(np.float64(1.5), np.float32(0.1), np.float16(1.5), np.longdouble(1.5)),
    *(np.int64(3), np.int8(-3), np.uint64(3), np.uint64(2**64 - 1)),
    *(None, [1], {}, (1,), 1j, bytearray(b"b"), memoryview(b"b"), object(), int, ..., MOMENT, dt.timedelta(1)),
    *(Decimal(1), Fraction(1), number(float=2.0), number(index=2), torch.tensor(1.0), torch.tensor(1)),
    *(np.array(1.5), np.array(1), np.datetime64(1, "s"), np.datetime64(1, "ns"), np.timedelta64(1, "ns")),
    np.void(b"12"),
]
TIMESTAMPS = [
    *(MOMENT, MOMENT.replace(1700), MOMENT.replace(1969), MOMENT.replace(2262, 1), Moment(2026, 1, 2)),
    *(dt.date(2026, 1, 2), dt.time(1, 2, 3)),
    *(None, 0, 1.5, "2026-01-02", dt.timedelta(1), np.datetime64("2026-01-02"), object()),
]
DATA = {
    **{kind.__name__: kind({"b": 1, "a": 2}) for kind in (dict, OrderedDict, ChainMap, UserDict, Counter)},
    "MappingProxyType": types.MappingProxyType({"a": 1}),
    "table": Table(),
    **{str(data): data for data in (None, [("a", 1)], (), set(), "", 0)},
}


def each(name: str, values: Any) -> Any:
    """Parametrise over values, with ids that can be read."""
    if isinstance(values, dict):
        return pytest.mark.parametrize(name, values.values(), ids=values)
    return pytest.mark.parametrize(name, values, ids=[f"{type(value).__name__} {value!r:.25}" for value in values])


# ---- 1.1 Aggregation


@each("value", [0, 2, 3, 4, 5, 6, False, np.int64(4), Decimal(4), "SUM", b"4", None, [4], 4.5])
def test_aggregation_from_a_number(value: Any) -> None:
    """1.1: what makes an Aggregation, and what is refused."""
    same(lambda m: m.Aggregation(value))
    same(lambda m: m.Aggregation(value=value))


@each("read", {read.__name__: read for read in (int, float, str, repr, format, bool, lambda a: (a.name, a.value))})
def test_aggregation_members(read: Callable[[Any], Any]) -> None:
    """1.1: members, their order, numbers and texts."""
    same(lambda m: [plain(read(member)) for member in m.Aggregation.__members__.values()])
    same(lambda m: [plain(read(getattr(m, name))) for name in m.Aggregation.__members__])


@each(
    "call",
    {
        "equals number": lambda m: [m.SUM == 4, 4 == m.SUM, m.SUM is None, m.SUM == m.Aggregation(4), m.SUM == m.MAX],
        "in": lambda m: [4 in {m.SUM: 1}, m.Aggregation(4) in {m.SUM: 1}],
        "index": lambda m: list(range(9))[m.SUM],
        "order": lambda m: m.SUM < m.MAX,
        "or": lambda m: m.SUM | m.MAX,
        "add": lambda m: m.SUM + 1,
        "set name": lambda m: setattr(m.SUM, "name", "x"),
        "set value": lambda m: setattr(m.SUM, "value", 1),
        "no argument": lambda m: m.Aggregation(),
        "deepcopy": lambda m: copy.deepcopy(m.SUM) == m.SUM,
        "pickle": lambda m: [pickle.loads(pickle.dumps(m.SUM, p)) == m.SUM for p in range(2, 6)],
    },
)
def test_aggregation(call: Call) -> None:
    """1.1: equality, hashing, order, copies."""
    same(call)
