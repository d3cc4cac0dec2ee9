"""An application's own records in OpenTelemetry's SDK arrive as the official exporters would send them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import _logs, metrics, trace
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.metrics import Observation
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags
from tests.support.inbox import CUMULATIVE, DEADLINE, TEMPORALITY
from tests.support.validity.envelope import LEVELS
from tests.unit.promises.spool_content import cat

import monitel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

DELTA = 1
MONOTONIC = {"counter", "observable.counter", "histogram"}
UP_AND_DOWN = {"up.down", "observable.up.down"}
REMOTE = SpanContext(0xA1, 0xB2, is_remote=True, trace_flags=TraceFlags(1))


@pytest.mark.parametrize(
    ("preference", "delta"),
    [
        ("cumulative", set()),
        ("delta", MONOTONIC),
        ("lowmemory", {"counter", "histogram"}),  # observable counters hold their totals anyway
    ],
)
def test_instruments_have_the_temporality_of_the_preference(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, preference: str, delta: set[str]
) -> None:
    """Values, kinds and scope of each kind; sums that go up and down are always cumulative, with one start."""
    monkeypatch.setenv(TEMPORALITY, preference)
    pipeline = start()
    meter = pipeline.meter_provider.get_meter("mine")
    level = 0
    counter, up_down = meter.create_counter("counter", "{thing}", "mine"), meter.create_up_down_counter("up.down")
    histogram, gauge = meter.create_histogram("histogram", "s"), meter.create_gauge("gauge")
    meter.create_observable_counter("observable.counter", [lambda _options: [Observation(7)]])
    meter.create_observable_up_down_counter("observable.up.down", [lambda _options: [Observation(level)]])
    meter.create_observable_gauge("observable.gauge", [lambda _options: [Observation(level / 4, {"a": "b"})]])
    for change in (5, -2):
        level += change
        counter.add(3)
        up_down.add(change)
        histogram.record(level)
        gauge.set(level)
        assert pipeline.force_flush(DEADLINE)
    points = [point for point in receiver.all_points() if point.scope == "mine"]
    temporalities = {name: DELTA if name in delta else CUMULATIVE for name in MONOTONIC | UP_AND_DOWN}
    assert {**temporalities, "gauge": None, "observable.gauge": None} == {p.metric: p.temporality for p in points}
    values = {
        name: [*dict.fromkeys(p.value for p in points if p.metric == name)] for name in {p.metric for p in points}
    }
    assert [5, 3] == values["up.down"] == values["observable.up.down"] == values["gauge"]
    assert [1.25, 0.75] == values["observable.gauge"]
    assert ([3] if "counter" in delta else [3, 6]) == values["counter"]
    assert ([5, 3] if "histogram" in delta else [5, 8]) == values["histogram"]
    assert 7 == values["observable.counter"][0]
    for name in UP_AND_DOWN:
        assert {(False, receiver.points(name)[0].start_ns)} == {
            (point.monotonic, point.start_ns) for point in receiver.points(name)
        }
    first = receiver.points("counter")[0]
    assert ("sum", "{thing}", "mine", True) == (first.kind, first.unit, first.description, first.monotonic)
    assert {"explicit_bounds", "bucket_counts"} <= {
        field.name for field, _ in receiver.points("histogram")[0].proto.ListFields()
    }


def _scopes(signal: str, messages: list[Any]) -> dict[str, list[bytes]]:
    """Return the records of each scope but monitel's, by the name of the scope, in the order of the messages."""
    resources, scopes, records = LEVELS[signal]
    found: dict[str, list[bytes]] = {}
    for message in messages:
        for resource in getattr(message, resources):
            for scope in getattr(resource, scopes):
                own = [each.SerializeToString(deterministic=True) for each in getattr(scope, records)]
                found.setdefault(f"{scope.scope.name} {scope.scope.version} {scope.schema_url}", []).extend(own)
    return found


