"""Events: emit(), log(), config(), counters, wait counters, the step, and handlers, including those that raise."""

import copy
import datetime as dt
import gc
import logging
import math
import pickle
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.support.producers import run_together
from tests.support.twins import MakeStat

import monitel as installed
from monitel import Event, Severity, WaitCounter, WaitReading, emit, log_event, register_event_handler, wait_counters

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001  torch's events are naive


def raising(kind: type[BaseException], *arguments: object) -> Callable[[Event], None]:
    def handler(_event: Event) -> None:
        raise kind(*arguments)

    return handler


class _Unprintable:
    def __repr__(self) -> str:
        raise LookupError


def left_out() -> float:
    return sum(each.total for each in installed.counters() if each.counter.name == "monitel.log.left_out")


def test_emit_logs_data_and_keywords(events: list[Any], clock: Any) -> None:
    """Keywords replace items of data and may have any name; the time is now, the severity INFO, unless given."""
    clock.advance(1.5)
    emit("saved", {"file.size": 1, "step": 1}, step=7, name="n", data="d")
    emit("failed", severity=Severity.ERROR, timestamp=MOMENT)
    now = dt.datetime.fromtimestamp(clock.time_ns() / 1e9)  # noqa: DTZ006  naive on purpose
    first = Event("saved", now, {"file.size": 1, "step": 7, "name": "n", "data": "d"}, severity=Severity.INFO)
    assert [first, Event("failed", MOMENT, {}, severity=Severity.ERROR)] == events


def test_wrong_arguments_of_emit_and_log_raise(events: list[Any]) -> None:
    """A name, data, numbers, step, time or severity of another type is an error of the program: nothing is logged."""
    mapping, whole = r"log\(\) takes a mapping of names to numbers, or", "step must be a whole number, got float: 1.5"
    emit: Any = installed.emit
    log: Any = installed.log
    given: list[tuple[Any, ...]] = [(), (1,), ("a", {}, 1), ("a", []), ("a", "")]
    wrong: list[tuple[type[Exception], str | None, Callable[[], object]]] = [
        *((TypeError, None, partial(emit, *each)) for each in given),
        *((TypeError, "timestamp", partial(emit, "a", timestamp=each)) for each in (0, "")),
        (ValueError, "severity must be one of", partial(emit, "a", severity=10)),
        (TypeError, mapping, partial(log, [("x", 1)])),
        (TypeError, r"or the numbers by keyword as in log\(loss=0.5\), got NoneType", partial(log, None)),
        (TypeError, whole, partial(log, {"x": 0.5}, step=1.5)),
        (ValueError, r"step must be from 0 to 2\*\*63 - 1, got -1", partial(log, {"x": 0.5}, step=-1)),
    ]
    for kind, message, call in wrong:
        with pytest.raises(kind, match=message):
            call()
    assert [] == events


