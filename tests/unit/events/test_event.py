"""Event: arguments, attributes, comparison, copies and errors."""

from __future__ import annotations

import copy
import datetime as dt
import math
import pickle
import sys
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import monitel
from monitel import Event, Severity

if TYPE_CHECKING:
    from collections.abc import Callable

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive
EAST = dt.timezone(dt.timedelta(hours=5))


class Text(str):
    """A subclass of str."""

    __slots__ = ()


class Whole(int):
    """A subclass of int with another __int__."""

    def __int__(self) -> int:
        return 9


class Real(float):
    """A subclass of float with another __float__."""

    def __float__(self) -> float:
        return 9.0


class Moment(dt.datetime):
    """A subclass of datetime, such as pandas.Timestamp."""


class Level(IntEnum):
    """An int with a name."""

    HIGH = 3


class Word(str, Enum):
    """A str with a name."""

    YES = "yes"


class Indexable:
    """An object that converts to an int but is not one."""

    def __index__(self) -> int:
        return 1

    def __float__(self) -> float:
        return 1.0


def make(**changes: Any) -> Event:
    """Make an Event with two details."""
    return Event(**{"name": "epoch", "timestamp": MOMENT, "data": {"epoch": 3, "loss": 0.25}, **changes})


def plain(value: object) -> tuple[type, str]:
    """Distinguish 1, 1.0 and True, and treat NaN as equal to NaN."""
    return type(value), repr(value)


def test_keeps_its_arguments() -> None:
    """Name, timestamp and data are kept; severity is INFO unless given by keyword."""
    event = Event("epoch", MOMENT, {"epoch": 3})
    assert ("epoch", MOMENT, {"epoch": 3}) == (event.name, event.timestamp, event.data)
    assert Severity.INFO is event.severity
    assert event.window is None
    assert event == Event(name="epoch", timestamp=MOMENT, data={"epoch": 3}, severity=Severity.INFO)


@pytest.mark.parametrize("arguments", [(), ("a",), ("a", MOMENT), ("a", MOMENT, {}, Severity.INFO)])
def test_takes_three_arguments(arguments: tuple[Any, ...]) -> None:
    """All three are required; severity is keyword-only."""
    with pytest.raises(TypeError):
        Event(*arguments)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        *((value, value) for value in ("text", "", "\0", "é€😀", 0, -1, 2**63 - 1, -(2**63))),
        *((value, value) for value in (1.5, -0.0, math.inf, math.nan)),
        (Text("text"), "text"),
        (Word.YES, "yes"),
        (b"text", "text"),
        (Whole(5), 5),
        (Level.HIGH, 3),
        (Severity.WARN, 13),
        (Real(1.5), 1.5),
    ],
)
def test_values(given: Any, kept: object) -> None:
    """A value is kept as a plain str, int or float."""
    assert plain(kept) == plain(make(data={"a": given}).data["a"])


@pytest.mark.parametrize("value", [True, False])
def test_bool_stays_bool(value: bool) -> None:
    """Row "bool in Event data": it remains a bool; in torch it becomes 1.0 or 0.0."""
    assert make(data={"a": value}).data["a"] is value


