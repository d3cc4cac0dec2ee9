"""Data that an application records by OpenTelemetry's API arrives by the SDK's path, with the pipeline's resource."""

import logging
from functools import partial
from threading import Event
from threading import enumerate as all_threads
from typing import Any

import pytest
from opentelemetry import _logs, metrics, trace
from opentelemetry.metrics import Observation
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from tests.support.checks import SetEnv, Warned, in_time, wait_until, warnings_with
from tests.support.hostile import Peer, never_answers, refusing_url
from tests.support.inbox import DEADLINE, Answer
from tests.support.pipelines import Start, delivered_by, emit
from tests.support.producers import run_together, running
from tests.support.receiver import Receiver, partial_success

import monitel
from monitel_otlp import Pipeline, application
from monitel_otlp.export import sender

READER = "PeriodicExportingMetricReader"
REMOTE = SpanContext(0xA1, 0xB2, is_remote=True, trace_flags=TraceFlags(1))


def record(pipeline: Pipeline) -> None:
    pipeline.meter_provider.get_meter("mine").create_counter("counter", "{thing}", "mine").add(3)
    with trace.use_span(NonRecordingSpan(REMOTE)):
        pipeline.logger_provider.get_logger("mine", "1").emit(body="text", event_name="own", attributes={"b": "c"})
        pipeline.tracer_provider.get_tracer("mine", "1").start_span("request", attributes={"a": 1}).end()


def threads() -> list[str]:
    """Return the names of the exporters' threads."""
    return sorted(each.name for each in all_threads() if each.name.lower().startswith("otel"))


def test_everything_arrives_with_one_resource(receiver: Receiver, start: Start) -> None:
    """By the global providers, as long as the application has set none; what is open arrives at the shutdown."""
    pipeline = start(service_name="train")
    assert pipeline.meter_provider is metrics.get_meter_provider()
    assert pipeline.tracer_provider is trace.get_tracer_provider()
    assert pipeline.logger_provider is _logs.get_logger_provider()
    monitel.emit("epoch")
    record(pipeline)
    assert pipeline.shutdown(DEADLINE)
    record(pipeline)  # has no effect
    (point,), (log,), (span,) = receiver.points("counter"), receiver.records("own"), receiver.spans()
    assert (3, "{thing}", "mine") == (point.value, point.unit, point.scope)
    assert ("text", {"b": "c"}, "mine") == (log.body, log.attributes, log.scope)
    assert (f"{REMOTE.trace_id:032x}", f"{REMOTE.span_id:016x}") == (log.trace_id, log.span_id)
    assert ("request", {"a": 1}, log.trace_id) == (span.name, span.attributes, span.trace_id)
    (event,) = receiver.records("epoch")
    assert [event.resource] * 3 == [point.resource, log.resource, span.resource]
    assert [0, 1, 0] == [pipeline.account()[each].recorded for each in ("metrics", "logs", "traces")]


def test_exporters_are_made_when_they_are_used(receiver: Receiver, start: Start) -> None:
    """A job that records by monitel alone has none of their threads. A flush of a provider sends what it has."""
    pipeline = start()
    monitel.emit("epoch")
    pipeline.tracer_provider.get_tracer("mine")
    assert ([], True) == (threads(), pipeline.force_flush(DEADLINE))
    pipeline.tracer_provider.get_tracer("mine").start_span("request").end()
    assert ["OtelBatchSpanRecordProcessor", "otel-application"] == threads()
    provider: Any = pipeline.meter_provider
    provider.get_meter("mine").create_counter("counter").add(3)
    assert provider.force_flush()  # the SDK flushes no reader that is added later
    assert [3] == receiver.values("counter")


