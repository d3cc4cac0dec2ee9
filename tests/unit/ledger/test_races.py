"""Threads that race for the activities of one of them: its time adds up to the nanosecond, and each name has one slot.

The tests are about builds without the GIL, where threads run at the same time. They run on all builds.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ENTRIES = 500


@pytest.fixture
def activities(monitel: ModuleType) -> Any:
    """Return started activities of the twin, whose clock advances by a nanosecond at each reading."""
    clock = count(1)
    made = monitel._activities.Activities(lambda name: (str(name), False), None, clock.__next__)
    made.begin(0, "between", "between")
    return made


@pytest.mark.usefixtures("frequent_switches")
def test_time_adds_up_at_every_moment(activities: Any, run_threads: Any) -> None:
    """The owner enters and leaves activities while others enter for it, are ignored, and read."""
    running = [object()]

    def own() -> None:
        activities.end_startup("between")  # this thread takes over
        outer, inner = activities.activity("outer"), activities.activity("inner")
        for _ in range(ENTRIES):
            with outer, inner:
                pass
        running.pop()

    def ignored() -> None:
        other = activities.activity("ignored")
        while running:
            with other:
                pass

    def for_owner() -> None:
        while running:
            made = activities.enter_for_owner("wait")
            if made is not None:
                made.__exit__(None, None, None)

    def read() -> None:
        before: dict[str, int] = {}
        while running:
            elapsed_ns, totals, _, _ = activities.read()
            assert elapsed_ns == sum(totals.values())
            assert all(totals.get(name, 0) >= ns for name, ns in before.items())
            before = totals

    run_threads(own, ignored, for_owner, read)
    elapsed_ns, totals, name, _ = activities.read()
    assert elapsed_ns == sum(totals.values())
    assert "ignored" not in totals
    assert "between" == name


@pytest.mark.usefixtures("frequent_switches")
def test_each_name_has_one_slot(activities: Any, run_threads: Any) -> None:
    """Four threads make activities with the same new names at the same time."""
    names = [f"name {number}" for number in range(100)]
    found: list[list[str]] = []

    def make() -> None:
        found.append([activities.activity(name).name for name in names])

    run_threads(make, make, make, make)
    assert [names] * 4 == found
    for name in names:
        with activities.activity(name):
            pass
    assert {*names, "between"} == {*activities.read()[1]}