def test_numpy_values() -> None:
    """NumPy scalars become Python numbers; arrays and dates are errors."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    for given, kept in (
        (numpy.bool_(True), True),
        (numpy.int8(-3), -3),
        (numpy.uint64(2**63 - 1), 2**63 - 1),
        (numpy.float16(1.5), 1.5),
        (numpy.float32(0.1), float(numpy.float32(0.1))),
        (numpy.float64(1.5), 1.5),
        (numpy.longdouble(1.5), 1.5),
        (numpy.str_("a"), "a"),
        (numpy.bytes_(b"a"), "a"),
    ):
        assert plain(kept) == plain(make(data={"a": given}).data["a"])
    with pytest.raises(ValueError, match="64 bits"):
        make(data={"a": numpy.uint64(2**63)})
    for unit in ("s", "ns"):
        with pytest.raises(TypeError, match="'a'"):
            make(data={"a": numpy.datetime64(1, unit)})
        with pytest.raises(TypeError, match="'a'"):
            make(data={"a": numpy.timedelta64(1, unit)})
    for refused in (numpy.array(1.5), numpy.array([1]), numpy.void(b"ab")):
        with pytest.raises(TypeError, match="'a'"):
            make(data={"a": refused})


@pytest.mark.parametrize(
    "value",
    [None, [], {}, (1,), 1j, bytearray(b"a"), memoryview(b"a"), Indexable(), MOMENT, Decimal(1), monitel.SUM, int],
)
def test_values_of_other_types(value: Any) -> None:
    """A value of another type is a TypeError that names its key."""
    with pytest.raises(TypeError, match=r"'loss'.*must be a str, int, float or bool, got"):
        make(data={"loss": value})


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400])
def test_int_beyond_64_bits(value: int) -> None:
    """An int that OTLP cannot represent is a ValueError, as in torch."""
    with pytest.raises(ValueError, match=r"'a'.*64 bits"):
        make(data={"a": value})


@pytest.mark.parametrize("where", ["name", "key", "value"])
@pytest.mark.parametrize(("given", "error"), [("\ud800", TypeError), (b"\xff", UnicodeDecodeError)])
def test_text_that_utf8_cannot_hold(where: str, given: Any, error: type[Exception]) -> None:
    """A lone surrogate, or bytes that are not UTF-8, are errors."""
    with pytest.raises(error):
        make(**{"name": {"name": given}, "key": {"data": {given: 1}}, "value": {"data": {"a": given}}}[where])


@pytest.mark.parametrize("given", ["loss", Text("loss"), b"loss"])
def test_names_and_keys(given: Any) -> None:
    """Names and keys become exact str; bytes are decoded."""
    event = make(name=given, data={given: 1})
    assert [(str, "'loss'")] * 2 == [plain(event.name), *map(plain, event.data)]


@pytest.mark.parametrize("given", [None, 1, 1.0, True, ("a",)])
def test_names_and_keys_of_other_types(given: Any) -> None:
    """A name or key of another type is a TypeError."""
    with pytest.raises(TypeError, match="name must be a str"):
        make(name=given)
    with pytest.raises(TypeError, match=r"key .*must be a str"):
        make(data={given: 1})


@pytest.mark.parametrize("kind", [dict, OrderedDict, MappingProxyType, ChainMap, UserDict, Counter])
def test_mappings(kind: Callable[[dict[str, int]], Any]) -> None:
    """Every mapping is copied into a new dict, in the same order."""
    event = make(data=kind({"b": 1, "a": 2}))
    assert [("b", 1), ("a", 2)] == list(event.data.items())
    assert dict is type(event.data)


@pytest.mark.parametrize("data", [None, [("a", 1)], (), set(), "", 0, object()])
def test_data_of_another_type(data: Any) -> None:
    """Data that is not a mapping is a TypeError."""
    with pytest.raises(TypeError, match="must be a mapping"):
        make(data=data)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        *((moment, moment) for moment in (MOMENT, MOMENT.replace(1), MOMENT.replace(9999))),
        (dt.date(2026, 1, 2), MOMENT.replace(hour=0, minute=0, second=0, microsecond=0)),
        (dt.time(3, 4, 5, 678901), MOMENT.replace(1970, 1, 1)),
        (Moment(2026, 1, 2, 3, 4, 5, 678901), MOMENT),
    ],
)
def test_timestamps(given: Any, kept: dt.datetime) -> None:
    """A timestamp becomes an exact datetime; a date means midnight, a time means 1970-01-01, as in torch."""
    assert plain(kept) == plain(make(timestamp=given).timestamp)


@pytest.mark.parametrize(
    "given",
    [
        MOMENT.replace(tzinfo=EAST),
        MOMENT.replace(fold=1),
        MOMENT.replace(tzinfo=EAST, fold=1),
        Moment(2026, 1, 2, 3, 4, 5, 678901, EAST, fold=1),
        dt.time(3, 4, tzinfo=EAST),
    ],
)
def test_zone_and_fold_are_kept(given: Any) -> None:
    """Row "aware timestamp, fold": both are kept; torch drops the zone and loses the fold."""
    kept = make(timestamp=given).timestamp
    assert (given.tzinfo, given.fold) == (kept.tzinfo, kept.fold)
    assert dt.datetime is type(kept)


@pytest.mark.parametrize("given", [None, 0, 1.5, "2026-01-02", dt.timedelta(1), object()])
def test_timestamps_of_other_types(given: Any) -> None:
    """A timestamp that is neither a date nor a time is a TypeError."""
    with pytest.raises(TypeError, match="must be a datetime"):
        make(timestamp=given)


def test_numpy_date_is_no_timestamp() -> None:
    """numpy.datetime64 is a TypeError, as in torch."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    with pytest.raises(TypeError, match="must be a datetime"):
        make(timestamp=numpy.datetime64("2026-01-02"))


