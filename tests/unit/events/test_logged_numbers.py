"""log(): one Event for each call, with the numbers, their attributes and the step."""

from __future__ import annotations

import copy
import logging
import pickle
import sys
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import monitel as installed

if TYPE_CHECKING:
    from types import ModuleType


def test_call_makes_one_event(monitel: ModuleType, events: list[Any], clock: Any) -> None:
    """The Event has the numbers, the attributes, the step, the time and no window."""
    clock.advance(1.5)
    monitel.log({"loss": 0.25, "tokens": 7}, step=10, split="validation")
    (event,) = events
    assert isinstance(event, monitel.LoggedNumbers)
    assert ("run.log", {"loss": 0.25, "tokens": 7}, 10) == (event.name, event.data, event.step)
    assert {"split": "validation"} == dict(event.attributes)
    assert (clock.time_ns(), 0, None) == (event.time_ns, event.left_out, event.window)
    assert round(clock.time_ns() / 1e9, 3) == round(event.timestamp.timestamp(), 3)
    with pytest.raises(TypeError):
        event.attributes["split"] = "train"


def test_names_of_nested_mappings_are_joined(monitel: ModuleType, events: list[Any]) -> None:
    """An empty mapping has no number."""
    monitel.log({"loss": 1.0, "validation": {"accuracy": 0.5, "top": {"5": 0.75}, "nothing": {}}})
    assert {"loss": 1.0, "validation.accuracy": 0.5, "validation.top.5": 0.75} == events[0].data


def test_mapping_inside_itself_is_left_out(monitel: ModuleType, events: list[Any]) -> None:
    """Nesting has a limit."""
    values: dict[str, Any] = {"x": 1.0}
    values["self"] = values
    monitel.log(values)
    assert (21, 1) == (len(events[0].data), events[0].left_out)


def test_step_is_that_of_set_step_by_default(monitel: ModuleType, events: list[Any]) -> None:
    """A given step does not change it."""
    monitel.log({"x": 1.0})
    monitel.set_step(7)
    monitel.log({"x": 1.0}, step=0)
    monitel.log({"x": 1.0})
    assert [None, 0, 7] == [event.step for event in events]


class Scalar:
    """An array of one element, as arrays and tensors are."""

    def __init__(self, element: object) -> None:
        self._element = element

    def item(self) -> object:
        """Return the element."""
        return self._element

    def __float__(self) -> float:
        raise AssertionError("item() is preferred")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1),
        (2**63 - 1, 2**63 - 1),
        (2**63, 2.0**63),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 4), 0.25),
        (Scalar(3), 3),
        (Scalar(0.5), 0.5),
        (Scalar(True), 1),
        (float("inf"), float("inf")),
    ],
)
def test_values_become_exact_numbers(monitel: ModuleType, events: list[Any], value: Any, number: float) -> None:
    """Ints of 64 bits stay ints."""
    monitel.log({"x": value})
    assert (number, type(number), 0) == (events[0].data["x"], type(events[0].data["x"]), events[0].left_out)


