"""Export without code by ``opentelemetry-instrument``, and monitel beside the application's own OpenTelemetry."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.processes.patience import LONG, SHORT, with_patience
from tests.support.spools import last_line, spooled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.receiver import Receiver
    from tests.support.scripts import Ended, Instrument, Run

METRICS, LOGS, TRACES = ("OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER", "OTEL_TRACES_EXPORTER")
ALL = {METRICS: "monitel", LOGS: "monitel", TRACES: "monitel"}
NONE = {METRICS: "none", LOGS: "none", TRACES: "none"}
#: What a script records by monitel, and by OpenTelemetry's API beside it.
RECORD = """\
import monitel
from monitel import COUNT
from opentelemetry import _logs, metrics, trace

loss = monitel.stat("loss", [COUNT], 1e9)
loss.add(1)
loss.flush()
monitel.set_step(7)
monitel.log({"accuracy": 0.5})
monitel.counter("samples").add(60)
with trace.get_tracer("mine").start_as_current_span("step"), monitel.WaitCounter("barrier").guard():
    monitel.emit("epoch")
metrics.get_meter("mine").create_counter("mine").add(2)
_logs.get_logger("mine").emit(body="own", event_name="own")
loss.add(1)  # in a window that is still open at exit
loss.add(1)
"""
RECORDED = {"loss.count": 3, "accuracy": 0.5, "samples": 60, "training.step": 7, "barrier.wait.count": 1, "mine": 2}


@pytest.fixture(autouse=True)
def resources_of_applications(request: pytest.FixtureRequest) -> None:
    """Let resources lack the name of the distribution: here they belong to the application."""
    request.applymarker(pytest.mark.invalid_output("the resource belongs to the application", "resource.distro"))


@pytest.fixture
def instrument(receiver: Receiver, run: Run, tmp_path: Path) -> Instrument:
    """Return a function that runs a script with ``opentelemetry-instrument``, and variables that name the receiver."""
    if find_spec("opentelemetry.distro") is None:
        pytest.skip("pip install opentelemetry-distro opentelemetry-instrumentation")

    def instrument(script: str, *, env: Mapping[str, str], timeout: float = 120) -> Ended:
        seconds = SHORT if "OTEL_EXPORTER_OTLP_ENDPOINT" in env else LONG
        (tmp_path / "train.py").write_text(with_patience(script, seconds))
        program = Path(sys.executable).with_name("opentelemetry-instrument")
        usual = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        return run(program, sys.executable, tmp_path / "train.py", env={**usual, **env}, timeout=timeout)

    return instrument


def totals(receiver: Receiver) -> dict[str, float]:
    """Return the last value of each metric that :data:`RECORD` makes."""
    return {name: receiver.values(name)[-1] for name in RECORDED if receiver.points(name)}


def test_three_variables_export_what_a_script_records(receiver: Receiver, instrument: Instrument) -> None:
    """Everything of monitel and of the application arrives once, with one resource; the last line counts it."""
    detector = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "monitel", "RANK": "3", "WORLD_SIZE": "4"}
    ended = instrument(RECORD, env={**ALL, **detector, "OTEL_SERVICE_NAME": "train"})
    assert RECORDED == totals(receiver)
    assert ["epoch", "own", "run.log"] == sorted(receiver.record_names())
    (span,), (event,) = receiver.spans(), receiver.records("epoch")
    assert ("step", span.trace_id, span.span_id) == (span.name, event.trace_id, event.span_id)
    every: list[Any] = [*receiver.all_points(), *receiver.records()]
    resources = [each.resource for each in every]
    keys = ("service.name", "training.rank", "training.world_size")
    assert {("train", 3, 4)} == {tuple(each[key] for key in keys) for each in resources}
    assert 1 == len({each["service.instance.id"] for each in resources})
    line = last_line(ended.stderr)
    assert (3, 3, None, None) == (line.windows, line.events, line.dropped, line.spooled)


@pytest.mark.parametrize("variable", [METRICS, LOGS, TRACES])
def test_one_variable_exports_one_signal(receiver: Receiver, instrument: Instrument, variable: str) -> None:
    """The other signals are not sent."""
    instrument(RECORD, env={**NONE, variable: "monitel"})
    sent = {METRICS: "metrics", LOGS: "logs", TRACES: "traces"}[variable]
    assert {sent} == {request.signal for request in receiver.requests}
    assert (RECORDED if variable == METRICS else {}) == totals(receiver)
    expected = {LOGS: (3, 0), TRACES: (0, 1), METRICS: (0, 0)}[variable]
    assert expected == (len(receiver.records()), len(receiver.spans()))


def test_process_without_telemetry_sends_and_prints_nothing(receiver: Receiver, instrument: Instrument) -> None:
    """For example a launcher with the same variables, even if its reader collects."""
    collect = "from opentelemetry import metrics\nmetrics.get_meter_provider().force_flush()\n"
    ended = instrument(collect, env=ALL)
    assert ([], "") == (receiver.requests, ended.stderr)


def test_window_that_is_open_at_exit_is_exported(receiver: Receiver, instrument: Instrument) -> None:
    """Even without an instrument, an event, or a collection before the exit."""
    script = "import monitel\nmonitel.stat('x', [monitel.COUNT], 1e9).add(1)\n"
    instrument(script, env={METRICS: "monitel", LOGS: "monitel", TRACES: "none"})
    assert [1] == receiver.values("x.count")


def test_events_of_exit_functions_are_exported(receiver: Receiver, instrument: Instrument) -> None:
    """Python calls exit functions in reverse order, so those of the application run before those of its providers."""
    script = "import atexit, monitel\natexit.register(monitel.emit, 'first')\natexit.register(monitel.emit, 'last')\n"
    ended = instrument(script, env={METRICS: "monitel", LOGS: "monitel", TRACES: "none"})
    assert ["last", "first"] == receiver.record_names()
    assert "monitel: exported 0 windows and numbers, 2 events\n" == ended.stderr


def test_run_has_its_events(receiver: Receiver, instrument: Instrument) -> None:
    """The run starts with the first event, and ends, with its status, before the application's providers do."""
    script = RECORD + "import sys\nsys.exit(0)\n"
    instrument(script, env={**NONE, LOGS: "monitel", "MONITEL_RUN_EVENTS": "1"})
    assert ["epoch", "own", "run.ended", "run.log", "run.started"] == sorted(receiver.record_names())
    assert ["completed"] == [record.attributes["run.status"] for record in receiver.records("run.ended")]