@pytest.mark.parametrize(
    ("attribute", "value", "kept"),
    [
        ("name", b"other", "other"),
        ("timestamp", dt.date(2026, 1, 2), MOMENT.replace(hour=0, minute=0, second=0, microsecond=0)),
        ("data", {b"a": Level.HIGH}, {"a": 3}),
        ("severity", 17, Severity.ERROR),
    ],
)
def test_assignment(attribute: str, value: object, kept: object) -> None:
    """Assigned values are checked and converted as by the constructor."""
    event = make()
    setattr(event, attribute, value)
    assert plain(kept) == plain(getattr(event, attribute))


@pytest.mark.parametrize(
    ("attribute", "value", "error"),
    [
        ("name", None, TypeError),
        ("timestamp", 1, TypeError),
        ("data", [("a", 1)], TypeError),
        ("data", {"a": None}, TypeError),
        ("data", {"a": 2**63}, ValueError),
        ("severity", 10, ValueError),
        ("severity", "INFO", ValueError),
        ("severity", None, ValueError),
        ("window", None, AttributeError),
        ("other", 1, AttributeError),
    ],
)
def test_wrong_assignment(attribute: str, value: object, error: type[Exception]) -> None:
    """After an error the Event is unchanged; other attributes cannot be set."""
    event = make()
    with pytest.raises(error):
        setattr(event, attribute, value)
    assert make() == event


@pytest.mark.parametrize("attribute", ["name", "timestamp", "data", "severity", "window"])
def test_nothing_can_be_deleted(attribute: str) -> None:
    """An Event always has all its attributes."""
    with pytest.raises(AttributeError):
        delattr(make(), attribute)


def test_items_added_to_data_are_kept() -> None:
    """Row "event.data[k] = v": the item is kept, which torch loses; the given mapping is copied."""
    given = {"a": 1}
    event = make(data=given)
    event.data["b"] = 2
    given["c"] = 3
    assert {"a": 1, "b": 2} == event.data
    assert {"a": 1, "c": 3} == given


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"timestamp": MOMENT.replace(microsecond=0)},
        {"timestamp": MOMENT.replace(tzinfo=EAST)},
        {"data": {"epoch": 3}},
        {"data": {"epoch": 3, "loss": 0.5}},
        {"severity": Severity.WARN},
    ],
)
def test_equality(change: dict[str, Any]) -> None:
    """Row "Event ==, hash": equality compares values, including the severity, but not the order of data."""
    assert make(data={"loss": 0.25, "epoch": 3}) == make()
    assert make(**change) != make()


def test_equality_with_others() -> None:
    """An Event does not equal other objects; an Event of a subclass is compared by value."""
    subclass = type("Special", (Event,), {})
    assert subclass("epoch", MOMENT, {"epoch": 3, "loss": 0.25}) == make()
    assert make() != ("epoch", MOMENT, {"epoch": 3, "loss": 0.25})
    assert NotImplemented is make().__eq__(1)


def test_hash_is_of_name_and_timestamp() -> None:
    """Row "Event ==, hash": equal Events are one key, and data that is added later does not change the hash."""
    event = make()
    known = {event}
    event.data["later"] = 1
    assert hash(event) == hash(make())
    assert event in known
    assert {hash(make()), hash(make(name="b")), hash(make(timestamp=dt.date(2026, 1, 2)))} > {hash(make())}


