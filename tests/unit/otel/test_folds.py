"""Folded spans in an application's provider: with the other spans they add up to all ranges."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import monitel
import monitel_otel
from monitel.profiler import ranges, record_function

if TYPE_CHECKING:
    from tests.unit.otel.providers import Backend

    from monitel.profiler.ranges import Range
    from monitel.testing import ManualClock

STEPS = 3


def nest(random: Random, clock: ManualClock, depth: int = 0) -> None:
    """Record ranges with random names and durations, nested at random."""
    for _ in range(random.randint(1, 4)):
        with record_function(f"op {random.randrange(5)}"):
            clock.advance(random.randrange(1, 1000) / 1000)
            if depth < 3 and random.random() < 0.6:
                nest(random, clock, depth + 1)


@pytest.mark.parametrize("seed", range(3))
def test_spans_and_folded_spans_add_up_to_all_ranges(backend: Backend, clock: ManualClock, seed: int) -> None:
    """In each step, for each name: number and duration of its spans and of its folded ranges."""
    random = Random(seed)
    recorded: list[Range] = []
    with (
        ranges.listen(ended=recorded.append),
        monitel_otel.install(
            backend.meter_provider,
            backend.logger_provider,
            backend.tracer_provider,
            span_budget=random.randint(1, 6),
        ),
    ):
        for step in range(STEPS):
            monitel.set_step(step)
            nest(random, clock)
    for step in range(STEPS):
        count: Counter[str] = Counter()
        length_ns: Counter[str] = Counter()
        for each in recorded:
            if each.step == step:
                count[each.name] += 1
                length_ns[each.name] += (each.end_ns or 0) - each.start_ns
        folded: dict[str, Any] = {}
        for span in backend.spans():
            attributes = dict(span.attributes or {})
            if attributes["training.step"] != step:
                continue
            if span.name == "monitel.folded":
                folded = attributes
            else:
                count[span.name] -= 1
                length_ns[span.name] -= (span.end_time or 0) - (span.start_time or 0)
        names = folded.get("monitel.folded.names", ())
        assert +count == Counter(dict(zip(names, folded.get("monitel.folded.name_counts", ()), strict=True)))
        seconds = dict(zip(names, folded.get("monitel.folded.name_seconds", ()), strict=True))
        assert {name: left / 1e9 for name, left in length_ns.items() if left} == seconds
        assert count.total() == folded.get("monitel.folded.count", 0)
        assert length_ns.total() / 1e9 == folded.get("monitel.folded.seconds", 0.0)