def test_concurrent_first_uses_lose_nothing(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use of a signal takes a moment, in which other threads use it, too."""
    pause = Event()
    for name in ("make_transport", READER, "BatchLogRecordProcessor"):
        make = getattr(application, name)
        monkeypatch.setattr(application, name, lambda *given, make=make: (pause.wait(0.2), make(*given))[1])
    with delivered_by(start()) as pipeline:
        run_together(*[partial(record, pipeline)] * 4)
    found = receiver.values("counter"), receiver.record_names(), [span.name for span in receiver.spans()]
    assert ([3 * 4], ["own"] * 4, ["request"] * 4) == found


def test_exporter_made_during_shutdown_ends(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would send the instruments of the pipeline that has ended, for the rest of the process."""
    make, begun, over = getattr(application, READER), Event(), Event()

    def slow(*given: Any) -> Any:
        begun.set()
        over.wait(DEADLINE)
        return make(*given)

    monkeypatch.setattr(application, READER, slow)
    pipeline = start()
    with running(partial(pipeline.meter_provider.get_meter, "mine")):
        assert begun.wait(DEADLINE)
        assert pipeline.shutdown()
        over.set()
    wait_until(lambda: not threads())


def test_shutdown_takes_two_seconds(start: Start, setenv: SetEnv, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind a dead backend. Data of the application is lost then, which is printed; monitel's items are on disk."""
    setenv(OTEL_EXPORTER_OTLP_TIMEOUT="4")
    with Peer(never_answers) as peer:
        pipeline = start(endpoint=peer.url)
        monitel.emit("epoch")
        record(pipeline)
        with in_time(3.0):  # two, and what a busy machine adds
            assert not pipeline.shutdown()
    assert 1 == pipeline.account()["logs"].on_disk
    loss, summary, *_ = capsys.readouterr().err.splitlines()
    assert "monitel could not send all that the application has recorded by OpenTelemetry's API" == loss
    assert summary.startswith("monitel: exported 0 windows")
    wait_until(lambda: not threads())


def test_busy_backend_is_asked_again_and_a_loss_is_one_warning(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, warned: Warned
) -> None:
    """Within the time limit of an attempt; what a backend leaves out is a loss."""
    monkeypatch.setattr(sender, "_FIRST_PAUSE", 0.01)
    pipeline = start(run_events=False)
    logger = pipeline.logger_provider.get_logger("mine")
    answers = [Answer(503), Answer(429), Answer(), partial_success("logs", 1, ""), Answer(400)]
    receiver.answer("logs", *answers)
    for name in ("first", "left out", "refused", "last"):
        logger.emit(body="text", event_name=name)
        assert pipeline.force_flush(DEADLINE)
    assert ["first", "left out", "last"] == receiver.record_names()
    assert ["the backend has left out 1 of them"] == [
        text.partition("lost: ")[2] for text in warned("the application's logs by OpenTelemetry's API")
    ]


def test_callback_that_hangs_stops_only_instruments(receiver: Receiver, start: Start) -> None:
    """A flush ends at its timeout, and monitel's items are delivered."""
    release = Event()

    def hang(_options: Any) -> list[Observation]:
        release.wait()
        return []

    pipeline = start()
    pipeline.meter_provider.get_meter("mine").create_observable_gauge("hangs", [hang])
    monitel.log({"x": 0.5})
    assert not emit(pipeline, "epoch", seconds=1.0)
    receiver.wait_until(lambda: receiver.values("x") and receiver.records("epoch"))
    assert ([0.5], 1) == (receiver.values("x"), len(receiver.records("epoch")))
    release.set()
    assert pipeline.force_flush(DEADLINE)


def test_provider_that_cannot_be_loaded_is_not_used(receiver: Receiver, start: Start, setenv: SetEnv) -> None:
    """The API raises an exception; configure() does not, and its own providers are the global ones."""
    setenv({f"OTEL_PYTHON_{each}_PROVIDER": "missing" for each in ("METER", "LOGGER", "TRACER")})
    with delivered_by(start()) as pipeline:
        assert pipeline.tracer_provider is trace.get_tracer_provider()
        record(pipeline)
    assert ([3], ["own"]) == (receiver.values("counter"), receiver.record_names())


def test_contradicting_variables_of_the_sdk_are_not_used(
    receiver: Receiver, start: Start, setenv: SetEnv, warned: Warned
) -> None:
    """A queue that is smaller than a batch: everything arrives, and one warning says so."""
    setenv(OTEL_BSP_MAX_QUEUE_SIZE="1", OTEL_BLRP_MAX_QUEUE_SIZE="1")
    with delivered_by(start()) as pipeline:
        record(pipeline)
    assert ([3], ["own"], 1) == (receiver.values("counter"), receiver.record_names(), len(receiver.spans()))
    assert 1 == len(warned("max_export_batch_size must be less than or equal to max_queue_size"))


def test_secrets_of_an_endpoint_are_not_logged(
    receiver: Receiver, start: Start, setenv: SetEnv, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning for each signal, as long as its backend fails."""
    setenv(OTEL_EXPORTER_OTLP_TIMEOUT="1")
    caplog.set_level(logging.DEBUG)
    receiver.rule(lambda _: Answer(400))
    secret = "sup3rs3cr3t"
    setenv(OTEL_EXPORTER_OTLP_HEADERS=f"authorization: Bearer {secret}, {secret}")  # not NAME=VALUE
    url = receiver.url.replace("://", f"://me:{secret}@")
    for endpoint in (url, refusing_url().replace("://", f"://me:{secret}@")):
        pipeline = start(endpoint=endpoint, headers={"authorization-token": secret})
        record(pipeline)
        pipeline.force_flush(1.0)
        pipeline.shutdown()
    wait_until(lambda: not threads())
    assert 2 * 3 == len(warnings_with(caplog, "by OpenTelemetry's API are lost: "))
    assert secret not in caplog.text