@pytest.mark.parametrize("changes", [{}, {"severity": Severity.ERROR}, {"timestamp": MOMENT.replace(tzinfo=EAST)}])
def test_repr_can_be_evaluated(changes: dict[str, Any]) -> None:
    """Row "Event repr": it shows everything, and eval() restores the Event."""
    event = make(**changes)
    assert event == eval(repr(event), {"Event": Event, "Severity": Severity, "datetime": dt})


def pickled(event: Any, protocol: int) -> Any:
    """Return an Event pickled and unpickled."""
    return pickle.loads(pickle.dumps(event, protocol))


each_copy = pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, *(partial(pickled, protocol=p) for p in range(pickle.HIGHEST_PROTOCOL + 1))],
    ids=["copy", "deepcopy", *(f"pickle{p}" for p in range(pickle.HIGHEST_PROTOCOL + 1))],
)


class Checkpoint(Event):
    """An Event with an additional attribute."""

    path = ""


@each_copy
def test_copies_are_equal(duplicate: Callable[[Event], Event]) -> None:
    """Row "Event copy, pickle": every protocol works; torch raises, and aborts on protocol 0."""
    event = Checkpoint("saved", MOMENT.replace(tzinfo=EAST, fold=1), {"ok": True}, severity=Severity.WARN)
    event.path = "/a"
    again = duplicate(event)
    assert event == again
    assert (Checkpoint, 1, "/a") == (type(again), again.timestamp.fold, again.__dict__["path"])
    assert again is not event


@each_copy
def test_copies_of_a_stats_event_keep_the_window(duplicate: Callable[[Event], Event]) -> None:
    """A Stat's Event can be copied and pickled with every protocol, including its window."""
    with monitel.testing.capture_events() as events:
        stat = monitel.Stat("loss", [monitel.SUM], 60.0, 1, unit="s", attributes={"split": "val"})
        stat.add(0.5)
    again = duplicate(events[0])
    window = again.window
    assert events == [again]
    assert window is not None
    assert ("loss", "s", {"split": "val"}, 1, 0.5) == (
        window.name,
        window.unit,
        dict(window.attributes),
        window.count,
        window.last,
    )


def test_takes_weak_references() -> None:
    """An Event can be weakly referenced, as in torch."""
    event = make()
    assert event is weakref.ref(event)()


def test_severity_has_opentelemetrys_numbers() -> None:
    """Severity is an IntEnum with the first number of each of OpenTelemetry's ranges."""
    assert {"TRACE": 1, "DEBUG": 5, "INFO": 9, "WARN": 13, "ERROR": 17, "FATAL": 21} == {
        severity.name: severity + 0 for severity in Severity
    }


@pytest.mark.parametrize("severity", [0, 10, -1, "INFO", None])
def test_unknown_severity(severity: Any) -> None:
    """An unknown severity is a ValueError that lists the members."""
    with pytest.raises(ValueError, match=r"must be one of Severity.TRACE, .*Severity.FATAL, got"):
        make(severity=severity)


def test_event_of_a_stat() -> None:
    """A Stat's Event has torch's name and keys, floats only, and the naive local time of logging."""
    with monitel.testing.ManualClock(epoch_ns=1_767_225_600_250_000_000) as clock:
        stat = monitel.Stat("train.loss", monitel.aggregation.TORCHS, dt.timedelta(hours=100), 3)
        with monitel.testing.capture_events() as events:
            clock.advance(30)
            for sample in (5, 1, 3):
                stat.add(sample)
    event = events[0]
    expected = {"value": 3.0, "mean": 3.0, "count": 3.0, "sum": 9.0, "max": 5.0, "min": 1.0}
    assert {f"train.loss.{suffix}": value for suffix, value in expected.items()} == event.data
    assert {float} == {type(value) for value in event.data.values()}
    assert ("torch.monitor.Stat", Severity.INFO) == (event.name, event.severity)
    assert plain(dt.datetime.fromtimestamp(1_767_225_630.25)) == plain(event.timestamp)  # noqa: DTZ006  local


def test_event_beside_an_import_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread imports NumPy, its module is there and has no attributes yet."""
    monkeypatch.setitem(sys.modules, "numpy", ModuleType("numpy"))
    assert {"step": 1} == Event("saved", MOMENT, {"step": Whole(1)}).data
