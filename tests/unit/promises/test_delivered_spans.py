"""Ranges as spans at a receiver: mapping, parents, sampling, budgets and folds."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from functools import partial
from threading import get_native_id
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from tests.support.checks import Warned
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, delivered_by
from tests.support.producers import record_ranges, run_together
from tests.support.receiver import Receiver
from tests.unit.promises.reference_tables import code, table

import monitel
from monitel.profiler import record_function
from monitel.testing import ManualClock

INTERNAL, ERROR = 1, 2
FOLDED = "monitel.folded"


# The mapping


def test_range_becomes_the_documented_span(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Name, times to the nanosecond, arguments, step at the start, thread; the kind is internal."""
    with delivered_by(start(spans=True)):
        clock.advance(2.000000123)
        began_ns = clock.time_ns()
        monitel.set_step(7)
        arguments = {"batch": 32, "ok": True, "lr": 0.5, "name": "x", "shape": (2, 3), "mixed": [1, 2.5]}
        with record_function("forward", arguments), record_function("text", "details"):
            monitel.set_step(8)
            clock.advance(60)
    span, inner = receiver.span("forward"), receiver.span("text")
    assert (began_ns, began_ns + 60 * 10**9) == (span.start_ns, span.end_ns)
    usual = {"thread.id": get_native_id(), "thread.name": "MainThread", "training.step": 7}
    assert {**arguments, "shape": [2, 3], "mixed": [1.0, 2.5], **usual} == span.attributes
    assert {"args": "details", **usual} == inner.attributes
    assert (INTERNAL, "", "monitel", 0) == (span.kind, span.parent_id, span.scope, span.status)
    documented = [word for row in table("ranges.md", "range", "span") for word in code(row[1])]
    assert {"args", "error.type", *usual} <= {*documented}


def test_value_of_a_wrong_type_is_left_out(receiver: Receiver, start: Start, warned: Warned) -> None:
    """One warning for each range name; text that is not UTF-8 is escaped, also in names."""
    with delivered_by(start(spans=True)):
        given = {"good": 1, "bad": object(), "none": None, "mixed": [1, "a"], "key": "\udc80", "thread.id": 3}
        for _ in range(2):
            record_ranges("op \udc80", args=given)
    expected = {"good": 1, "key": "\\udc80", "thread.id": get_native_id(), "thread.name": "MainThread"}
    assert [("op \\udc80", expected)] * 2 == [(span.name, span.attributes) for span in receiver.spans()]
    assert 1 == len(warned("cannot be an attribute"))


def test_spans_nest_as_ranges_do(receiver: Receiver, start: Start) -> None:
    """Each outermost range starts a trace, those of another thread, too. Parents of ranges: test_ranges."""
    pipeline = start(spans=True)
    with record_function("step"):
        with record_function("forward"):
            record_ranges("inner")
        run_together(partial(record_ranges, "load"))
    record_ranges("save")
    assert pipeline.force_flush(DEADLINE)
    assert {"step": "", "forward": "step", "inner": "forward", "load": "", "save": ""} == receiver.parents()
    assert 3 == len({span.trace_id for span in receiver.spans()})
    threads = {span.name: span.attributes["thread.id"] for span in receiver.spans()}
    assert threads["inner"] == threads["step"] == get_native_id() != threads["load"]


