"""Conversion of ranges to spans of an application's TracerProvider."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags

import monitel
import monitel_otel
from monitel.profiler import ranges, record_function

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from tests.unit.otel.conftest import Backend

    from monitel.profiler.ranges import Range
    from monitel.testing import ManualClock
    from monitel_otel import Installation

DEADLINE = 60.0


@pytest.fixture
def spanning(backend: Backend) -> Iterator[Installation]:
    """Yield the installation of monitel_otel with these providers, including the TracerProvider."""
    with monitel_otel.install(backend.meter_provider, backend.logger_provider, backend.tracer_provider) as installed:
        yield installed


def ids_of(span: ReadableSpan) -> tuple[int, int]:
    """Return trace and span id."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parents(spans: list[ReadableSpan]) -> dict[str, str]:
    """Return the name of each span's parent by the span's name; "" without a parent."""
    names = {ids_of(span)[1]: span.name for span in spans}
    assert len(spans) == len(names)
    return {span.name: names.get(span.parent.span_id, "?") if span.parent else "" for span in spans}


@pytest.mark.usefixtures("spanning")
def test_range_becomes_a_span(backend: Backend) -> None:
    """A span has the range's times in ns, step, thread and arguments, and the scope ``monitel``."""
    received: list[Range] = []
    args: dict[str, Any] = {"batch": 32, "shape": (2, 3), "bad": object()}
    monitel.set_step(7)
    with ranges.listen(ended=received.append), record_function("forward", args):
        pass
    (span,) = backend.spans()
    assert ("forward", received[0].start_ns, received[0].end_ns) == (span.name, span.start_time, span.end_time)
    assert {
        "training.step": 7,
        "thread.id": received[0].track.thread_id,
        "thread.name": "MainThread",
        "batch": 32,
        "shape": (2, 3),
    } == dict(span.attributes or {})
    scope: Any = span.instrumentation_scope
    assert ("monitel", monitel.__version__, monitel_otel.SCHEMA_URL) == (scope.name, scope.version, scope.schema_url)


@pytest.mark.usefixtures("spanning")
def test_span_of_a_failed_range_has_status_error(backend: Backend) -> None:
    """Each range that an exception leaves has its type, and not an argument's; a range that catches it has none."""
    failing = record_function("step", {"error.type": "mine"})
    with record_function("retry"), suppress(KeyError), failing, record_function("forward"):
        raise KeyError
    with record_function("after", {"error.type": "mine"}):
        pass
    failed, fine = StatusCode.ERROR, StatusCode.UNSET
    assert {
        "forward": (failed, "KeyError"),
        "step": (failed, "KeyError"),
        "retry": (fine, None),
        "after": (fine, "mine"),
    } == {span.name: (span.status.status_code, (span.attributes or {}).get("error.type")) for span in backend.spans()}


@pytest.mark.usefixtures("installed")
def test_spans_are_opt_in(backend: Backend) -> None:
    """By default there is no listener, so that ranges cost almost nothing."""
    with record_function("forward"):
        assert ranges.current_range() is None


@pytest.mark.usefixtures("spanning")
def test_parents_are_ranges_and_spans_of_the_application(backend: Backend) -> None:
    """The innermost one is the parent; no context is attached."""
    tracer = backend.tracer_provider.get_tracer("mine")
    with tracer.start_as_current_span("request") as request, record_function("step"):
        assert request is trace.get_current_span()
        with record_function("forward"):
            pass
        with tracer.start_as_current_span("call"), record_function("in call"):
            pass
    with record_function("save"):
        pass
    expected = {"request": "", "step": "request", "forward": "step", "call": "request", "in call": "call", "save": ""}
    assert expected == parents(backend.spans())


@pytest.mark.usefixtures("spanning")
def test_parents_in_threads_and_tasks(backend: Backend) -> None:
    """A thread starts without a parent; a task starts in the ranges that were open at its creation."""

    async def work(name: str) -> None:
        with record_function(name):
            await asyncio.sleep(0)
            with record_function(f"{name}.inner"):
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    with record_function("main"):
        thread = Thread(target=asyncio.run, args=[work("thread")])
        thread.start()
        thread.join(DEADLINE)
        asyncio.run(both())
    expected = {"main": "", "a": "main", "b": "main", "a.inner": "a", "b.inner": "b", "thread.inner": "thread"}
    assert {**expected, "thread": ""} == parents(backend.spans())


