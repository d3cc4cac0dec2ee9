"""The API of torch.monitor: messages, and what monitel adds. ``tests/torch/promises`` compares each call with torch."""

import copy
import datetime as dt
import gc
import math
import operator
import pickle
import weakref
from decimal import Decimal
from types import ModuleType
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from tests.support.twins import MakeStat

import monitel as installed
from monitel import Aggregation, Event, Severity, log_event, register_event_handler, unregister_event_handler

NUMBERS = {"VALUE": 0, "MEAN": 2, "COUNT": 3, "SUM": 4, "MAX": 5, "MIN": 6, "HISTOGRAM": 100, "STDDEV": 101}
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive
EAST = dt.timezone(dt.timedelta(hours=5))
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def test_aggregation_is_an_enum_with_torchs_numbers() -> None:
    """Torch's members in torch's order, and monitel's two; a member is found by its number, and equals no number."""
    assert list(NUMBERS.items()) == [(member.name, member.value) for member in Aggregation]
    for name, number in NUMBERS.items():
        member = getattr(installed, name)
        assert (number, number, float(number)) == (int(member), operator.index(member), float(member))
        assert (f"<Aggregation.{name}: {number}>", f"Aggregation.{name}") == (repr(member), str(member))
        copies = [copy.deepcopy(member), *(pickle.loads(pickle.dumps(member, each)) for each in PROTOCOLS)]
        found = [Aggregation(number), Aggregation(value=number), Aggregation(np.int64(number)), Aggregation[name]]
        found.append(Aggregation(cast(Any, float(number))))
        assert {id(member)} == {id(each) for each in [*copies, *found]}
        assert number not in {member: 1}
    for wrong in (1, 7, 99, -1, True, 2**40):  # torch accepts them, and crashes later
        with pytest.raises(ValueError, match=r"takes one of 0 \(VALUE\), 2 \(MEAN\)"):
            Aggregation(wrong)


def test_arguments_of_a_stat(make_stat: MakeStat, monitel: ModuleType) -> None:
    """Names of aggregations in any case, each once; whole milliseconds, as in torch, or a window without an end."""
    names = make_stat(aggregations=["max", "Mean", "MEAN", monitel.SUM]).definition.aggregations
    assert (monitel.MEAN, monitel.SUM, monitel.MAX) == names
    assert 2**63 - 1 == make_stat().max_samples
    sizes = [dt.timedelta(microseconds=1999), 0.0015, dt.timedelta(0, 2), 2.0]
    found = [make_stat(window_size=size).window_size / dt.timedelta(milliseconds=1) for size in sizes]
    assert [1, 1, 2000, 2000] == found
    endless = [make_stat(window_size=size).window_size for size in (math.inf, 1e300, dt.timedelta.max)]
    assert [dt.timedelta.max] * 3 == endless


def test_wrong_arguments_of_a_stat_raise(make_stat: MakeStat, monitel: ModuleType) -> None:
    """TypeError for a wrong type, ValueError for a wrong value, each with what was expected."""
    table: list[tuple[type[Exception], str, str, list[Any]]] = [
        (TypeError, "window_size", r"a float such as 60.0, got", [60, True, "60", None, Decimal(60)]),
        (TypeError, "max_samples", "max_samples must", [1.0, "1", None, 2**63, -(2**63) - 1]),
        (TypeError, "aggregations", "aggregations must be", [monitel.SUM, "SUM", [4], ["x"], {monitel.SUM: 1}]),
        (TypeError, "name", "Stat name must be", [None, 1, "\ud800"]),
        (TypeError, "unit", "unit must be", [None, 3, "\ud800"]),
        (ValueError, "window_size", "must be at least 1 ms", [dt.timedelta(microseconds=999), 0.0009, -1.0, math.nan]),
        (ValueError, "max_samples", "must be at least 1, got .*leave it out for no limit", [0, -1, -(2**63), False]),
    ]
    for kind, argument, message, wrong in table:
        for each in wrong:
            with pytest.raises(kind, match=message):
                make_stat(**{argument: each})


def test_wrong_samples_raise_and_are_not_counted(make_stat: MakeStat) -> None:
    stat = make_stat()
    for value in ("1", None, 1j, 10**400, weakref.proxy(set[int]())):  # the last one of an object that is gone
        with pytest.raises(TypeError, match=r"add\(\) takes a real number"):
            stat.add(value)
    for arguments, keywords in (((), {}), ((1, 2), {}), ((1,), {"v": 1}), ((), {"x": 1})):
        with pytest.raises(TypeError, match=r"^Stat\.add\(\) "):
            stat.add(*arguments, **keywords)
    for error, raised in ((ValueError, TypeError), (KeyboardInterrupt, KeyboardInterrupt)):
        with pytest.raises(raised) as caught:
            stat.add(Mock(__float__=Mock(side_effect=error)))
        assert error in {caught.type, type(caught.value.__cause__)}
    assert (0, 0) == (stat.count, stat.discarded)


def test_stat_is_identified_by_itself(make_stat: MakeStat) -> None:
    stat = make_stat()
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot copy or pickle Stat 'x'"):
            duplicate(stat)
    assert f"<Stat 'x' [{', '.join(NUMBERS)}] every 0:01:00, 0 samples open>" == repr(stat)


