"""Ranges as spans: decoded, with the right parents and times, from all threads and tasks, also after an outage."""

from __future__ import annotations

import asyncio
import logging
import random
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import monitel
import monitel_otlp
from monitel.profiler import ranges, record_function
from monitel_otlp import pipeline as pipeline_module

from .inbox import DEADLINE, Answer, Span
from .spools import folders

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.profiler.ranges import Range
    from monitel.testing import ManualClock

    from .conftest import Run, Start
    from .receiver import Receiver

INTERNAL = 1


def span_of(receiver: Receiver, name: str) -> Span:
    """The one span of this name."""
    (found,) = [span for span in receiver.spans() if span.name == name]
    return found


def parents(receiver: Receiver) -> dict[str, str]:
    """The name of each span's parent, by its own name; "" where there is none, or none was received."""
    spans = receiver.spans()
    names = {span.span_id: span.name for span in spans}
    assert len(spans) == len(names)
    return {span.name: names.get(span.parent_id, "") for span in spans}


def test_a_range_is_a_span(receiver: Receiver, start: Start) -> None:
    """With its times to the nanosecond, its step, thread and arguments, by the scope ``monitel``."""
    pipeline = start(spans=True, service_name="trainer")
    heard: list[Range] = []
    monitel.set_step(7)
    with ranges.listen(ended=heard.append), record_function("forward", {"batch": 32, "shape": (2, 3)}):
        monitel.set_step(8)
    assert pipeline.force_flush(DEADLINE)
    (span,) = receiver.spans()
    assert ("forward", heard[0].start_ns, heard[0].end_ns) == (span.name, span.start_ns, span.end_ns)
    assert {
        "training.step": 7,
        "thread.id": heard[0].track.thread_id,
        "thread.name": "MainThread",
        "batch": 32,
        "shape": [2, 3],
    } == span.attributes
    assert (INTERNAL, "", "monitel", "trainer") == (
        span.kind,
        span.parent_id,
        span.scope,
        span.resource["service.name"],
    )
    assert (32, 16) == (len(span.trace_id), len(span.span_id))


def test_ranges_are_no_spans_unless_asked_for(receiver: Receiver, start: Start) -> None:
    """Nobody listens, so that they cost next to nothing."""
    pipeline = start()
    with record_function("forward"):
        assert ranges.current_range() is None
    assert pipeline.force_flush(DEADLINE)
    assert [] == receiver.spans()


