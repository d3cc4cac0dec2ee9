"""Ranges as spans: names, times, parents, attributes, sampling and budgets."""

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
from tests.support.inbox import DEADLINE, Answer
from tests.support.pipelines import busy_encoder
from tests.support.spools import folders

import monitel
import monitel_otlp
from monitel.profiler import ranges, record_function
from monitel_otlp import pipeline as pipeline_module

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver
    from tests.support.scripts import Run

    from monitel.profiler.ranges import Range
    from monitel.testing import ManualClock

INTERNAL = 1


def test_range_becomes_a_span(receiver: Receiver, start: Start) -> None:
    """The span has the times of the range in ns, its step, thread and arguments, and the scope ``monitel``."""
    pipeline = start(spans=True, service_name="trainer")
    ended: list[Range] = []
    monitel.set_step(7)
    with ranges.listen(ended=ended.append), record_function("forward", {"batch": 32, "shape": (2, 3)}):
        monitel.set_step(8)
    assert pipeline.force_flush(DEADLINE)
    (span,) = receiver.spans()
    assert ("forward", ended[0].start_ns, ended[0].end_ns) == (span.name, span.start_ns, span.end_ns)
    assert {
        "training.step": 7,
        "thread.id": ended[0].track.thread_id,
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


def test_ranges_are_not_exported_by_default(receiver: Receiver, start: Start) -> None:
    """Without a listener ranges cost almost no time."""
    pipeline = start()
    with record_function("forward"):
        assert ranges.current_range() is None
    assert pipeline.force_flush(DEADLINE)
    assert [] == receiver.spans()


def test_times_of_spans_match_the_clock(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """A range of a minute is a span of a minute with the same start."""
    pipeline = start(spans=True)
    before = clock.time_ns()
    clock.advance(2)
    with record_function("epoch"):
        clock.advance(60)
    assert pipeline.force_flush(DEADLINE)
    (span,) = receiver.spans()
    assert (2 * 10**9, 60 * 10**9) == (span.start_ns - before, span.end_ns - span.start_ns)


def test_spans_nest_as_ranges_do(receiver: Receiver, start: Start) -> None:
    """Each outermost range starts a trace."""
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
    assert expected == receiver.parents()
    traces = {span.name: span.trace_id for span in receiver.spans()}
    assert 1 == len({traces[name] for name in ("step", "forward", "attention", "backward")})
    assert traces["step"] != traces["save"]


def test_threads_have_separate_parents(receiver: Receiver, start: Start) -> None:
    """Ranges that run concurrently in two threads are not nested."""
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
    assert {"load": "", "load.inner": "load", "eval": "", "eval.inner": "eval"} == receiver.parents()
    assert {"load", "eval"} == {span.attributes["thread.name"] for span in receiver.spans()}
    assert 2 == len({span.attributes["thread.id"] for span in receiver.spans()})


def test_tasks_have_separate_parents(receiver: Receiver, start: Start) -> None:
    """Ranges nest inside their task; the parent of a task is the range in which it was created."""
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
    assert {"gather": "", "a": "gather", "b": "gather", "a.inner": "a", "b.inner": "b"} == receiver.parents()


def test_range_inside_a_span_of_the_application_is_its_child(receiver: Receiver, start: Start) -> None:
    """The parent is the innermost span or range; the current context of the application does not change."""
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
    assert {**expected, "backward": "step"} == receiver.parents()
    assert 1 == len({span.trace_id for span in receiver.spans()})


@pytest.mark.parametrize("sampled", [True, False])
def test_remote_parent_decides_about_sampling(receiver: Receiver, start: Start, sampled: bool) -> None:
    """In a trace that is not sampled no range is exported, and none counts towards the budget."""
    pipeline = start(spans=True, span_budget=2)
    context = SpanContext(0xA1, 0xB2, is_remote=True, trace_flags=TraceFlags(int(sampled)))
    with trace.use_span(NonRecordingSpan(context)), record_function("step"), record_function("forward"):
        monitel.emit("inside")
    assert pipeline.force_flush(DEADLINE)
    assert (["forward", "step"] if sampled else []) == [span.name for span in receiver.spans()]
    (record,) = receiver.records("inside")
    assert f"{0xA1:032x}" == record.trace_id
    if sampled:
        step, forward = receiver.span("step"), receiver.span("forward")
        assert (f"{0xA1:032x}", f"{0xB2:016x}", 0x300) == (step.trace_id, step.parent_id, step.flags)
        assert (step.span_id, 0x100, forward.span_id) == (forward.parent_id, forward.flags, record.span_id)


@pytest.mark.parametrize(("sampler", "expected"), [("always_off", set()), ("always_on", {"step", "forward"})])
def test_sampler_decides_about_new_traces(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, sampler: str, expected: set[str]
) -> None:
    """OTEL_TRACES_SAMPLER has the same effect as in the SDK."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    pipeline = start(spans=True)
    with record_function("step"), record_function("forward"):
        pass
    assert pipeline.force_flush(DEADLINE)
    assert expected == {span.name for span in receiver.spans()}


def test_records_logged_in_a_range_have_its_ids(receiver: Receiver, start: Start) -> None:
    """Events and log records have the ids of the innermost range or span of the application."""
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


def test_event_has_the_ids_of_an_ended_range(receiver: Receiver, start: Start) -> None:
    """The range ends before the event is encoded."""
    pipeline = start(spans=True)
    with record_function("step"):
        monitel.emit("inside")
    assert pipeline.force_flush(DEADLINE)
    (record,), (span,) = receiver.records(), receiver.spans()
    assert (span.trace_id, span.span_id) == (record.trace_id, record.span_id)


def test_arguments_become_attributes(receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Their values are those at the end of the range; unsupported values are left out, and one warning is logged."""
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


def test_ids_do_not_use_the_global_random_generator(receiver: Receiver, start: Start) -> None:
    """A seeded program draws the same numbers, and programs with the same seed have different ids."""
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


def test_outage_loses_nothing(receiver: Receiver, start: Start) -> None:
    """Requests are kept and sent in order, each once, when the backend is back."""
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


def test_undelivered_spans_can_be_replayed(receiver: Receiver, start: Start, run: Run, tmp_path: Path) -> None:
    """The spool has the spans with their times."""
    pipeline = start(endpoint="http://127.0.0.1:9", spans=True)
    ended: list[Range] = []
    with ranges.listen(ended=ended.append), record_function("step"), record_function("forward"):
        pass
    assert not pipeline.shutdown()
    (folder,) = folders(tmp_path / "spool")
    run("-m", "monitel_otlp", "replay", folder, "--endpoint", receiver.url)
    assert {"step": "", "forward": "step"} == receiver.parents()
    assert [each.start_ns for each in ended] == [span.start_ns for span in receiver.spans()]


def test_full_queue_drops_the_oldest_and_counts_them(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped ranges are counted with the reason ``queue_full``."""
    monkeypatch.setattr(pipeline_module, "LIMIT", 10)
    pipeline = start(spans=True)
    with busy_encoder(pipeline):
        for number in range(25):
            with record_function(f"op {number}"):
                pass
    assert not pipeline.force_flush(DEADLINE)
    assert [f"op {number}" for number in range(15, 25)] == [span.name for span in receiver.spans()]
    assert {"queue_full": 15} == pipeline.dropped


def test_unfinished_ranges_are_exported_at_shutdown(receiver: Receiver, start: Start) -> None:
    """Ranges that still run have the attribute ``monitel.unfinished``."""
    pipeline = start(spans=True)
    with record_function("step"):
        with record_function("forward"):
            pass
        with record_function("all_reduce"):
            pipeline.shutdown()
    assert {"step": "", "forward": "step", "all_reduce": "step"} == receiver.parents()
    unfinished = {span.name for span in receiver.spans() if span.attributes.get("monitel.unfinished")}
    assert {"step", "all_reduce"} == unfinished
    assert all(span.start_ns <= span.end_ns for span in receiver.spans())


def test_ended_pipeline_exports_no_ranges(receiver: Receiver, start: Start) -> None:
    """After a second ``configure()`` only the second pipeline listens to ranges."""
    start(spans=True)
    pipeline = start(spans=True)
    with record_function("step"):
        pass
    assert pipeline.shutdown()
    assert ["step"] == [span.name for span in receiver.spans()]
    with record_function("late"):
        assert ranges.current_range() is None


@pytest.mark.invalid_output("the parent belongs to a provider without an exporter", "span.parent")
def test_span_of_any_provider_may_be_the_parent(receiver: Receiver, start: Start) -> None:
    """The parent is read from the current context."""
    pipeline = start(spans=True)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("mine")
    with tracer.start_as_current_span("request") as request, record_function("step"):
        pass
    assert pipeline.force_flush(DEADLINE)
    (span,) = receiver.spans()
    assert f"{request.get_span_context().span_id:016x}" == span.parent_id


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"spans": 1}, TypeError, "spans must be True or False, got 1"),
        ({"spans": True, "span_budget": 0}, ValueError, "span_budget must be at least 1, got 0"),
        ({"spans": True, "span_steps": 1.5}, TypeError, "span_steps must be an int, got float"),
        ({"step_traces": True, "span_steps": True}, TypeError, "span_steps must be an int, got bool"),
    ],
)
def test_invalid_argument_raises(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """The message has the given value and the allowed values."""
    with pytest.raises(error, match=message):
        monitel_otlp.configure(**arguments)
