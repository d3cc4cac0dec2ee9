"""Folded spans: no range vanishes, whatever the nesting, the threads and the budget."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import DEADLINE

import monitel
from monitel.profiler import ranges, record_function

if TYPE_CHECKING:
    from tests.support.inbox import Span
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel.profiler.ranges import Range
    from monitel.testing import ManualClock

STEPS = 3
ERROR = 2


def nest(random: Random, clock: ManualClock, names: int, depth: int = 0) -> None:
    """Record ranges with random names and durations, nested at random; an exception leaves some of them."""
    for _ in range(random.randint(1, 4)):
        with suppress(ValueError), record_function(f"op {random.randrange(names)}"):
            clock.advance(random.randrange(1, 1000) / 1000)
            if depth < 3 and random.random() < 0.6:
                nest(random, clock, names, depth + 1)
            if random.random() < 0.1:
                raise ValueError
        clock.advance(random.randrange(1000) / 1000)


def durations(found: list[Range] | list[Span]) -> Counter[str]:
    """Return the total duration of each name, ns."""
    total: Counter[str] = Counter()
    for each in found:
        total[each.name] += (each.end_ns or 0) - each.start_ns
    return total


@pytest.mark.parametrize("step_traces", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_spans_and_folded_spans_add_up_to_all_ranges(
    receiver: Receiver, start: Start, clock: ManualClock, seed: int, step_traces: bool
) -> None:
    """In each step, for each name: number, duration and errors of its spans and of its folded ranges."""
    random = Random(seed)
    names = random.choice([3, 9, 40])
    recorded: list[Range] = []
    pipeline = start(spans=True, step_traces=step_traces, span_budget=random.randint(1, 12))
    with ranges.listen(ended=recorded.append):
        for step in range(STEPS):
            monitel.set_step(step)
            thread = Thread(target=nest, args=[Random(seed + step), clock, names])
            nest(random, clock, names)
            thread.start()
            thread.join(DEADLINE)
    assert pipeline.shutdown()
    for step in range(STEPS):
        of_step = [span for span in receiver.spans() if span.attributes["training.step"] == step]
        kept = [span for span in of_step if span.name.startswith("op ")]
        truth = [each for each in recorded if each.step == step]
        left = Counter(each.name for each in truth) - Counter(span.name for span in kept)
        left_ns = durations(truth) - durations(kept)
        errors = sum(each.error_type is not None for each in truth) - sum(span.status == ERROR for span in kept)
        folds = [span for span in of_step if span.name == "monitel.folded"]
        assert len(folds) == bool(left)
        for fold in folds:
            own = fold.attributes
            assert (left.total(), left_ns.total() / 1e9) == (own["monitel.folded.count"], own["monitel.folded.seconds"])
            assert errors == own.get("monitel.folded.errors", 0)
            longest = sorted(left_ns.values(), reverse=True)[:10]
            named = dict(zip(own["monitel.folded.names"], own["monitel.folded.name_counts"], strict=True))
            seconds = dict(zip(own["monitel.folded.names"], own["monitel.folded.name_seconds"], strict=True))
            assert [each / 1e9 for each in longest] == own["monitel.folded.name_seconds"]
            assert {name: left[name] for name in named} == named
            assert {name: left_ns[name] / 1e9 for name in seconds} == seconds
            assert fold.start_ns >= min(each.start_ns for each in truth)
            assert fold.end_ns <= max(each.end_ns or 0 for each in truth)


def test_folded_span_is_small_with_many_names(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """The ten names with the longest total duration are listed; the others are in the totals."""
    pipeline = start(spans=True, span_budget=1)
    monitel.set_step(1)
    with record_function("kept"):
        for number in range(1, 1001):
            with record_function(f"layer {number}"):
                clock.advance(number / 1000)
    assert pipeline.shutdown()
    found = receiver.span("monitel.folded").attributes
    assert (1000, 500.5) == (found["monitel.folded.count"], found["monitel.folded.seconds"])
    assert [f"layer {number}" for number in range(1000, 990, -1)] == found["monitel.folded.names"]
    assert [1] * 10 == found["monitel.folded.name_counts"]
    assert [number / 1000 for number in range(1000, 990, -1)] == found["monitel.folded.name_seconds"]
    (fold,) = [
        span
        for request in receiver.of("traces")
        for span in request.message.resource_spans[0].scope_spans[0].spans
        if span.name == "monitel.folded"
    ]
    assert fold.ByteSize() < 800


def test_names_after_the_first_thousand_share_a_sum(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Their ranges are in the totals, and their names, however long the ranges last, are not kept in memory."""
    pipeline = start(spans=True, span_budget=1)
    monitel.set_step(1)
    with record_function("kept"):
        for number in range(1, 3001):
            with suppress(ValueError), record_function(f"item {number}"):
                clock.advance(number / 1000)
                raise ValueError
    assert pipeline.shutdown()
    found = receiver.span("monitel.folded").attributes
    assert (3000, 4501.5) == (found["monitel.folded.count"], found["monitel.folded.seconds"])
    assert 3000 == found["monitel.folded.errors"]
    assert [f"item {number}" for number in range(1000, 990, -1)] == found["monitel.folded.names"]


def test_any_name_can_be_in_a_folded_span(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """A name that UTF-8 cannot encode is escaped, and a long one is cut off; the span arrives in any case."""
    pipeline = start(spans=True, span_budget=1)
    monitel.set_step(1)
    with record_function("kept"):
        for name in ("", "lone \ud800", "long " * 1000):
            with record_function(name):
                clock.advance(1.0)
    assert pipeline.shutdown()
    found = receiver.span("monitel.folded").attributes
    assert (3, 3.0) == (found["monitel.folded.count"], found["monitel.folded.seconds"])
    assert ["", "lone \\ud800", "long " * 20] == found["monitel.folded.names"]
