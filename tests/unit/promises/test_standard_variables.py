"""OpenTelemetry's variables: each has a row in the reference, and changes what is sent, or is tested elsewhere."""

import logging
from typing import Any

import opentelemetry.environment_variables
import opentelemetry.sdk.environment_variables
import pytest
from opentelemetry import _logs
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.trace import Link, SpanContext
from tests.support.checks import SetEnv, Warned
from tests.support.inbox import DEADLINE, Inbox
from tests.support.pipelines import Start
from tests.support.producers import record_ranges
from tests.support.receiver import Receiver
from tests.unit.promises.reference_tables import code, table

import monitel
from monitel_otlp import Pipeline

OTLP = "OTEL_EXPORTER_OTLP_"
SIGNALS = ("metrics", "logs", "traces")
LONG = "a long text"
SAME: dict[str, Any] = {"a": 1, "b": LONG, "c": 3}

#: Variables, their values, and what is different then.
CASES: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"OTEL_SERVICE_NAME": "mine"}, {"service.name": "mine"}),
    ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=a%2Cb%20%C3%A9"}, {"service.name": "a,b é"}),
    ({"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "process"}, {"process.owner": True}),
    *(
        ({f"OTEL_{signal.upper()}_EXPORTER": "none"}, {"signals": {*SIGNALS} - {signal}, "recorded": {signal: 0}})
        for signal in SIGNALS
    ),
    *(
        ({f"{OTLP}{prefix}{name}": value}, {header: dict.fromkeys(signals, sent)})
        for prefix, signals in (("", SIGNALS), *((f"{signal.upper()}_", [signal]) for signal in SIGNALS))
        for name, value, header, sent in (
            ("HEADERS", "x-tenant=a%20b", "x-tenant", "a b"),
            ("COMPRESSION", "gzip" if prefix else "deflate", "content-encoding", "gzip" if prefix else "deflate"),
        )
    ),
    ({f"{OTLP}METRICS_TEMPORALITY_PREFERENCE": "delta"}, {"temporality": 1}),
    (
        {f"{OTLP}METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "base2_exponential_bucket_histogram"},
        {"histogram": "exponential_histogram"},
    ),
    ({"OTEL_METRICS_EXEMPLAR_FILTER": "always_off"}, {"exemplars": 0}),
    ({"OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true"}, {"of the sdk": True}),
    ({"OTEL_TRACES_SAMPLER": "always_off"}, {"signals": {"metrics", "logs"}}),
    ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, {"signals": {"metrics", "logs"}}),
    *(
        ({name: "2"}, {owner: ({"b": LONG, "c": 3}, 3 if owner == "range" else 1) for owner in owners})
        for name, owners in (
            ("OTEL_ATTRIBUTE_COUNT_LIMIT", ("span", "range", "event", "record")),
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", ("span", "range")),
            ("OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT", ("event", "record")),
        )
    ),
    *(
        ({name: "6"}, dict.fromkeys(owners, ({**SAME, "b": "a long"}, 0)))
        for name, owners in (
            ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", ("span", "range", "event", "record")),
            ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", ("span", "range")),
            ("OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT", ("event", "record")),
        )
    ),
    ({"OTEL_SPAN_EVENT_COUNT_LIMIT": "1"}, {"events": (1, 1)}),
    ({"OTEL_SPAN_LINK_COUNT_LIMIT": "1"}, {"links": (1, 1)}),
    ({"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "1"}, {"of an event": (1, 1)}),
    ({"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT": "1"}, {"of a link": (1, 1)}),
]


def test_each_variable_of_opentelemetry_has_a_row() -> None:
    """A variable that a new version of the SDK has added needs a decision, and a row."""
    modules = opentelemetry.environment_variables, opentelemetry.sdk.environment_variables
    constants = {name: value for module in modules for name, value in vars(module).items()}
    found = {value for name, value in constants.items() if name.lstrip("_").startswith("OTEL_")}
    for cell, *_ in table("configuration.md", "variable", "honoured", under="OpenTelemetry's variables"):
        for name in code(cell):
            per_signal = SIGNALS if cell.endswith("per signal") else ()
            found -= {name, *(name.replace(OTLP, f"{OTLP}{signal.upper()}_") for signal in per_signal)}
    assert set() == found


def work(pipeline: Pipeline) -> dict[str, int]:
    """Record something of each kind, and deliver it; return the number of recorded items of each signal."""
    meter = pipeline.meter_provider.get_meter("mine")
    counter, histogram = meter.create_counter("counter"), meter.create_histogram("histogram")
    links = [Link(SpanContext(number, 1, is_remote=True), {"a": 1, "b": 2}) for number in (1, 2)]
    tracer = pipeline.tracer_provider.get_tracer("mine")
    with tracer.start_as_current_span("span", attributes=SAME, links=links) as span:
        for name in ("first", "second"):
            span.add_event(name, {"a": 1, "b": 2})
        counter.add(1)
        histogram.record(1)
    record_ranges("range", args=SAME)
    monitel.emit("event", SAME)
    pipeline.logger_provider.get_logger("mine").emit(body="text", event_name="record", attributes=SAME)
    monitel.log({"loss": 0.5})
    monitel.stat("x").add(1)
    monitel.flush()
    assert pipeline.force_flush(DEADLINE)
    return {signal: account.recorded for signal, account in pipeline.account().items()}


def sent(inbox: Inbox, recorded: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {"signals": {request.signal for request in inbox.requests}}
    for header in ("x-tenant", "content-encoding"):
        found[header] = {each.signal: each.headers[header] for each in inbox.requests if header in each.headers}
    every: list[Any] = [*inbox.records(), *inbox.spans()]
    resource = every[0].resource
    found["service.name"], found["process.owner"] = resource["service.name"], "process.owner" in resource
    found["recorded"] = {signal: number for signal, number in recorded.items() if not number}
    for metric in ("counter", "histogram"):
        for point in inbox.points(metric):
            found |= {"temporality": point.temporality} if metric == "counter" else {"histogram": point.kind}
            found["exemplars"] = found.get("exemplars", 0) + len(point.proto.exemplars)
    found["of the sdk"] = any(point.metric.startswith("otel.sdk.") for point in inbox.all_points())
    for each in every:
        own = {key: value for key, value in each.attributes.items() if not key.startswith("thread.")}
        found[each.name] = own, each.proto.dropped_attributes_count
    for span in (each.proto for each in inbox.spans() if each.name == "span"):
        found["events"] = len(span.events), span.dropped_events_count
        found["links"] = len(span.links), span.dropped_links_count
        for owner, (first, *_) in {"of an event": span.events, "of a link": span.links}.items():
            found[owner] = len(first.attributes), first.dropped_attributes_count
    return found


@pytest.mark.invalid_output("the variable has changed", "metric.changed", "series.continues")
@pytest.mark.filterwarnings("ignore:Log record attributes were dropped")
@pytest.mark.parametrize(("variables", "expected"), CASES, ids="-".join)
def test_variable_changes_what_is_sent(
    receiver: Receiver, start: Start, setenv: SetEnv, variables: dict[str, str], expected: Any
) -> None:
    """And nothing else that another variable changes; limits hold for the SDK's records and for monitel's alike."""
    pipeline = start(spans=True, run_events=False)
    usual = sent(receiver, work(pipeline))
    pipeline.shutdown()
    receiver.requests.clear()
    setenv(variables)
    found = sent(receiver, work(start(spans=True, run_events=False)))
    assert expected == {name: found.get(name) for name in expected}
    assert [] == [name for name in expected if usual[name] == found[name]]


@pytest.mark.parametrize("signal", SIGNALS)
def test_signals_may_have_addresses_and_protocols_of_their_own(
    *, receiver: Receiver, grpc_receiver: Any, start: Start, setenv: SetEnv, signal: str
) -> None:
    """Such an address is used as it is; the path of the others is appended to the address of all signals."""
    second = SIGNALS[SIGNALS.index(signal) - 1]
    setenv({f"{OTLP}{signal.upper()}_ENDPOINT": grpc_receiver.url, f"{OTLP}{signal.upper()}_PROTOCOL": "grpc"})
    setenv({f"{OTLP}ENDPOINT": f"{receiver.url}/base/"})
    setenv({f"{OTLP}{second.upper()}_ENDPOINT": f"{receiver.url}/own/{second}"})
    work(start(endpoint=None, spans=True))
    assert {signal} == {request.signal for request in grpc_receiver.requests}
    sent = {*grpc_receiver.record_names(), *(each.name for each in grpc_receiver.spans())}
    sent |= {each.metric for each in grpc_receiver.all_points()}
    assert {"metrics": "counter", "logs": "record", "traces": "span"}[signal] in sent
    expected = {each: f"/base/v1/{each}" for each in SIGNALS if each != signal} | {second: f"/own/{second}"}
    assert expected == {request.signal: request.path for request in receiver.requests}
    assert all(each.headers["user-agent"].startswith("monitel-otlp/") for each in grpc_receiver.requests)


def test_signal_that_is_off_is_in_no_record_of_a_process(receiver: Receiver, start: Start, setenv: SetEnv) -> None:
    """Neither on disk, nor in the accounts; Python's logging, and the global provider, are left alone."""
    setenv(OTEL_LOGS_EXPORTER="NONE ")
    handlers = [*logging.getLogger().handlers]
    pipeline = start(endpoint=None, logging_level="INFO", spans=True)
    assert handlers == logging.getLogger().handlers
    assert ["metrics", "traces"] == [signal for signal, number in work(pipeline).items() if number]
    assert [] == receiver.requests
    _logs.set_logger_provider(provider := LoggerProvider(shutdown_on_exit=False))
    assert provider is _logs.get_logger_provider()


def test_value_with_another_meaning_than_expected_is_a_warning(start: Start, setenv: SetEnv, warned: Warned) -> None:
    """``configure()`` exports over OTLP alone, and in Python a time limit is in seconds."""
    setenv({f"{OTLP}TIMEOUT": 300, f"{OTLP}LOGS_TIMEOUT": 10000})
    setenv(OTEL_LOGS_EXPORTER="otlp", OTEL_METRICS_EXPORTER="otlp, console")
    start()
    first, second = warned("OTEL_")
    assert first.startswith(f"{OTLP}LOGS_TIMEOUT=10000: it is in seconds, ")
    assert second.startswith("OTEL_METRICS_EXPORTER: configure() exports over OTLP alone, and ignores 'console'")
    assert second.endswith("; none alone turns metrics off")
