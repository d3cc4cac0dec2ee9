"""Stat: the arguments of its constructor."""

from __future__ import annotations

import copy
import datetime as dt
import math
from collections import deque
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    MakeStat = Callable[..., Any]


def test_constructor_has_torchs_parameters(monitel: ModuleType) -> None:
    """Name, aggregations, window_size and max_samples can be positional and keyword arguments."""
    by_position = monitel.Stat("x", [monitel.SUM], dt.timedelta(seconds=2), 5)
    by_keyword = monitel.Stat(name="x", aggregations=[monitel.SUM], window_size=dt.timedelta(seconds=2), max_samples=5)
    for stat in (by_position, by_keyword):
        assert ("x", (monitel.SUM,), dt.timedelta(seconds=2), 5) == (
            stat.name,
            stat.definition.aggregations,
            stat.window_size,
            stat.max_samples,
        )


def test_additions_are_keyword_only(monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """Arguments that torch does not have are keyword-only, and are part of every window's definition."""
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
def test_window_below_one_millisecond(make_stat: MakeStat, window_size: Any) -> None:
    """A window_size of 0, < 1 ms, negative or NaN is a ValueError that names the minimum."""
    with pytest.raises(ValueError, match="window_size must be at least 1 ms, got"):
        make_stat(window_size=window_size)


@pytest.mark.parametrize(
    ("window_size", "message"),
    [
        (60, "got int; write 60.0 for seconds"),
        (10**400, "got int"),
        (True, "got bool"),
        ("60", "got str"),
        (None, "got NoneType"),
        (Decimal(60), "got Decimal"),
    ],
)
def test_window_of_another_type(make_stat: MakeStat, window_size: Any, message: str) -> None:
    """A window_size that is neither a timedelta nor a float is a TypeError; for an int it suggests 60.0."""
    with pytest.raises(TypeError, match=f"seconds as a float such as 60.0, {message}"):
        make_stat(window_size=window_size)


@pytest.mark.parametrize("window_size", [0.0015, dt.timedelta(microseconds=1999)])
def test_window_is_truncated_to_milliseconds(make_stat: MakeStat, window_size: Any) -> None:
    """A float means seconds, and is truncated to milliseconds, as in torch."""
    assert dt.timedelta(milliseconds=1) == make_stat(window_size=window_size).window_size


@pytest.mark.parametrize("window_size", [math.inf, 1e300, dt.timedelta.max])
def test_huge_window_never_rolls_over(make_stat: MakeStat, clock: Any, events: list[Any], window_size: Any) -> None:
    """A window_size of inf, or too long for 64 bits of ns, never ends by time."""
    stat = make_stat(window_size=window_size)
    stat.add(1)
    clock.advance(1e9)
    stat.add(2)
    assert (2, [], dt.timedelta.max) == (stat.count, events, stat.window_size)


@pytest.mark.parametrize("max_samples", [0, -1, -(2**63), False])
def test_max_samples_below_one(make_stat: MakeStat, max_samples: int) -> None:
    """A max_samples < 1 is a ValueError that explains how to have no limit."""
    with pytest.raises(ValueError, match=r"max_samples must be at least 1, got .*leave it out for no limit"):
        make_stat(max_samples=max_samples)


@pytest.mark.parametrize("max_samples", [1.0, "1", None, math.inf, 2**63, -(2**63) - 1])
def test_max_samples_must_be_an_int64(make_stat: MakeStat, max_samples: Any) -> None:
    """A max_samples that is not an int of 64 bits is a TypeError, as in torch."""
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
def test_containers_of_aggregations(monitel: ModuleType, container: Callable[[list[Any]], Any]) -> None:
    """Every container that torch accepts is accepted; duplicates are ignored."""
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
def test_aggregations_of_other_types(monitel: ModuleType, wrong: Callable[[ModuleType], Any]) -> None:
    """A value that is not a list of members is a TypeError with an example."""
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
def test_names_of_other_types(make_stat: MakeStat, name: Any) -> None:
    """A name that is not text, or that UTF-8 cannot hold, is a TypeError."""
    with pytest.raises(TypeError, match="Stat name must be"):
        make_stat(name)


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"": 1}, ValueError, "attribute names must not be empty"),
        ({1: 1}, TypeError, "attribute name must be a str"),
        ({"a": None}, TypeError, "'a': a value must be a str, int, float or bool, got NoneType"),
        ({"a": 2**63}, ValueError, "'a'"),
        ({"a": "\ud800"}, TypeError, "'a'"),
        ([("a", 1)], TypeError, "attributes must be a mapping"),
    ],
)
def test_attributes_that_cannot_be_sent(
    make_stat: MakeStat, attributes: Any, error: type[Exception], message: str
) -> None:
    """Empty attribute names, and values that exporters cannot send, are errors at construction."""
    with pytest.raises(error, match=message):
        make_stat(attributes=attributes)