def test_values_that_are_not_numbers_are_counted(
    monitel: ModuleType, events: list[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first is logged; the numbers beside them are recorded."""
    monkeypatch.setattr(sys.modules[monitel.log.__module__], "_warned", False)

    class Raising:
        def __float__(self) -> float:
            raise RuntimeError("it has no value")

    odd = [None, "0.5", b"1", [1.0], object(), Raising(), Scalar("x"), 1j, Decimal("sNaN"), 10**400]
    with caplog.at_level(logging.WARNING, "monitel"):
        monitel.log({"loss": 0.5, **{f"odd{number}": value for number, value in enumerate(odd)}})
        monitel.log({"x": None})
    assert [({"loss": 0.5}, len(odd)), ({}, 1)] == [(event.data, event.left_out) for event in events]
    (record,) = caplog.records
    assert "log() leaves out values that are not numbers: 'odd0' has the type NoneType" in record.getMessage()


@pytest.mark.parametrize(
    ("values", "arguments", "error", "message"),
    [
        ([("x", 1)], {}, TypeError, "takes a mapping of names to numbers, got list"),
        (0.5, {}, TypeError, "takes a mapping of names to numbers, got float"),
        ({1: 0.5}, {}, TypeError, "a name in log() must be a str, got int: 1"),
        ({b"x": 0.5}, {}, TypeError, "a name in log() must be a str, got bytes"),
        ({"x": {"": 0.5}}, {}, ValueError, "a name in log() must not be empty"),
        ({"\udc80": 0.5}, {}, TypeError, "must be text that UTF-8 can hold"),
        ({"x": 0.5}, {"step": 1.5}, TypeError, "step must be an int, got float: 1.5"),
        ({"x": 0.5}, {"step": -1}, ValueError, "step must be from 0 to 2**63 - 1, got -1"),
        ({"x": 0.5}, {"step": 2**63}, ValueError, "step must be from 0 to 2**63 - 1"),
        ({"x": 0.5}, {"split": None}, TypeError, "attribute 'split': a value must be"),
        ({"x": 0.5}, {"": "val"}, ValueError, "attribute names must not be empty"),
    ],
)
def test_wrong_arguments_raise(  # noqa: PLR0917  the columns of the table
    monitel: ModuleType, events: list[Any], values: Any, arguments: Any, error: type[Exception], message: str
) -> None:
    """Nothing is recorded then."""
    with pytest.raises(error) as caught:
        monitel.log(values, **arguments)
    assert message in str(caught.value)
    assert [] == events


def test_constructor_makes_an_event_for_tests_of_handlers(monitel: ModuleType) -> None:
    """Its arguments are checked as those of log() and Event()."""
    event = monitel.LoggedNumbers({"loss": 0.5}, step=3, attributes={"split": "val"}, left_out=1)
    assert ({"loss": 0.5}, 3, {"split": "val"}, 1) == (event.data, event.step, dict(event.attributes), event.left_out)
    with pytest.raises(TypeError):
        monitel.LoggedNumbers({"loss": 0.5}, attributes={"split": None})


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_event_can_be_copied_and_pickled(protocol: int) -> None:
    """A copy has everything, including time and attributes."""
    event = installed.LoggedNumbers({"loss": 0.5}, step=3, attributes={"split": "val"}, left_out=1)
    for twin in (pickle.loads(pickle.dumps(event, protocol)), copy.copy(event), copy.deepcopy(event)):
        assert event == twin
        assert (event.time_ns, event.step, event.left_out) == (twin.time_ns, twin.step, twin.left_out)
        assert event.attributes == twin.attributes


names = st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1, max_size=4)
numbers = st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1)
trees = st.recursive(numbers, lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=12)


def paths(values: dict[str, Any], before: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return each number with its dotted name, computed in another way than in the code."""
    found = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found.update(paths(value, (*before, name)))
        else:
            found[".".join((*before, name))] = value
    return found


@given(st.dictionaries(names, trees, max_size=5))
def test_flattening_keeps_each_number(values: dict[str, Any]) -> None:
    """Each number of a tree is under its path, with its type, and nothing else is there."""
    with installed.testing.capture_events() as events:
        installed.log(values)
    (event,) = events
    expected = paths(values)
    assert isinstance(event, installed.LoggedNumbers)
    assert expected == event.data
    assert [type(value) for value in expected.values()] == [type(event.data[name]) for name in expected]
    assert 0 == event.left_out


@pytest.mark.parametrize("below_ns", [1, 400, 600, 999])
def test_timestamp_is_in_the_same_millisecond_as_the_number(
    monitel: ModuleType, events: list[Any], below_ns: int
) -> None:
    """Exporters send a number as a point and as a log record: rounded up, the two would have different times."""
    with monitel.testing.ManualClock(1_767_225_600_551_000_000 - below_ns):
        monitel.log({"loss": 0.25})
    assert 550_999 == events[0].timestamp.microsecond
    assert 1_767_225_600_550 == events[0].time_ns // 1_000_000