def test_stat_without_its_constructor_has_no_samples(monitel: ModuleType) -> None:
    """Such a Stat crashes torch."""

    class Forgetful(monitel.Stat):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            pass

    for made in (monitel.Stat.__new__(monitel.Stat), Forgetful()):
        with pytest.raises(RuntimeError, match=r"must call super\(\).__init__\(name, aggregations, window_size\)"):
            made.add(1)
        made.flush()
        assert 0 == made.count


def make(**changes: Any) -> Event:
    return Event(**{"name": "epoch", "timestamp": MOMENT, "data": {"epoch": 3, "loss": 0.25}, **changes})


def test_wrong_arguments_of_an_event_raise() -> None:
    """The error of a value names its key. An Event to which something wrong is assigned is unchanged."""
    of_other_types: list[Any] = [None, [], 1j, MOMENT, Decimal(1), Aggregation.SUM]
    for value in of_other_types:
        with pytest.raises(TypeError, match=r"'loss'.*must be a str, int, float or bool, got"):
            make(data={"loss": value})
    too_large: list[Any] = [2**63, -(2**63) - 1, np.uint64(2**63)]
    for value in too_large:
        with pytest.raises(ValueError, match=r"'a'.*64 bits"):
            make(data={"a": value})
    wrong: dict[str, list[dict[str, Any]]] = {
        "name must be a str": [{"name": None}, {"name": 1}],
        r"key .*must be a str": [{"data": {1: 1}}, {"data": {None: 1}}],
        "must be a mapping": [{"data": None}, {"data": [("a", 1)]}, {"data": ""}],
        "must be a datetime": [{"timestamp": each} for each in (None, 0, 1.5, "2026", np.datetime64("2026-01-02"))],
        "UTF-8": [{"name": "\ud800"}, {"data": {"\ud800": 1}}, {"data": {"a": "\ud800"}}],
    }
    event = make()
    for message, changes in wrong.items():
        for each in changes:
            with pytest.raises(TypeError, match=message):
                make(**each)
            with pytest.raises(TypeError, match=message):
                setattr(event, *next(iter(each.items())))
            assert make() == event


def test_events_compare_by_value() -> None:
    """All four values count, the order of data does not; the hash stays; eval() of the repr restores the Event."""
    assert make(data={"loss": 0.25, "epoch": 3}) == make()
    changes: list[dict[str, Any]] = [
        *({"name": "other"}, {"timestamp": MOMENT.replace(tzinfo=EAST)}, {"data": {"epoch": 3, "loss": 0.5}}),
        {"severity": Severity.ERROR},
    ]
    for change in changes:
        event = make(**change)
        assert event != make()
        assert event == eval(repr(event), {"Event": Event, "Severity": Severity, "datetime": dt})
    known = hash(event)
    event.data["later"] = 1
    assert hash(make()) == known == hash(event)


class _Checkpoint(Event):
    path = ""


def test_events_can_be_copied_and_pickled() -> None:
    """With additional attributes, and with the window of a Stat, where torch raises or aborts."""
    moment = MOMENT.replace(tzinfo=EAST, fold=1)
    data: Any = {"ok": np.bool_(True)}
    event: Any = _Checkpoint("saved", moment, data, severity=Severity.WARN)
    event.path = "/a"
    assert (EAST, 1, "True") == (event.timestamp.tzinfo, event.timestamp.fold, repr(event.data["ok"]))
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
        with pytest.raises(ValueError, match="must be one of"):
            make().severity = wrong  # type: ignore[assignment]  # on purpose


def test_each_registration_is_separate() -> None:
    """Unregistering is idempotent, where torch removes another registration; leaving the block unregisters."""
    received: list[Event] = []
    first, second = register_event_handler(received.append), register_event_handler(received.append)
    log_event(make())
    for _ in range(3):
        unregister_event_handler(first)
    log_event(make())
    assert 3 == len(received)
    with second:
        log_event(make())
    log_event(make())
    assert 4 == len(received)


def test_garbage_collection_of_a_handle_unregisters_nothing() -> None:
    """The registry keeps the callable alive, until it is unregistered."""
    handler: Any = Mock()
    alive, handle = weakref.ref(handler), weakref.ref(register_event_handler(handler))
    del handler
    gc.collect()
    log_event(make())
    cast(Any, alive()).assert_called_once_with(make())
    unregister_event_handler(cast(Any, handle()))
    gc.collect()
    assert alive() is None


def test_handlers_of_wrong_types_raise() -> None:
    """A handler must be callable; a handle cannot be made, copied or pickled."""
    for wrong in (None, 1):
        given: Any = wrong
        with pytest.raises(TypeError, match="takes a callable, got"):
            register_event_handler(given)
        with pytest.raises(TypeError, match="takes the handle"):
            unregister_event_handler(given)
        with pytest.raises(TypeError, match="takes an Event, got"):
            log_event(given)
    with pytest.raises(TypeError, match=r"register_event_handler\(callback\) returns one"):
        installed.EventHandlerHandle()
    with register_event_handler(print) as handle, pytest.raises(TypeError, match="register the handler in the process"):
        copy.copy(handle)
