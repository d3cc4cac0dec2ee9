"""config(): one Event with the whole configuration as built-in values."""

from __future__ import annotations

import copy
import json
import math
import pickle
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import monitel as installed

if TYPE_CHECKING:
    from types import ModuleType


class Number(IntEnum):
    """A subclass of int."""

    ONE = 1


class Color(Enum):
    """Not a number and not a text."""

    RED = "red"


def test_config_has_everything_and_data_the_plain_values(monitel: ModuleType, events: list[Any]) -> None:
    """Data omits None and lists, which an Event cannot hold."""
    monitel.config({"lr": 1e-4, "model": {"layers": [2, {"width": 8}], "dropout": None, "name": "small"}, "amp": True})
    (event,) = events
    assert isinstance(event, monitel.RunConfig)
    assert "run.config" == event.name
    assert {
        "lr": 1e-4,
        "model": {"layers": [2, {"width": 8}], "dropout": None, "name": "small"},
        "amp": True,
    } == event.config
    assert {"lr": 1e-4, "model.name": "small", "amp": True} == event.data


class Raising:
    """An object whose str() raises."""

    def __str__(self) -> str:
        raise RuntimeError("it has no name")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Number.ONE, 1),
        (2**64, "18446744073709551616"),
        (Color.RED, "Color.RED"),
        (PurePosixPath("runs/1"), "runs/1"),
        ((1, 2), [1, 2]),
        (range(3), [0, 1, 2]),
        (MappingProxyType({1: None}), {"1": None}),
        ("caf\u00e9 \udc80", "caf\u00e9 \\udc80"),
        (math.inf, math.inf),
        (print, str(print)),
    ],
)
def test_values_become_built_in_values(monitel: ModuleType, events: list[Any], value: Any, plain: Any) -> None:
    """A value of another type becomes text."""
    monitel.config({"x": value})
    assert (plain, type(plain)) == (events[0].config["x"], type(events[0].config["x"]))


def test_value_without_a_text_does_not_raise(monitel: ModuleType, events: list[Any]) -> None:
    """Telemetry does not stop the program."""
    monitel.config({"x": Raising()})
    assert "Raising object at" in events[0].config["x"]


class Unreadable(dict[str, Any]):
    """A mapping that raises when a value is read, as OmegaConf's do."""

    def __getitem__(self, key: str) -> Any:
        raise LookupError(key)


def test_name_of_the_exception_takes_the_place_of_an_unreadable_value(monitel: ModuleType, events: list[Any]) -> None:
    """The other values are recorded."""
    monitel.config({"x": 1, "data": Unreadable(path=None)})
    assert {"x": 1, "data": {"path": "<LookupError>"}} == events[0].config


def test_mapping_inside_itself_becomes_text_at_some_depth(monitel: ModuleType, events: list[Any]) -> None:
    """Nesting has a limit."""
    values: dict[str, Any] = {}
    values["self"] = values
    monitel.config(values)
    assert 20 == json.dumps(events[0].config).count('"self"')


def test_later_changes_are_not_recorded(monitel: ModuleType, events: list[Any]) -> None:
    """The configuration is copied."""
    values = {"lr": 0.5, "layers": [1]}
    monitel.config(values)
    values["layers"].append(2)  # type: ignore[attr-defined]  # a list
    assert {"lr": 0.5, "layers": [1]} == events[0].config


def test_namespace_is_refused_with_a_hint(monitel: ModuleType, events: list[Any]) -> None:
    """Parsed arguments are not a mapping."""
    with pytest.raises(TypeError, match=r"such as vars\(arguments\), got object"):
        monitel.config(object())
    assert [] == events


def test_event_can_be_copied_and_pickled() -> None:
    """A copy has the configuration."""
    event = installed.RunConfig({"a": {"b": [1, None]}})
    for twin in (pickle.loads(pickle.dumps(event)), copy.copy(event), copy.deepcopy(event)):
        assert (event, event.config) == (twin, twin.config)


text = st.text(st.characters(codec="utf-8"), max_size=4)
leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=15,
)


@given(st.dictionaries(text, trees, max_size=5))
def test_built_in_values_stay_as_they_are(values: dict[str, Any]) -> None:
    """A configuration of built-in values is recorded unchanged, with the types of its values."""
    with installed.testing.capture_events() as events:
        installed.config(values)
    (event,) = events
    assert isinstance(event, installed.RunConfig)
    assert repr(values) == repr(event.config)