def test_spans_are_those_of_the_official_exporter(receiver: Receiver, start: Start) -> None:
    """Kind, attributes, events, links, status, a remote parent, and the scope, to the last field."""
    pipeline = start()
    memory = InMemorySpanExporter()
    provider: Any = pipeline.tracer_provider
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = pipeline.tracer_provider.get_tracer("mine", "1", "https://example.test/1")
    with trace.use_span(NonRecordingSpan(REMOTE)):
        with tracer.start_as_current_span("request", kind=SpanKind.SERVER, links=[Link(REMOTE, {"a": 1})]) as span:
            span.set_attributes({"text": "x", "flag": True, "number": 7, "float": 0.5, "list": ["a", "b"]})
            span.add_event("retry", {"attempt": 2})
            with pytest.raises(ValueError, match="broken"), tracer.start_as_current_span("failing"):
                raise ValueError("broken")
            span.set_status(StatusCode.ERROR, "failed")
        pipeline.tracer_provider.get_tracer("other").start_span("alone").end()
    assert pipeline.force_flush(DEADLINE)
    theirs = _scopes("traces", [encode_spans(memory.get_finished_spans())])
    assert {"mine 1 https://example.test/1", "other  "} == {*theirs}
    assert theirs == _scopes("traces", [request.message for request in receiver.of("traces")])
    assert 3 == pipeline.account()["traces"].delivered


def test_log_records_are_those_of_the_official_exporter(receiver: Receiver, start: Start) -> None:
    """Times, severity, body, attributes, ids and event name, to the last field; monitel's events stay apart."""
    pipeline = start()
    memory: Any = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider: Any = pipeline.logger_provider
    provider.add_log_record_processor(SimpleLogRecordProcessor(memory))
    logger = pipeline.logger_provider.get_logger("mine", "1", "https://example.test/1")
    with trace.use_span(NonRecordingSpan(REMOTE)):
        logger.emit(
            timestamp=1_800_000_000 * 10**9, body={"a": [1, 2.5, None]}, event_name="own", attributes={"b": "c"}
        )
        monitel.emit("epoch")
    logger.emit(body="text", severity_text="WARN", severity_number=_logs.SeverityNumber.WARN)
    assert pipeline.force_flush(DEADLINE)
    ours = _scopes("logs", [request.message for request in receiver.of("logs")])
    assert 1 == sum(len(records) for name, records in ours.items() if name.startswith("monitel "))
    mine = {name: records for name, records in ours.items() if name.startswith("mine ")}
    assert _scopes("logs", [encode_logs(memory.get_finished_logs())]) == mine
    assert 3 == pipeline.account()["logs"].delivered


def test_providers_of_the_pipeline_are_the_global_ones(receiver: Receiver, start: Start) -> None:
    """As long as the application has set none."""
    pipeline = start()
    assert pipeline.meter_provider is metrics.get_meter_provider()
    assert pipeline.tracer_provider is trace.get_tracer_provider()
    assert pipeline.logger_provider is _logs.get_logger_provider()


def test_metric_that_cannot_be_encoded_is_left_out(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A counter that needs more than 64 bits, for example: one warning, and everything else arrives."""
    pipeline = start()
    meter = pipeline.meter_provider.get_meter("mine")
    for number in range(3):
        meter.create_counter(f"counter{number}").add(2**70 if number == 1 else number)
    monitel.log({"x": 0.5})
    assert pipeline.force_flush(DEADLINE)
    assert ({"counter0", "counter2"}, [0.5]) == (
        {point.metric for point in receiver.all_points() if point.scope == "mine"},
        receiver.values("x"),
    )
    assert 1 == len([each for each in caplog.messages if "metric 'counter1' cannot be encoded" in each])


def test_instruments_are_written_to_disk_without_a_backend(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even if nothing of monitel has changed since the last request."""
    pipeline = start(endpoint=None)
    monitel.counter("x").add(1)
    assert pipeline.force_flush(DEADLINE)
    pipeline.meter_provider.get_meter("mine").create_counter("mine").add(2)
    assert pipeline.force_flush(DEADLINE)
    assert {2} == {*cat(capsys, tmp_path / "spool").values("mine")}
