"""Sampling of steps and the budget of spans: further ranges are folded into one span."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from tests.support.inbox import DEADLINE

import monitel
from monitel.profiler import record_function

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel.testing import ManualClock


def test_ranges_beyond_the_budget_are_folded_into_one_span(
    receiver: Receiver, start: Start, clock: ManualClock
) -> None:
    """The fold has their number, duration and names, and is exported in the trace of the step when the step is over."""
    pipeline = start(spans=True, span_budget=2)
    for step in range(2):
        monitel.set_step(step)
        with record_function("step"):
            clock.advance(1)
            for name in ("load", "forward", "backward", "backward"):
                with record_function(name):
                    clock.advance(2)
                clock.advance(1)
    assert pipeline.force_flush(DEADLINE)
    monitel.set_step(2)
    assert pipeline.force_flush(DEADLINE)
    spans = receiver.spans()
    assert 6 == len(spans)
    folded = {span.attributes["training.step"]: span for span in spans if span.name == "monitel.folded"}
    steps = {span.attributes["training.step"]: span for span in spans if span.name == "step"}
    assert {0, 1} == folded.keys() == steps.keys()
    for step, fold in folded.items():
        assert (3, 6.0) == (fold.attributes["monitel.folded.count"], fold.attributes["monitel.folded.seconds"])
        assert ["backward", "forward"] == fold.attributes["monitel.folded.names"]
        whole = steps[step]
        assert (whole.trace_id, whole.span_id) == (fold.trace_id, fold.parent_id)
        assert (4, 12) == ((fold.start_ns - whole.start_ns) // 10**9, (fold.end_ns - whole.start_ns) // 10**9)


def test_parent_of_a_range_inside_a_folded_one_is_the_nearest_exported_range(receiver: Receiver, start: Start) -> None:
    """The inner range belongs to the next step, which has a separate budget."""
    pipeline = start(spans=True, span_budget=1)
    monitel.set_step(1)
    with record_function("kept"), record_function("folded"):
        monitel.emit("in folded")
        monitel.set_step(2)
        with record_function("next"):
            pass
    assert pipeline.shutdown()
    assert {"kept": "", "next": "kept", "monitel.folded": "kept"} == receiver.parents()
    assert receiver.span("kept").span_id == receiver.records("in folded")[0].span_id


def test_folded_ranges_of_several_threads_are_counted_exactly(receiver: Receiver, start: Start) -> None:
    """Each range is exported or counted once."""
    pipeline = start(spans=True, span_budget=10)
    monitel.set_step(1)

    def work() -> None:
        for _ in range(2000):
            with record_function("op"):
                pass

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    pipeline.shutdown()
    kept = len(receiver.spans()) - 1
    assert 8000 == kept + receiver.span("monitel.folded").attributes["monitel.folded.count"]
    assert 10 <= kept < 20


def test_budget_applies_to_five_seconds_without_steps(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """A job that never sets a step has a new budget every five seconds."""
    pipeline = start(spans=True, span_budget=1)
    for _ in range(2):
        for _ in range(3):
            with record_function("op"):
                pass
        clock.advance(6)
    assert pipeline.force_flush(DEADLINE)
    assert 2 == sum(span.name == "op" for span in receiver.spans())
    folds = [span for span in receiver.spans() if span.name == "monitel.folded"]
    assert [2, 2] == [fold.attributes["monitel.folded.count"] for fold in folds]


def test_span_steps_exports_one_step_in_three(receiver: Receiver, start: Start) -> None:
    """Ranges before the first step are exported too; a parent that is not exported is skipped."""
    pipeline = start(spans=True, span_steps=3)
    with record_function("setup"):
        monitel.set_step(1)
        with record_function("epoch"):
            for step in range(1, 8):
                monitel.set_step(step)
                with record_function(f"step {step}"):
                    pass
    assert pipeline.force_flush(DEADLINE)
    assert {"setup": "", "step 3": "setup", "step 6": "setup"} == receiver.parents()


def test_unfinished_folded_and_unsampled_ranges_at_shutdown(receiver: Receiver, start: Start) -> None:
    """An unfinished range beyond the budget is in the fold, an unsampled one is not exported, and none is dropped."""
    pipeline = start(spans=True, span_budget=1)
    unsampled = SpanContext(0xA1, 0xB2, is_remote=True, trace_flags=TraceFlags(0))
    refused = trace.use_span(NonRecordingSpan(unsampled))
    with record_function("step"), record_function("folded"), refused, record_function("unsampled"):
        pipeline.shutdown()
    assert {"step": "", "monitel.folded": "step"} == receiver.parents()
    fold = receiver.span("monitel.folded")
    assert (1, ["folded"]) == (fold.attributes["monitel.folded.count"], fold.attributes["monitel.folded.names"])
    assert fold.start_ns < fold.end_ns
    assert {} == pipeline.dropped