def test_variables_choose_as_the_arguments_of_configure(receiver: Receiver, instrument: Instrument) -> None:
    """Forms of distributions, the rank on points, and the limit of series."""
    script = """\
import monitel
for layer in range(3):
    monitel.Stat("wide", [monitel.HISTOGRAM, monitel.COUNT], 1e9, attributes={"layer": layer}).add(1)
"""
    chosen = {"MONITEL_DISTRIBUTIONS": "both", "MONITEL_RANK_ATTRIBUTE": "on", "MONITEL_SERIES_LIMIT": "2"}
    ended = instrument(script, env={**NONE, METRICS: "monitel", "RANK": "3", **chosen})
    points = [point for point in receiver.all_points() if point.metric.startswith("wide.")]
    assert {"wide.count", "wide.p50", "wide.p90", "wide.p95", "wide.p99", "wide.histogram"} == {
        p.metric for p in points
    }
    assert {0, 1, "others"} == {point.attributes.get("layer", "others") for point in points}
    assert {3} == {point.attributes["training.rank"] for point in points}
    assert "MONITEL_" not in ended.stderr


def test_wrong_values_are_one_warning_each(receiver: Receiver, instrument: Instrument) -> None:
    """Three exporters read the variables; the job runs with the defaults."""
    wrong = {"DISTRIBUTIONS": "all", "RANKS": "one", "RANK_ATTRIBUTE": "7", "SERIES_LIMIT": "none", "RUN_EVENTS": "so"}
    ended = instrument(RECORD, env={**ALL, **{f"MONITEL_{name}": value for name, value in wrong.items()}})
    lines = [line for line in ended.stderr.splitlines() if "MONITEL_" in line]
    assert sorted(f"MONITEL_{name}" for name in wrong) == sorted(line.partition(":")[0] for line in lines)
    assert RECORDED == totals(receiver)


def test_only_rank_zero_exports_on_request(receiver: Receiver, instrument: Instrument) -> None:
    """With MONITEL_RANKS=zero another rank sends nothing and prints nothing."""
    ended = instrument(RECORD, env={**ALL, "RANK": "1", "MONITEL_RANKS": "zero"})
    assert ([], "") == (receiver.requests, ended.stderr)
    instrument(RECORD, env={**ALL, "RANK": "0", "MONITEL_RANKS": "zero"})
    assert RECORDED == totals(receiver)


def test_items_are_kept_on_disk_without_a_backend(instrument: Instrument, tmp_path: Path) -> None:
    """In the folder of the variable; the last line has their number."""
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "MONITEL_SPOOL_DIR": str(tmp_path / "here")}
    ended = instrument(RECORD, env={**ALL, **where})
    values, names = spooled(tmp_path / "here", distro=False)
    assert (3, ["epoch", "own", "run.log"]) == (values[-1], sorted(names))
    assert 7 == last_line(ended.stderr).spooled  # three windows and numbers, three records, a span
    assert not (tmp_path / "state").exists()


DECLARED = """\
file_format: "1.0"
resource:
  attributes:
    - {name: service.name, value: declared}
meter_provider:
  readers:
    - periodic: {interval: 3600000, exporter: {monitel: {}}}
logger_provider:
  processors:
    - batch: {exporter: {monitel: {}}}
tracer_provider:
  processors:
    - batch: {exporter: {monitel: {}}}
"""