def test_emit_leaves_out_odd_values(events: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Each value is counted, only the first is logged, the others are recorded, and nothing raises into the loop."""
    data: dict[Any, Any] = {"path": "a\udcff", 3: 1, "": 1, "list": [1], _Unprintable(): 1, "large": 2**63, "half": 0.5}
    emit("saved \udcff", data, none=None, ok=True, object=_Unprintable())
    (event,) = events
    assert "saved \\udcff" == event.name
    assert repr({"path": "a\\udcff", "3": 1, "half": 0.5, "ok": True}) == repr(event.data)
    assert 6 == left_out()
    (record,) = caplog.records
    assert "emit() leaves out values that it cannot record: '' is 1 " in record.getMessage()


class _Unreadable(dict[Any, Any]):
    def items(self) -> Any:
        raise LookupError


def test_unreadable_mapping_is_left_out(events: list[Any]) -> None:
    """Values beside it are recorded, although the application has read the counter without its unit before."""
    installed.counter("monitel.log.left_out")
    broken = _Unreadable(a=1)
    installed.log({"loss": 0.5, "broken": broken})
    installed.log(broken)
    installed.emit("event", broken)
    found = [(event.name, event.data) for event in events]
    assert [("run.log", {"loss": 0.5}), ("run.log", {}), ("event", {})] == found
    assert 3 == left_out()


def test_set_step_is_on_every_later_event(events: list[Any]) -> None:
    """An Event has the step at its creation; the step may go back, and is a whole number from 0 to 2**63 - 1."""
    emit("a")
    steps: list[Any] = [7, 2**63 - 1, 0, np.float32(9), Decimal(8), np.int64(3), 3.0]
    for step in steps:
        installed.set_step(step)
        assert step == installed.get_step()
        emit("b")
    for given in (None, 0, 8.0):  # that of a call of log() does not change it
        installed.log({"x": 1.0}, step=given)
    expected = [None, 7, 2**63 - 1, 0, 9, 8, 3, 3, 3, 0, 8]
    assert repr(expected) == repr([event.step for event in events])
    wrong: list[tuple[Any, type[Exception]]] = [
        *((each, ValueError) for each in (-1, 2**63, -1.0, 1e300)),
        *((each, TypeError) for each in (1.5, math.nan, math.inf, "1", np.array([1, 2]))),
    ]
    calls: list[Callable[[Any], None]] = [installed.set_step, lambda step: installed.log({"x": 1.0}, step=step)]
    for call, (given, error) in product(calls, wrong):
        with pytest.raises(error, match=r"^step must be"):
            call(given)
    with pytest.raises(TypeError, match=r"^step must be"):
        calls[0](None)
    assert 3 == installed.get_step()


def test_log_makes_one_event_of_its_numbers(events: list[Any], clock: Any) -> None:
    """With dotted names, attributes, step and time; exporters send it as points and as a record of the same time."""
    clock.advance(1.5)
    installed.log({"loss": 0.25, "val": {"accuracy": 1, "top": {"5": 0.75}, "nothing": {}}}, step=10, split="test")
    (event,) = events
    assert isinstance(event, installed.LoggedNumbers)
    assert {"loss": 0.25, "val.accuracy": 1, "val.top.5": 0.75} == event.data
    assert ("run.log", 10, {"split": "test"}) == (event.name, event.step, dict(event.attributes))
    assert (clock.time_ns(), 0, None) == (event.time_ns, left_out(), event.window)
    for below_ns in (1, 600, 999):  # rounded up, the record would be a millisecond later than the point
        with installed.testing.ManualClock(1_767_225_600_551_000_000 - below_ns):
            installed.log({"loss": 0.25})
        assert (550_999, 1_767_225_600_550) == (events[-1].timestamp.microsecond, events[-1].time_ns // 1_000_000)
    for again in (pickle.loads(pickle.dumps(event)), copy.copy(event), copy.deepcopy(event)):
        assert (event, event.time_ns, event.attributes) == (again, again.time_ns, again.attributes)


def test_log_takes_numbers_by_keyword(events: list[Any]) -> None:
    """Text among them is an attribute, as all keywords are beside a mapping."""
    installed.log(loss=0.5, val={"accuracy": 1}, split="test", step=3)
    installed.log({"loss": 0.5}, fold=2, split="test")
    found = [(event.data, event.attributes, event.step) for event in events]
    assert ({"loss": 0.5, "val.accuracy": 1}, {"split": "test"}, 3) == found[0]
    assert ({"loss": 0.5}, {"fold": 2, "split": "test"}, None) == found[1]


class _Product:
    item = "the name of an article"

    def __float__(self) -> float:
        return 9.5


class _Scalar:
    def __init__(self, element: object) -> None:
        self._element = element

    def item(self) -> object:
        return self._element

    def __float__(self) -> float:
        raise AssertionError("item() is preferred")


def test_log_keeps_numbers_exact(events: list[Any]) -> None:
    """Ints of 64 bits stay ints, a bool is 0 or 1, and whatever converts to a float is one."""
    table: list[tuple[Any, float]] = [
        *((True, 1), (2**63 - 1, 2**63 - 1), (2**63, 2.0**63), (Decimal("0.5"), 0.5), (Fraction(1, 4), 0.25)),
        *((_Scalar(3), 3), (_Scalar(0.5), 0.5), (_Scalar(True), 1), (math.inf, math.inf), (np.float32(0.5), 0.5)),
        (_Product(), 9.5),
    ]
    for value, number in table:
        installed.log({"x": value})
        found = events[-1].data["x"]
        assert (number, type(number), 0) == (found, type(found), left_out())


def test_log_takes_numbers_only(events: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """So is a number without a name; each is counted, and only the first is logged; the numbers beside are recorded."""
    values: dict[str, Any] = {"loss": 0.5, "text": "0.5", "none": None, "list": [1.0], "odd": _Scalar("x")}
    values |= {"big": 10**400, "masked": np.ma.masked, "array": np.ma.array([1.0], mask=[True])}
    nested: dict[str, Any] = {"x": 1.0}
    nested["self"] = nested  # nesting has a limit
    names: dict[Any, Any] = {0: 0.5, "": 1.0, _Unprintable(): 2.0, None: 3, "\udc80": 4, "iou": {1: 5, "": 6}}
    counted = []
    with caplog.at_level(logging.WARNING, "monitel"):
        for each in (values, {"x": None}, nested, names):
            installed.log(each)
            counted.append(left_out())
        installed.log({"x": 1}, split=None, fold=2)
    assert [7, 8, 9, 12, 13] == [*counted, left_out()]
    assert [1, 0, 6, 4, 1] == [len(event.data) for event in events]
    assert {"0": 0.5, "None": 3, "\\udc80": 4, "iou.1": 5} == events[3].data
    assert {"fold": 2} == events[4].attributes
    (record,) = caplog.records
    assert "log() leaves out values that it cannot record: 'text' is of the type str" in record.getMessage()


def test_counter_has_a_total_and_a_start(clock: Any) -> None:
    """The start is the creation; a name and attributes give one counter, and its first call decides the unit."""
    created = clock.time_ns()
    samples = installed.counter("samples", unit="{sample}", description="text", attributes={"split": "train", "a": 1})
    for amount in (32, 0, 28):
        clock.advance(1)
        samples.add(amount)
    samples.add()
    assert (61, created) == (samples.total, samples.reading().start_ns)
    assert samples is installed.counter("samples", attributes={"a": 1, "split": "train"})
    other = installed.counter("samples", attributes={"split": "train", "a": True})
    assert ("{sample}", "text", 0) == (other.unit, other.description, other.total)
    for key in ("unit", "description"):
        for known in (samples, other):
            wrong: dict[str, Any] = {key: "By", "attributes": known.attributes}
            with pytest.raises(ValueError, match=rf"was created with {key}=.*, got {key}='By'"):
                installed.counter("samples", **wrong)
    assert [samples.reading(), other.reading()] == installed.counters()
    assert samples is copy.deepcopy(samples) is pickle.loads(pickle.dumps(samples))
    arguments: list[dict[str, Any]] = [{"name": ""}, {"name": 3}, {"unit": 3}, {"attributes": {"a": None}}]
    for each in arguments:
        with pytest.raises((TypeError, ValueError), match=r"name|unit|attribute"):
            installed.counter(**{"name": "x", **each})
    assert 2 == len(installed.counters())


def test_counter_adds_numbers_from_zero_on(caplog: pytest.LogCaptureFixture) -> None:
    """Ints stay ints up to 64 bits; what is negative, not finite, or not a number is left out, and nothing raises."""
    counter = installed.counter("tokens")
    table: list[tuple[Any, float]] = [(3, 3), (True, 4), (np.uint8(255), 259), (2.5, 261.5), (Fraction(1, 4), 261.75)]
    for amount, total in table:
        counter.add(amount)
        assert (total, type(total)) == (counter.total, type(counter.total))
    wrong: list[Any] = [-1, -0.5, np.int64(-2), math.nan, math.inf, 10**400, Fraction(10**400), 10**5000]
    wrong += ["3", None, Decimal(3), 1j, np.array([3]), _Scalar(3)]
    for amount in wrong:
        counter.add(amount)
    assert (261.75, len(wrong)) == (counter.total, left_out())
    (record,) = caplog.records
    assert "Counter.add() leaves out values that it cannot record: 'tokens' is -1 " in record.getMessage()
    large = installed.counter("large")
    for amount, total in ((2**63 - 1, 2**63 - 1), (1, 2.0**63), (sys.float_info.max, sys.float_info.max)):
        large.add(amount)
        assert (total, type(total)) == (large.total, type(large.total))


def test_wait_counter_has_the_totals_of_its_key(clock: Any) -> None:
    """Count, total, longest and waits in flight, for all counters of the key; the start is that of the first."""
    created = clock.time_ns()
    counter = WaitCounter("data")
    assert WaitReading(0, 0.0, 0.0, 0) == wait_counters()["data"]
    for seconds in (2, 5, 1):
        with counter.guard():
            clock.advance(seconds)
            assert 1 == wait_counters()["data"].active
    for reader in (installed.WaitMaxima(), installed.WaitMaxima()):  # each gets the longest wait, once
        assert ({"data": 5.0}, {}) == (reader.read(), reader.read())
    guard = WaitCounter("data").guard()
    with pytest.raises(ValueError, match="seconds >= 0"), guard:
        clock.advance(-1)
    reading = wait_counters()["data"]
    assert (WaitReading(4, 8.0, 5.0, 0), created) == (reading, reading.start_ns)
    before: Any = reading
    with pytest.raises(AttributeError):
        before.count = 5


def test_each_guard_is_one_wait(clock: Any) -> None:
    """Two guards are two waits, even at once; a guard that is entered again, or lost, ends its wait."""
    counter = WaitCounter("data")
    with counter.guard():
        clock.advance(1)
        with counter.guard():
            clock.advance(1)
            assert WaitReading(0, 0.0, 0.0, 2) == wait_counters()["data"]
    assert WaitReading(2, 3.0, 2.0, 0) == wait_counters()["data"]
    guard = counter.guard()
    guard.__exit__(None, None, None)  # it was not entered
    with guard:
        clock.advance(1)
        with guard:
            assert WaitReading(3, 4.0, 2.0, 1) == wait_counters()["data"]
            clock.advance(3)
        clock.advance(4)
    guard.__enter__()
    clock.advance(5)
    del guard
    gc.collect()
    assert WaitReading(5, 12.0, 5.0, 0) == wait_counters()["data"]


def test_every_handler_is_called_although_one_raises(events: list[Any], unraisable: list[Any]) -> None:
    """Then the first exception is raised, KeyboardInterrupt and SystemExit before others; the rest is reported."""
    table: list[tuple[list[type[BaseException]], int]] = [
        ([ValueError], 0),
        ([OSError, ValueError, StopIteration], 0),
        ([ValueError, GeneratorExit, SystemExit, KeyboardInterrupt], 2),
        ([ValueError, KeyboardInterrupt, SystemExit], 1),
    ]
    for number, (kinds, first) in enumerate(table):
        handles = [register_event_handler(raising(kind)) for kind in kinds]
        later: list[Event] = []
        with register_event_handler(later.append), pytest.raises(kinds[first]):
            emit("epoch")
        for handle in handles:
            handle.__exit__()
        assert kinds[:first] + kinds[first + 1 :] == [type(error) for error in unraisable]
        assert (number + 1, 1) == (len(events), len(later))
        unraisable.clear()


def test_window_is_closed_although_a_handler_raises(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, events: list[Any]
) -> None:
    """The sample at a boundary is added, which torch loses; at max_samples the window stays closed."""
    stat, limited = make_stat(), make_stat("limited", None, 60.0, 2)
    stat.add(1)
    limited.add(1)
    with monitel.register_event_handler(raising(ValueError, "why")):
        with pytest.raises(ValueError, match="why"):
            limited.add(2)
        limited.add(3)
        clock.advance(60)
        with pytest.raises(ValueError, match="why"):
            stat.add(2)
        stat.add(3)
    assert (0, 1, 2) == (limited.count, limited.discarded, stat.count)
    assert [3.0, 1.0] == [event.window.sum for event in events]


@pytest.mark.parametrize("close", ["flush", "close_expired_windows"])
def test_every_stat_is_closed_although_a_handler_raises(
    make_stat: MakeStat, monitel: ModuleType, clock: Any, unraisable: list[Any], close: str
) -> None:
    """The first exception is raised, and the others are reported."""
    received: list[str] = []

    def handler(event: Any) -> None:
        received.append(event.window.name)
        if event.window.name != "b":
            raise ValueError(event.window.name)

    stats = [make_stat(name) for name in "abc"]
    for stat in stats:
        stat.add(1)
    clock.advance(60)
    with monitel.register_event_handler(handler), pytest.raises(ValueError, match="a"):
        getattr(monitel, close)()
    assert (["a", "b", "c"], ["c"]) == (received, [str(error) for error in unraisable])
    unraisable.clear()


def test_handler_that_raises_in_a_destructor_is_reported(
    make_stat: MakeStat, monitel: ModuleType, events: list[Any], unraisable: list[Any]
) -> None:
    """The exception goes to sys.unraisablehook, where torch aborts, and the window was logged."""
    with monitel.register_event_handler(raising(KeyboardInterrupt)):
        make_stat().add(1)
        gc.collect()
    assert [KeyboardInterrupt] == [type(error) for error in unraisable]
    assert [1.0] == [event.window.sum for event in events]
    unraisable.clear()


def test_handlers_may_log_and_change_the_handlers(events: list[Any]) -> None:
    """With effect from the next event on, and without a deadlock, which torch has."""
    received: list[str] = []

    def once(event: Event) -> None:
        if event.name == "first":
            handle.__exit__()
            handles.append(register_event_handler(lambda event: received.append(event.name)))
            log_event(Event("echo", MOMENT, {}))

    handles: list[Any] = []
    handle = register_event_handler(once)
    run_together(lambda: emit("first"), lambda: None)
    run_together(lambda: emit("second"))
    handles[0].__exit__()
    assert (["first", "echo", "second"], ["echo", "second"]) == ([event.name for event in events], received)


@pytest.mark.parametrize("flush", [installed.flush, installed.close_expired_windows])
def test_functions_before_a_flush_belong_to_it(flush: Callable[[], object], events: list[Any], clock: Any) -> None:
    """Samples that they add, and Stats that they create, are flushed; if one raises, all else is done before."""
    stats: list[Any] = []

    def create() -> None:
        stats.append(installed.Stat("x", [installed.COUNT], 1.0))
        stats[-1].add(1)
        clock.advance(2)

    def fail() -> None:
        raise OSError("cannot read the queue")

    for function in (fail, create):
        installed.stats.before_flush.register(function)
    try:
        with pytest.raises(OSError, match="cannot read the queue"):
            flush()
    finally:
        for function in (fail, create, create):
            installed.stats.before_flush.unregister(function)
    flush()
    assert ["x"] == [event.window.name for event in events]