def test_times_are_those_of_the_clock(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """A range of a minute is a span of a minute, and begins when the range began."""
    pipeline = start(spans=True)
    before = clock.time_ns()
    clock.advance(2)
    with record_function("epoch"):
        clock.advance(60)
    assert pipeline.force_flush(DEADLINE)
    (span,) = receiver.spans()
    assert (2 * 10**9, 60 * 10**9) == (span.start_ns - before, span.end_ns - span.start_ns)


def test_spans_nest_as_ranges_do(receiver: Receiver, start: Start) -> None:
    """One trace for each outermost range."""
    pipeline = start(spans=True)
    with record_function("step"):
        with record_function("forward"), record_function("attention"):
            pass
        with record_function("backward"):
            pass
    with record_function("save"):
        pass
    assert pipeline.force_flush(DEADLINE)
    expected = {"step": "", "forward": "step", "attention": "forward", "backward": "step", "save": ""}
    assert expected == parents(receiver)
    traces = {span.name: span.trace_id for span in receiver.spans()}
    assert 1 == len({traces[name] for name in ("step", "forward", "attention", "backward")})
    assert traces["step"] != traces["save"]


def test_each_thread_has_its_own_parents(receiver: Receiver, start: Start) -> None:
    """Ranges that run at the same time in two threads are not in each other."""
    pipeline = start(spans=True)
    together = Barrier(2)

    def work(name: str) -> None:
        with record_function(name):
            together.wait(DEADLINE)
            with record_function(f"{name}.inner"):
                together.wait(DEADLINE)

    threads = [Thread(target=work, args=[name], name=name) for name in ("load", "eval")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert pipeline.force_flush(DEADLINE)
    assert {"load": "", "load.inner": "load", "eval": "", "eval.inner": "eval"} == parents(receiver)
    assert {"load", "eval"} == {span.attributes["thread.name"] for span in receiver.spans()}
    assert 2 == len({span.attributes["thread.id"] for span in receiver.spans()})


def test_tasks_that_take_turns_have_their_own_parents(receiver: Receiver, start: Start) -> None:
    """Each task's ranges are in its own, and the outermost in what was open when the task was made."""
    pipeline = start(spans=True)

    async def work(name: str) -> None:
        with record_function(name):
            await asyncio.sleep(0)
            with record_function(f"{name}.inner"):
                await asyncio.sleep(0)

    async def main() -> None:
        with record_function("gather"):
            await asyncio.gather(work("a"), work("b"))

    asyncio.run(main())
    assert pipeline.force_flush(DEADLINE)
    assert {"gather": "", "a": "gather", "b": "gather", "a.inner": "a", "b.inner": "b"} == parents(receiver)


def test_a_range_in_a_span_of_the_callers_own_is_its_child(receiver: Receiver, start: Start) -> None:
    """The innermost of the two is the parent; nothing is attached to the caller's context."""
    pipeline = start(spans=True)
    tracer = pipeline.tracer_provider.get_tracer("mine")
    with tracer.start_as_current_span("request"), record_function("step"):
        with record_function("forward"):
            pass
        with tracer.start_as_current_span("call") as call, record_function("in call"):
            assert call is trace.get_current_span()
        with record_function("backward"):
            pass
    assert pipeline.force_flush(DEADLINE)
    expected = {"request": "", "step": "request", "forward": "step", "call": "request", "in call": "call"}
    assert {**expected, "backward": "step"} == parents(receiver)
    assert 1 == len({span.trace_id for span in receiver.spans()})


@pytest.mark.parametrize("sampled", [True, False])
def test_a_remote_parent_says_whether_it_is_sampled(receiver: Receiver, start: Start, sampled: bool) -> None:
    """In a trace that is not sampled no range is exported, however deep; the budget stays whole."""
    pipeline = start(spans=True, span_budget=2)
    context = SpanContext(0xA1, 0xB2, is_remote=True, trace_flags=TraceFlags(int(sampled)))
    with trace.use_span(NonRecordingSpan(context)), record_function("step"), record_function("forward"):
        monitel.emit("inside")
    assert pipeline.force_flush(DEADLINE)
    assert (["forward", "step"] if sampled else []) == [span.name for span in receiver.spans()]
    (record,) = receiver.records("inside")
    assert f"{0xA1:032x}" == record.trace_id
    if sampled:
        step, forward = span_of(receiver, "step"), span_of(receiver, "forward")
        assert (f"{0xA1:032x}", f"{0xB2:016x}", 0x300) == (step.trace_id, step.parent_id, step.flags)
        assert (step.span_id, 0x100, forward.span_id) == (forward.parent_id, forward.flags, record.span_id)


@pytest.mark.parametrize(("sampler", "expected"), [("always_off", set()), ("always_on", {"step", "forward"})])
def test_the_sampler_decides_about_new_traces(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, sampler: str, expected: set[str]
) -> None:
    """OTEL_TRACES_SAMPLER, as the SDK reads it."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    pipeline = start(spans=True)
    with record_function("step"), record_function("forward"):
        pass
    assert pipeline.force_flush(DEADLINE)
    assert expected == {span.name for span in receiver.spans()}


def test_what_is_logged_in_a_range_carries_its_ids(receiver: Receiver, start: Start) -> None:
    """Events and records of Python's logging; those in a span of the caller's own carry that one's."""
    pipeline = start(spans=True, logging_level="WARNING")
    tracer = pipeline.tracer_provider.get_tracer("mine")
    log = logging.getLogger("train")
    with record_function("step"):
        monitel.emit("in step")
        log.warning("in step")
        with record_function("forward"):
            monitel.emit("in forward")
        with tracer.start_as_current_span("own"):
            monitel.emit("in own")
    monitel.emit("outside")
    assert pipeline.force_flush(DEADLINE)
    ids = {span.name: (span.trace_id, span.span_id) for span in receiver.spans()}
    found = {record.name or record.body: (record.trace_id, record.span_id) for record in receiver.records()}
    expected = {f"in {name}": each for name, each in ids.items()}
    assert {**expected, "outside": ("", "")} == found
    assert [ids["step"]] == [(each.trace_id, each.span_id) for each in receiver.records() if each.scope == "train"]


def test_an_event_that_outlives_its_range_carries_its_ids(receiver: Receiver, start: Start) -> None:
    """Both were queued; the event is encoded first."""
    pipeline = start(spans=True)
    with record_function("step"):
        monitel.emit("inside")
    assert pipeline.force_flush(DEADLINE)
    (record,), (span,) = receiver.records(), receiver.spans()
    assert (span.trace_id, span.span_id) == (record.trace_id, record.span_id)


def test_arguments_become_attributes_as_far_as_they_can(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """As they are when the range ends; what the protocol cannot hold is left out, and said once a name."""
    pipeline = start(spans=True)
    args: dict[str, Any] = {"size": 2**70, "ok": True, "mixed": [1, 2.5], "names": ["a", "b"], "none": None}
    args |= {"bad": object(), "thread.id": 3, "surrogate": "\udc80", "odd": [1, "a"], "": 1}
    for number in range(2):
        with record_function("op", args):
            args["number"] = number
    args["number"] = 99
    with record_function("op", "text"), record_function("\udc80"):
        pass
    assert pipeline.force_flush(DEADLINE)
    first, second, odd, text = receiver.spans()
    expected = {"size": str(2**70), "ok": True, "mixed": [1.0, 2.5], "names": ["a", "b"], "surrogate": "\\udc80"}
    for number, span in enumerate((first, second)):
        attributes = {key: value for key, value in span.attributes.items() if not key.startswith("thread.")}
        assert {**expected, "number": number} == attributes
        assert 3 != span.attributes["thread.id"]
    assert ("text", "\\udc80") == (text.attributes["args"], odd.name)
    assert 1 == sum("cannot be an attribute" in record.getMessage() for record in caplog.records)


def test_what_is_beyond_the_budget_of_a_step_is_one_span(
    receiver: Receiver, start: Start, clock: ManualClock
) -> None:
    """It says how many and how long, in the trace of the step, once the step is over; its children are elsewhere."""
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


def test_a_range_in_a_folded_one_is_in_the_nearest_that_is_not(receiver: Receiver, start: Start) -> None:
    """One that goes on in the next step, which has a budget of its own."""
    pipeline = start(spans=True, span_budget=1)
    monitel.set_step(1)
    with record_function("kept"), record_function("folded"):
        monitel.emit("in folded")
        monitel.set_step(2)
        with record_function("next"):
            pass
    assert pipeline.shutdown()
    assert {"kept": "", "next": "kept", "monitel.folded": "kept"} == parents(receiver)
    assert span_of(receiver, "kept").span_id == receiver.records("in folded")[0].span_id


def test_what_is_folded_by_several_threads_is_counted_exactly(receiver: Receiver, start: Start) -> None:
    """No range is lost or counted twice."""
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
    assert 8000 == kept + span_of(receiver, "monitel.folded").attributes["monitel.folded.count"]
    assert 10 <= kept < 20


def test_without_steps_the_budget_is_for_five_seconds(
    receiver: Receiver, start: Start, clock: ManualClock
) -> None:
    """A job that never says its step does not end up with one span for all."""
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


def test_one_step_in_so_many_is_exported(receiver: Receiver, start: Start) -> None:
    """Those that the number divides, and what begins before the first step; a parent that is left out is skipped."""
    pipeline = start(spans=True, span_steps=3)
    with record_function("setup"):
        monitel.set_step(1)
        with record_function("epoch"):
            for step in range(1, 8):
                monitel.set_step(step)
                with record_function(f"step {step}"):
                    pass
    assert pipeline.force_flush(DEADLINE)
    assert {"setup": "", "step 3": "setup", "step 6": "setup"} == parents(receiver)


def test_the_users_random_numbers_are_left_alone(receiver: Receiver, start: Start) -> None:
    """A seeded run draws the same numbers, and two that are seeded alike have different ids."""
    pipeline = start(spans=True)
    drawn = []
    for _ in range(2):
        random.seed(42)
        with record_function("step"):
            pass
        drawn.append(random.random())
    random.seed(42)
    assert [random.random()] * 2 == drawn
    assert pipeline.force_flush(DEADLINE)
    assert 2 == len({span.span_id for span in receiver.spans()}) == len({span.trace_id for span in receiver.spans()})


def test_an_outage_loses_nothing(receiver: Receiver, start: Start) -> None:
    """Requests are kept and sent when the backend is back, in order, each once."""
    receiver.rule(lambda _request: Answer(status=503))
    pipeline = start(spans=True, span_budget=10_000)
    for number in range(1200):
        with record_function(f"op {number}"):
            pass
    assert not pipeline.force_flush(0.5)
    receiver.forget_rules()
    assert pipeline.force_flush(DEADLINE)
    assert [f"op {number}" for number in range(1200)] == [span.name for span in receiver.spans()]
    assert {} == pipeline.dropped
    assert pipeline.force_flush(DEADLINE)
    exported = {each.attributes["signal"]: each.value for each in receiver.points("monitel.exporter.item.exported")}
    assert 1200 == exported["traces"]


def test_what_was_not_delivered_at_the_end_can_be_replayed(
    receiver: Receiver, start: Start, run: Run, tmp_path: Path
) -> None:
    """Nobody answers, and the spool has it: the same spans, at the same times."""
    pipeline = start(endpoint="http://127.0.0.1:9", spans=True)
    heard: list[Range] = []
    with ranges.listen(ended=heard.append), record_function("step"), record_function("forward"):
        pass
    assert not pipeline.shutdown()
    (folder,) = folders(tmp_path / "spool")
    run("-m", "monitel_otlp", "replay", folder, "--endpoint", receiver.url)
    assert {"step": "", "forward": "step"} == parents(receiver)
    assert [each.start_ns for each in heard] == [span.start_ns for span in receiver.spans()]


def test_a_full_queue_drops_the_oldest_and_counts_them(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``queue_full``, of the signal ``traces``."""
    monkeypatch.setattr(pipeline_module, "LIMIT", 10)
    pipeline = start(spans=True)
    engine = pipeline.engine
    assert engine is not None
    with engine.encoder._encoding:  # the encoder is busy
        for number in range(25):
            with record_function(f"op {number}"):
                pass
    assert not pipeline.force_flush(DEADLINE)
    assert [f"op {number}" for number in range(15, 25)] == [span.name for span in receiver.spans()]
    assert {"queue_full": 15} == pipeline.dropped


def test_what_still_runs_at_the_end_says_so(receiver: Receiver, start: Start) -> None:
    """A job that is stopped in the middle of a step shows in what."""
    pipeline = start(spans=True)
    with record_function("step"):
        with record_function("forward"):
            pass
        with record_function("all_reduce"):
            pipeline.shutdown()
    assert {"step": "", "forward": "step", "all_reduce": "step"} == parents(receiver)
    unfinished = {span.name for span in receiver.spans() if span.attributes.get("monitel.unfinished")}
    assert {"step", "all_reduce"} == unfinished
    assert all(span.start_ns <= span.end_ns for span in receiver.spans())


def test_what_is_no_span_of_its_own_may_run_at_the_end_too(receiver: Receiver, start: Start) -> None:
    """What is beyond the budget is in the fold, what is not sampled is nowhere, and nothing is dropped."""
    pipeline = start(spans=True, span_budget=1)
    unsampled = SpanContext(0xA1, 0xB2, is_remote=True, trace_flags=TraceFlags(0))
    refused = trace.use_span(NonRecordingSpan(unsampled))
    with record_function("step"), record_function("folded"), refused, record_function("unsampled"):
        pipeline.shutdown()
    assert {"step": "", "monitel.folded": "step"} == parents(receiver)
    fold = span_of(receiver, "monitel.folded")
    assert (1, ["folded"]) == (fold.attributes["monitel.folded.count"], fold.attributes["monitel.folded.names"])
    assert fold.start_ns < fold.end_ns
    assert {} == pipeline.dropped


def test_ranges_of_a_pipeline_that_has_ended_go_nowhere(receiver: Receiver, start: Start) -> None:
    """The second ``configure()`` listens alone."""
    start(spans=True)
    pipeline = start(spans=True)
    with record_function("step"):
        pass
    assert pipeline.shutdown()
    assert ["step"] == [span.name for span in receiver.spans()]
    with record_function("late"):
        assert ranges.current_range() is None


def test_the_callers_own_provider_and_ours_make_one_trace(receiver: Receiver, start: Start) -> None:
    """A span of any TracerProvider is a parent: it is the context that counts."""
    pipeline = start(spans=True)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("mine")
    with tracer.start_as_current_span("request") as request, record_function("step"):
        pass
    assert pipeline.force_flush(DEADLINE)
    (span,) = receiver.spans()
    assert f"{request.get_span_context().span_id:016x}" == span.parent_id


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"spans": 1}, TypeError, "spans must be True or False, got 1"),
        ({"spans": True, "span_budget": 0}, ValueError, "span_budget must be at least 1, got 0"),
        ({"spans": True, "span_steps": 1.5}, TypeError, "span_steps must be an int, got float"),
        ({"step_traces": True, "span_steps": True}, TypeError, "span_steps must be an int, got bool"),
    ],
)
def test_misuse_is_said_at_once(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    """What was given, and what is allowed; the pipeline before goes on."""
    with pytest.raises(error, match=says):
        monitel_otlp.configure(**arguments)