def test_exception_marks_each_range_that_it_leaves(receiver: Receiver, start: Start) -> None:
    """Status Error and ``error.type``, up to the range that catches it; Ctrl-C and exits are not errors."""
    with delivered_by(start(spans=True)):
        step = record_function("step", {"error.type": "mine"})
        with record_function("retry"), suppress(KeyError), step, record_function("forward"):
            raise KeyError
        for error in (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            with suppress(error), record_function(error.__name__):
                raise error
        record_ranges("after", args={"error.type": "mine"})
    fine = dict.fromkeys(("KeyboardInterrupt", "SystemExit", "CancelledError", "retry"), (0, None))
    failed = dict.fromkeys(("forward", "step"), (ERROR, "KeyError"))
    found = {span.name: (span.status, span.attributes.get("error.type")) for span in receiver.spans()}
    assert {**fine, **failed, "after": (0, "mine")} == found


def test_unfinished_ranges_end_with_the_pipeline(receiver: Receiver, start: Start) -> None:
    """Their spans have ``monitel.unfinished``, so that a trace shows the range in which a job hung; later ones none."""
    first, pipeline = start(spans=True), start(spans={"budget": 3})
    with record_function("step"):
        record_ranges("forward")
        with record_function("all_reduce"), record_function("folded"):
            assert pipeline.shutdown(DEADLINE)
    record_ranges("late")
    assert {"step": "", "forward": "step", "all_reduce": "step", FOLDED: "step"} == receiver.parents()
    unfinished = {each.name for each in receiver.spans() if each.attributes.get("monitel.unfinished")}
    assert ({"step", "all_reduce"}, {}) == (unfinished, first.dropped)
    assert ["folded"] == receiver.span(FOLDED).attributes["monitel.folded.names"]


def test_ids_do_not_use_the_random_numbers_of_the_program(receiver: Receiver, start: Start) -> None:
    """A seeded program draws the same numbers, and programs with the same seed have different ids."""
    pipeline = start(spans=True)
    drawn = []
    for _ in range(2):
        random.seed(42)
        record_ranges("step")
        drawn.append(random.random())
    random.seed(42)
    assert [random.random()] * 2 == drawn
    assert pipeline.force_flush(DEADLINE)
    assert 2 == len({span.span_id for span in receiver.spans()}) == len({span.trace_id for span in receiver.spans()})


# Sampling


@pytest.mark.parametrize("sampled", [True, False])
def test_remote_parent_decides_about_sampling(receiver: Receiver, start: Start, sampled: bool) -> None:
    """In a trace that is not sampled no range is exported; its events have the ids of the remote parent."""
    with delivered_by(start(spans=True)) as pipeline:
        remote = SpanContext(0xA1, 0xB2, is_remote=True, trace_flags=TraceFlags(int(sampled)))
        with trace.use_span(NonRecordingSpan(remote)), record_function("step"), record_function("forward"):
            monitel.emit("inside")
    assert (["forward", "step"] if sampled else []) == [span.name for span in receiver.spans()]
    (record,) = receiver.records("inside")
    assert (f"{0xA1:032x}", int(sampled)) == (record.trace_id, record.proto.flags)
    if sampled:
        step, forward = receiver.span("step"), receiver.span("forward")
        assert (f"{0xA1:032x}", f"{0xB2:016x}", 0x300) == (step.trace_id, step.parent_id, step.flags)
        assert (step.span_id, 0x100, forward.span_id) == (forward.parent_id, forward.flags, record.span_id)
    assert {} == pipeline.dropped


def test_steps_of_three_export_every_third_step(receiver: Receiver, start: Start) -> None:
    """And ranges before the first step; the parent is the next exported range further out."""
    with delivered_by(start(spans={"steps": 3})) as pipeline, record_function("setup"):
        monitel.set_step(1)
        with record_function("epoch"):
            for step in range(8):
                monitel.set_step(step)
                record_ranges(f"step {step}")
    assert {"setup": "", "step 0": "setup", "step 3": "setup", "step 6": "setup"} == receiver.parents()
    assert 4 == pipeline.account()["traces"].recorded


# The budget


def test_ranges_beyond_the_budget_are_one_span(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Its attributes are documented; it lasts from the first start to the last end, and is sent after the step."""
    pipeline = start(spans={"budget": 3})
    for step in range(2):
        monitel.set_step(step)
        with record_function("step"):
            clock.advance(1)
            for name in ("load", "forward", "backward", "backward"):
                with suppress(ValueError), record_function(name):
                    clock.advance(1)
                    with record_function(name):
                        clock.advance(1)
                        if name != "load":
                            raise ValueError
                clock.advance(1)
        assert pipeline.force_flush(DEADLINE)
    assert 6 == pipeline.account()["traces"].waiting  # the folded ranges of the present step
    monitel.set_step(2)
    for _ in range(2):
        assert pipeline.force_flush(DEADLINE)
    folds = [span for span in receiver.spans() if span.name == FOLDED]
    steps = [span for span in receiver.spans() if span.name == "step"]
    assert (2, 2, 8) == (len(folds), len(steps), len(receiver.spans()))
    values: dict[str, Any] = {"count": 6, "seconds": 9.0, "names": ["backward", "forward"], "name_counts": [4, 2]}
    values |= {"name_seconds": [6.0, 3.0], "errors": 6}
    for step, fold, whole in zip(range(2), folds, steps, strict=True):
        assert {f"{FOLDED}.{key}": value for key, value in values.items()} | {"training.step": step} == fold.attributes
        assert (whole.trace_id, whole.span_id) == (fold.trace_id, fold.parent_id)
        assert (4, 12) == ((fold.start_ns - whole.start_ns) // 10**9, (fold.end_ns - whole.start_ns) // 10**9)
    documented = {code(row[0])[0] for row in table("ranges.md", "attribute of `monitel.folded`")}
    assert documented == {*folds[0].attributes}
    account = pipeline.account()["traces"]
    assert (18, 6, 12, 0) == (account.recorded, account.delivered, account.folded, account.waiting)
    assert 2 == account.synthetic  # folds count apart


def test_folded_span_names_the_ten_longest(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Cut off after 100 characters; names after the first 1,000 are only in the totals."""
    pipeline = start(spans={"budget": 1})
    monitel.set_step(1)
    tracer = pipeline.tracer_provider.get_tracer("mine")
    with tracer.start_as_current_span("job"), record_function("kept"):
        for number in range(1, 1201):
            with record_function(f"{number} \ud800 {'x' * 200}"):
                clock.advance(number / 1000)
    assert pipeline.shutdown(DEADLINE)
    assert {"job": "", "kept": "job", FOLDED: "job"} == receiver.parents()  # its parent is that of the first span
    found = receiver.span(FOLDED).attributes
    assert 1200 == found[f"{FOLDED}.count"]
    assert found[f"{FOLDED}.seconds"] == pytest.approx(720.6)
    longest = range(1000, 990, -1)
    cut = [f"{number} \ud800 {'x' * 200}"[:100].replace("\ud800", "\\ud800") for number in longest]
    assert (cut, [number / 1000 for number in longest]) == (found[f"{FOLDED}.names"], found[f"{FOLDED}.name_seconds"])


def test_without_steps_the_budget_applies_to_five_seconds(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    with delivered_by(start(spans={"budget": 1})):
        for _ in range(2):
            record_ranges("op", "op")
            clock.advance(4.9)
            record_ranges("op")
            clock.advance(1.1)
    assert {"op": 2, FOLDED: 2} == Counter(span.name for span in receiver.spans())
    folds = [span.attributes for span in receiver.spans() if span.name == FOLDED]
    assert [2, 2] == [fold["monitel.folded.count"] for fold in folds]
