"""Fixtures for instrumented training loops: the logged windows, and the totals of counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel.testing import ManualClock


@pytest.fixture
def windows(clock: ManualClock) -> Iterator[Callable[..., Callable[[], dict[str, monitel.Window]]]]:
    """Provide a function that instruments. Its result ends this, and returns the windows by name or stage."""
    from monitel.torch import instrument  # late: it imports torch, which may be missing

    running = []

    def start(**choices: Any) -> Callable[[], dict[str, monitel.Window]]:
        running.append(instrument(window_size=float("inf"), **choices))

        def end() -> dict[str, monitel.Window]:
            with monitel.testing.capture_events() as events:
                running[-1].uninstrument()
            found = [event.window for event in events if event.window]
            return {str(each.attributes.get("training.stage", each.name)): each for each in found}

        return end

    yield start
    for each in running:
        each.uninstrument()


@pytest.fixture
def totals() -> Callable[[], dict[str, float]]:
    """Provide a function that returns the totals of the counters of work, by the rest of their names."""
    prefix = "training."

    def totals() -> dict[str, float]:
        found = {each.counter.name: each.total for each in monitel.counters() if each.counter.name != "training.time"}
        return {name.removeprefix(prefix): total for name, total in found.items() if name.startswith(prefix)}

    return totals