@pytest.mark.skipif(find_spec("opentelemetry.configuration") is None, reason="pip install opentelemetry-configuration")
@pytest.mark.skipif(find_spec("yaml") is None, reason="pip install pyyaml")
def test_configuration_file_names_the_exporters(receiver: Receiver, instrument: Instrument, tmp_path: Path) -> None:
    """With OTEL_CONFIG_FILE the TracerProvider is shut down last."""
    path = tmp_path / "otel.yaml"
    path.write_text(DECLARED)
    instrument(RECORD, env={"OTEL_CONFIG_FILE": str(path)})
    assert RECORDED == totals(receiver)
    assert (["epoch", "own", "run.log"], 1) == (sorted(receiver.record_names()), len(receiver.spans()))
    assert {"declared"} == {point.resource["service.name"] for point in receiver.all_points()}


# With code

PROVIDERS = """\
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

resource = Resource.create({"service.name": "theirs"}, "https://example.test/1")
logs, traces = LoggerProvider(resource), TracerProvider(resource=resource)
_logs.set_logger_provider(logs)
trace.set_tracer_provider(traces)
"""
EXPORTERS = """\
options = dict(endpoint=sys.argv[1], spool_dir="spool")
reader = PeriodicExportingMetricReader(monitel_otlp.MetricExporter(**options), export_interval_millis=3_600_000)
metrics.set_meter_provider(MeterProvider([reader], resource))
logs.add_log_record_processor(BatchLogRecordProcessor(monitel_otlp.LogExporter(**options)))
traces.add_span_processor(BatchSpanProcessor(monitel_otlp.SpanExporter(**options)))
"""


def test_exporters_in_the_providers_of_an_application(receiver: Receiver, train: Run) -> None:
    """Each item is sent once, with the resource of the application, and with its scopes beside the one of monitel."""
    end = "assert metrics.get_meter_provider().force_flush()\nloss.add(1)\nmetrics.get_meter_provider().shutdown()\n"
    ended = train(PROVIDERS + EXPORTERS + RECORD + end, receiver.url)
    assert {**RECORDED, "loss.count": 4} == totals(receiver)
    assert [1, 4] == receiver.values("loss.count")
    assert (["epoch", "own", "run.log"], 1) == (sorted(receiver.record_names()), len(receiver.spans()))
    for request in receiver.of("metrics"):
        (resource,) = request.message.resource_metrics
        names = [scope.scope.name for scope in resource.scope_metrics]
        assert ("https://example.test/1", len({*names})) == (resource.schema_url, len(names))
    every: list[Any] = [*receiver.all_points(), *receiver.records()]
    assert {"theirs"} == {each.resource["service.name"] for each in every}
    assert {"monitel", "mine"} == {point.scope for point in receiver.all_points()}
    assert (3, 3, None) == (
        last_line(ended.stderr).windows,
        last_line(ended.stderr).events,
        last_line(ended.stderr).dropped,
    )


BESIDE = """\
reader = InMemoryMetricReader()
provider = MeterProvider([reader], resource)
metrics.set_meter_provider(provider)
with monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0):
"""
CHECK = """\
assert metrics.get_meter_provider() is provider
data = reader.get_metrics_data().resource_metrics
print(*(metric.name for each in data for scope in each.scope_metrics for metric in scope.metrics))
"""


def test_providers_of_an_application_are_not_replaced(receiver: Receiver, train: Run) -> None:
    """``configure()`` sends monitel's items by private providers, which its resource names."""
    record = "".join(f"    {line}\n" for line in RECORD.splitlines())
    ended = train(PROVIDERS + BESIDE + record + CHECK, receiver.url)
    assert "mine\n" == ended.stdout
    assert {name: value for name, value in RECORDED.items() if name != "mine"} == totals(receiver)
    assert {("theirs", "windows")} == {
        (point.resource["service.name"], point.resource["monitel.pipeline"]) for point in receiver.all_points()
    }
    assert [] == receiver.spans()


def test_pipeline_exports_what_the_application_records_by_the_sdk(receiver: Receiver, train: Run) -> None:
    """Its providers become the global ones; instruments, records and spans arrive at exit, once, with one resource."""
    pipeline = 'monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", service_name="mine")\n'
    train(pipeline + RECORD, receiver.url)
    assert RECORDED == totals(receiver)
    (span,), (own,) = receiver.spans(), receiver.records("own")
    assert ("step", "own", "mine") == (span.name, own.body, own.scope)
    assert ["epoch", "own", "run.log"] == sorted(receiver.record_names())
    every: list[Any] = [*receiver.all_points(), *receiver.records(), *receiver.spans()]
    assert {"mine"} == {each.resource["service.name"] for each in every}
    assert 1 == len({each.resource["service.instance.id"] for each in every})
