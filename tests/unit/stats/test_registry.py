"""monitel.stat(): Stats by name and attributes."""

from __future__ import annotations

import datetime as dt
import gc
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    MakeStat = Callable[..., Any]


def test_stat_gets_or_creates(monitel: ModuleType, clock: Any, events: list[Any]) -> None:
    """monitel.stat() creates a Stat with torch's aggregations and 60 s, keeps it alive, and returns it again."""
    monitel.stat("registered").add(1)
    gc.collect()
    assert [] == events
    stat = monitel.stat("registered")
    assert (1, dt.timedelta(seconds=60)) == (stat.count, stat.window_size)
    assert monitel.aggregation.TORCHS == stat.definition.aggregations
    assert stat is monitel.stat(b"registered", unit="", window_size=60.0)


def test_stat_is_found_by_name_and_attributes(monitel: ModuleType) -> None:
    """Attributes are part of the identity, in any order; 1, 1.0 and True differ."""
    stats = [
        monitel.stat("x"),
        monitel.stat("y"),
        *(monitel.stat("x", attributes={"a": value}) for value in (1, 1.0, True, "1")),
        monitel.stat("x", attributes={"a": 1, "b": 2}),
    ]
    assert len(stats) == len(set(stats))
    assert stats[-1] is monitel.stat("x", attributes={"b": 2, "a": 1})


@pytest.mark.parametrize(
    "other", [{"window_size": 1.0}, {"max_samples": 2}, {"unit": "ms"}, {"aggregations": []}, {"monotonic": True}]
)
def test_stat_with_other_settings(monitel: ModuleType, other: dict[str, Any]) -> None:
    """Requesting an existing Stat with another setting is a ValueError that names it."""
    monitel.stat("x", unit="s", max_samples=5)
    with pytest.raises(ValueError, match=rf"Stat 'x' was created with {next(iter(other))}=.*, not "):
        monitel.stat("x", **other)


@pytest.mark.parametrize("wrong", [{"name": ["x"]}, {"name": "x", "window_size": 60}, {"name": "x", "attributes": 1}])
def test_stat_checks_its_arguments(monitel: ModuleType, wrong: dict[str, Any]) -> None:
    """monitel.stat() raises the errors of Stat(), and then registers nothing."""
    with pytest.raises(TypeError, match="must be"):
        monitel.stat(**wrong)
    assert {} == monitel.registry._stats
