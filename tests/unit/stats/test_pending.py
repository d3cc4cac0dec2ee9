"""Pending samples: they count immediately, and their windows are logged when all values are known."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FIELDS = ["start_ns", "end_ns", "count", "min", "max", "last", "discarded", "first_step", "last_step"]


class Device:
    def __init__(self) -> None:
        self.waiting: list[tuple[Any, float]] = []

    def add(self, stat: Any, value: float) -> None:
        stat._add_pending(lambda sample: self.waiting.append((sample, value)), lambda: None)

    def give(self, number: int = 1_000_000) -> None:
        given, self.waiting = self.waiting[:number], self.waiting[number:]
        for stat in {sample.resolve(value) for sample, value in given}:
            stat._log_resolved()


def windows(events: list[Any]) -> list[Any]:
    return [event.window for event in events if event.window is not None]


operations = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["pending", "known"]), st.floats(-1e6, 1e6)),
        st.tuples(st.just("give"), st.integers(1, 4)),
        st.tuples(st.just("advance"), st.sampled_from([1.0, 20.0, 70.0])),
        st.tuples(st.just("step"), st.integers(0, 9)),
        st.tuples(st.just("flush"), st.none()),
    ),
    min_size=20,
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(operations, st.sampled_from([3, 2**63 - 1]))
def test_same_windows_as_with_known_values(
    both_twins: dict[str, ModuleType], done: list[Any], max_samples: int
) -> None:
    for monitel in both_twins.values():
        with monitel.testing.ManualClock() as clock, monitel.testing.capture_events() as events:
            compare(monitel, clock, events, done, max_samples)
        monitel.stats._window.set_step(None)


def compare(monitel: ModuleType, clock: Any, events: list[Any], done: list[Any], max_samples: int) -> None:
    """Run all operations with two Stats: one gets pending samples, the other one known values."""
    device = Device()
    pending, known = (monitel.Stat(name, list(monitel.Aggregation), 60.0, max_samples) for name in ("pending", "known"))
    do: dict[str, Callable[[Any], object]] = {
        "pending": lambda value: [add(value) for add in (partial(device.add, pending), known.add)],
        "known": lambda value: (pending.add(value), known.add(value)),
        "give": device.give,
        "advance": clock.advance,
        "step": monitel.set_step,
        "flush": lambda _: (pending.flush(), known.flush()),
    }
    for kind, argument in [*done, ("flush", None), ("give", 1000)]:
        do[kind](argument)
        assert (known.count, known.discarded) == (pending.count, pending.discarded)
    ours, theirs = ([each for each in windows(events) if each.name == name] for name in ("pending", "known"))
    for mine, its in zip(ours, theirs, strict=True):
        assert [getattr(its, name) for name in FIELDS] == [getattr(mine, name) for name in FIELDS]
        size = max(1.0, abs(its.min), abs(its.max))
        assert mine.sum == pytest.approx(its.sum, rel=1e-12, abs=1e-12 * size * its.count)
        assert mine.stddev == pytest.approx(its.stddev, rel=1e-6, abs=1e-6 * size)
        assert list(its.histogram.buckets()) == list(mine.histogram.buckets())
