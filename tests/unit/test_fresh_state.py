"""Tests are independent of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType


@pytest.mark.parametrize("time", ["first", "second"])
def test_nothing_is_left_by_other_tests(both_twins: dict[str, ModuleType], time: str) -> None:
    """A test finds no step, handler, named Stat or counter of another test, in either twin, and may leave some."""
    for package in both_twins.values():
        assert package.get_step() is None
        assert () == package.handlers._handlers
        assert {} == package.registry._stats
        assert [] == package.counters()
        assert "left" not in package.wait_counters()
        package.set_step(7)
        package.register_event_handler(_raise)
        package.stat("left").add(1)
        package.counter("left", unit=time).add(1)
        with package.WaitCounter("left").guard():
            pass


def _raise(_: Any) -> None:
    raise AssertionError("a handler of another test was called")