@pytest.mark.usefixtures("spanning")
def test_events_in_a_range_have_its_ids(backend: Backend) -> None:
    """Events inside a span of the application have the ids of that span."""
    tracer = backend.tracer_provider.get_tracer("mine")
    with record_function("step"):
        monitel.emit("in step")
        with tracer.start_as_current_span("own"):
            monitel.emit("in own")
    monitel.emit("outside")
    expected = {f"in {span.name}": ids_of(span) for span in backend.spans()}
    found = {record.event_name: (record.trace_id, record.span_id) for record in backend.records()}
    assert {**expected, "outside": (0, 0)} == found


@pytest.mark.usefixtures("spanning")
def test_ranges_beyond_the_budget_are_folded(backend: Backend, clock: ManualClock) -> None:
    """The fold has their number and duration; it is written after the step, or at the end."""
    with monitel_otel.install(backend.meter_provider, backend.logger_provider, backend.tracer_provider, span_budget=2):
        for step in range(3):
            monitel.set_step(step)
            with record_function("step"):
                for name in ("load", "forward", "backward"):
                    with record_function(name):
                        clock.advance(2)
        steps = [span.name for span in backend.spans()]
        assert ["monitel.folded"] == [name for name in steps if name not in {"step", "load"}]
    folds = [span for span in backend.spans() if span.name == "monitel.folded"]
    steps_of = {dict(span.attributes or {})["training.step"]: span for span in backend.spans() if span.name == "step"}
    assert 3 == len(folds) == len(steps_of)
    for step, fold in enumerate(folds):
        attributes = dict(fold.attributes or {})
        expected = (step, 2, 4.0)
        assert expected == tuple(
            attributes[name] for name in ("training.step", "monitel.folded.count", "monitel.folded.seconds")
        )
        assert (fold.end_time or 0) - (fold.start_time or 0) == 4 * 10**9
        assert fold.parent == steps_of[step].get_span_context()


def test_a_name_that_utf_8_cannot_encode_is_escaped(backend: Backend) -> None:
    """In a span and in a fold: such a text would make an exporter lose all spans of its batch."""
    with monitel_otel.install(backend.meter_provider, backend.logger_provider, backend.tracer_provider, span_budget=1):
        monitel.set_step(1)
        with record_function("kept \ud800"), record_function("folded \ud800"):
            pass
    fold, kept = sorted(backend.spans(), key=lambda span: span.name, reverse=True)
    assert "kept \\ud800" == kept.name
    assert ("folded \\ud800",) == (fold.attributes or {})["monitel.folded.names"]


def test_some_steps_are_exported(backend: Backend) -> None:
    """Only steps that are multiples of span_steps are exported."""
    with monitel_otel.install(tracer_provider=backend.tracer_provider, span_steps=3):
        for step in range(7):
            monitel.set_step(step)
            with record_function(f"step {step}"):
                pass
    assert ["step 0", "step 3", "step 6"] == [span.name for span in backend.spans()]


@pytest.mark.usefixtures("spanning")
def test_trace_that_is_not_sampled(backend: Backend) -> None:
    """Ranges in such a trace are not exported, at any depth."""
    context = SpanContext(0xA1, 0xB2, is_remote=True, trace_flags=TraceFlags(0))
    with trace.use_span(NonRecordingSpan(context)), record_function("step"), record_function("forward"):
        pass
    assert [] == backend.spans()


def test_sampler_of_the_provider_decides() -> None:
    """Ranges inside a range that it drops are dropped, too."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with monitel_otel.install(tracer_provider=provider), record_function("step"), record_function("forward"):
        pass
    assert () == exporter.get_finished_spans()


def test_ranges_after_uninstall(backend: Backend) -> None:
    """A range that is running becomes a span; a range that begins later does not."""
    installation = monitel_otel.install(tracer_provider=backend.tracer_provider)
    with record_function("running"):
        installation.uninstall()
        with record_function("later"):
            pass
    assert ["running"] == [span.name for span in backend.spans()]


def test_global_tracer_provider(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """``spans=True`` without a provider uses the global one."""
    monkeypatch.setattr("monitel_otel.installation.get_tracer_provider", lambda: backend.tracer_provider)
    with monitel_otel.install(spans=True), record_function("step"):
        pass
    assert ["step"] == [span.name for span in backend.spans()]


@pytest.mark.parametrize(("arguments", "says"), [({"span_budget": 0}, "got 0"), ({"span_steps": -1}, "got -1")])
def test_wrong_limits(arguments: dict[str, Any], says: str) -> None:
    """Wrong limits are errors, and nothing is installed."""
    with pytest.raises(ValueError, match=f"must be at least 1, {says}"):
        monitel_otel.install(spans=True, **arguments)
