"""Export through the application's OpenTelemetry: by variables, by a configuration file, in a reader, or beside it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from tests.support.spools import last_line, spooled

from monitel_otel import SCHEMA_URL

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Instrument, Run


METRICS, LOGS, TRACES = ("OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER", "OTEL_TRACES_EXPORTER")
NOBODY = {METRICS: "none", LOGS: "none", TRACES: "none"}
TRAIN = """\
import monitel
from monitel import COUNT
from opentelemetry import metrics, trace

loss = monitel.stat("loss", [COUNT], 60.0)
loss.add(1)
loss.flush()
with trace.get_tracer("mine").start_as_current_span("step"):
    monitel.emit("epoch")
metrics.get_meter("mine").create_counter("mine").add(2)
loss.add(1)  # in a window that is still open at exit
loss.add(1)
"""


def endpoint(receiver: Receiver) -> dict[str, str]:
    """Return the variables for an endpoint; without the protocol, opentelemetry-distro would set gRPC."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}


def test_process_without_telemetry_sends_and_prints_nothing(receiver: Receiver, instrument: Instrument) -> None:
    """For example a launcher, which runs with the same variables."""
    all_three = {METRICS: "monitel", LOGS: "monitel", TRACES: "monitel", "OTEL_METRIC_EXPORT_INTERVAL": "50"}
    rounds = "from threading import Event\nEvent().wait(0.5)\n"
    ended = instrument(rounds, env={**endpoint(receiver), **all_three})
    assert ([], "") == (receiver.requests, ended.stderr)


def test_three_variables_export_all_signals(receiver: Receiver, instrument: Instrument) -> None:
    """Items of monitel and of the application arrive once, with the same resource."""
    all_three = {METRICS: "monitel", LOGS: "monitel", TRACES: "monitel", "OTEL_SERVICE_NAME": "train"}
    ended = instrument(TRAIN, env={**endpoint(receiver), **all_three})
    (event,), (span,) = receiver.records(), receiver.spans()
    assert (3, "epoch", "step") == (receiver.values("loss.count")[-1], event.name, span.name)
    assert (span.trace_id, span.span_id) == (event.trace_id, event.span_id)
    assert {2} == set(receiver.values("mine"))
    resources = [point.resource for point in receiver.all_points()] + [event.resource]
    assert {"train"} == {resource["service.name"] for resource in resources}
    assert 1 == len({resource["service.instance.id"] for resource in resources})
    assert (2, 1, None, None) == (
        last_line(ended.stderr).windows,
        last_line(ended.stderr).events,
        last_line(ended.stderr).dropped,
        last_line(ended.stderr).spooled,
    )


@pytest.mark.parametrize(("variable", "expected"), [(METRICS, ([3], 0, 0)), (LOGS, ([], 1, 0)), (TRACES, ([], 0, 1))])
def test_one_variable_exports_one_signal(
    receiver: Receiver, instrument: Instrument, variable: str, expected: tuple[list[int], int, int]
) -> None:
    """Other signals are not sent, and do not delay the exit."""
    instrument(TRAIN, env={**endpoint(receiver), **NOBODY, variable: "monitel"})
    assert expected == (receiver.values("loss.count")[-1:], len(receiver.records()), len(receiver.spans()))


def test_window_that_is_open_at_exit_is_exported(receiver: Receiver, instrument: Instrument) -> None:
    """The window arrives even if the application has no instrument and no event."""
    script = "import monitel\nloss = monitel.stat('loss', [monitel.COUNT], 60.0)\nloss.add(1)\n"
    instrument(script, env={**endpoint(receiver), METRICS: "monitel", LOGS: "monitel", TRACES: "none"})
    assert [1] == receiver.values("loss.count")


def test_wait_counters_of_a_short_run_are_exported(receiver: Receiver, instrument: Instrument) -> None:
    """The run ends before the first collection, and logs no event."""
    script = "import monitel\nwith monitel.WaitCounter('barrier').guard():\n    pass\n"
    instrument(script, env={**endpoint(receiver), METRICS: "monitel", LOGS: "monitel", TRACES: "none"})
    assert [1] == receiver.values("barrier.wait.count")
    assert [0] == receiver.values("barrier.wait.active")
    assert 1 == len(receiver.values("barrier.wait.time")) == len(receiver.values("barrier.wait.max"))


def test_counters_of_a_short_run_are_exported(receiver: Receiver, instrument: Instrument) -> None:
    """The run ends before the first collection, and records nothing else."""
    script = "import monitel\nmonitel.counter('samples').add(60)\nmonitel.set_step(7)\n"
    instrument(script, env={**endpoint(receiver), METRICS: "monitel", LOGS: "monitel", TRACES: "none"})
    assert ({60}, {7}) == (set(receiver.values("samples")), set(receiver.values("training.step")))


COUNTING = """\
from threading import Event
import monitel
from monitel_otlp import attach

samples = monitel.counter("samples")
samples.add(1)
pause = Event()
for _ in range(2000):  # until the reader has collected
    if attach._attached.engine.metric_requests._readings._sums._sent:
        break
    pause.wait(0.01)
samples.add(1)
"""


def test_counters_are_exported_during_a_run(receiver: Receiver, instrument: Instrument) -> None:
    """A reader without any instrument would not collect; a process that only counts has monitel's instruments."""
    variables = {METRICS: "monitel", LOGS: "monitel", TRACES: "none", "OTEL_METRIC_EXPORT_INTERVAL": "50"}
    instrument(COUNTING, env={**endpoint(receiver), **variables})
    assert {1, 2} == set(receiver.values("samples"))


@pytest.mark.parametrize("before", ["", "monitel.emit('begin')\n"])
def test_events_of_exit_functions_are_exported(receiver: Receiver, instrument: Instrument, before: str) -> None:
    """Python calls exit functions in reverse order, so those of the application run before those of its providers."""
    script = f"import atexit, monitel\n{before}atexit.register(monitel.emit, 'first')\n{before}"
    script += "atexit.register(monitel.emit, 'last')\n"
    ended = instrument(script, env={**endpoint(receiver), METRICS: "monitel", LOGS: "monitel", TRACES: "none"})
    expected = ["begin", "begin", "last", "first"] if before else ["last", "first"]
    assert expected == receiver.record_names()
    assert f"monitel: exported 0 windows and numbers, {len(expected)} events\n" == ended.stderr


def test_items_are_spooled_without_a_backend(instrument: Instrument, tmp_path: Path) -> None:
    """The last line reports the number of spooled items."""
    refusing = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "XDG_STATE_HOME": str(tmp_path / "state")}
    ended = instrument(TRAIN, env={**refusing, METRICS: "monitel", LOGS: "monitel", TRACES: "monitel"})
    values, names = spooled(tmp_path / "state", distro=False)
    assert (3, ["epoch"]) == (values[-1], names)
    assert 4 == last_line(ended.stderr).spooled


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
    instrument(TRAIN, env={**endpoint(receiver), "OTEL_CONFIG_FILE": str(path)})
    assert (3, ["epoch"], ["step"]) == (
        receiver.values("loss.count")[-1],
        receiver.record_names(),
        [span.name for span in receiver.spans()],
    )
    assert {"declared"} == {point.resource["service.name"] for point in receiver.all_points()}


THEIRS = """\
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

resource = Resource.create({"service.name": "theirs"})
"""
READER = """\
reader = PeriodicExportingMetricReader(
    monitel_otlp.MetricExporter(endpoint=sys.argv[1], spool_dir="spool"), export_interval_millis=3_600_000
)
provider = MeterProvider([reader], resource)
metrics.set_meter_provider(provider)
"""


def test_exporter_in_a_reader_of_the_application(receiver: Receiver, train: Run) -> None:
    """Windows are in the requests of the reader, with its resource."""
    flush = "assert provider.force_flush()\nloss.add(1)\nprovider.shutdown()\n"
    train(THEIRS + READER + TRAIN + flush, receiver.url)
    assert 4 == receiver.values("loss.count")[-1]
    assert {"theirs"} == {point.resource["service.name"] for point in receiver.all_points()}
    assert {2} == set(receiver.values("mine"))


def test_exporters_share_a_pipeline(receiver: Receiver, train: Run) -> None:
    """With two exporters in two readers, each window is sent once."""
    again = READER.replace("metrics.set_meter_provider(provider)\n", "")
    train(THEIRS + READER + again + TRAIN, receiver.url)
    assert 3 == receiver.values("loss.count")[-1]
    assert 2 >= len(receiver.values("loss.count"))


def test_scope_of_monitel_is_one_in_the_request_of_the_application(receiver: Receiver, train: Run) -> None:
    """Windows, counters and the instruments of the pipeline are in it. Resource and scopes keep the given schemas."""
    theirs = THEIRS.replace('{"service.name": "theirs"}', '{"service.name": "theirs"}, "https://example.test/1"')
    assert theirs != THEIRS
    train(theirs + READER + TRAIN + 'monitel.counter("samples").add(1)\n', receiver.url)
    for request in receiver.of("metrics"):
        (resource,) = request.message.resource_metrics
        assert "https://example.test/1" == resource.schema_url
        names = [scope.scope.name for scope in resource.scope_metrics]
        assert 1 == names.count("monitel")
        assert len(set(names)) == len(names)
        schemas = {scope.scope.name: scope.schema_url for scope in resource.scope_metrics}
        assert {"monitel": SCHEMA_URL, "mine": ""}.items() >= schemas.items()
    of_monitel = {point.metric for point in receiver.all_points() if point.scope == "monitel"}
    assert {"loss.count", "samples", "monitel.queue.size", "monitel.spool.size"} <= of_monitel


BESIDE = """\
reader = InMemoryMetricReader()
provider = MeterProvider([reader], resource)
metrics.set_meter_provider(provider)
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
assert metrics.get_meter_provider() is provider and pipeline.meter_provider is not provider
"""
CHECK = """\
data = reader.get_metrics_data().resource_metrics
found = [metric.name for each in data for scope in each.scope_metrics for metric in scope.metrics]
assert ["mine"] == found, found
"""


def test_provider_of_the_application_is_not_replaced(receiver: Receiver, train: Run) -> None:
    """``configure()`` sends windows through a private provider, which its resource names."""
    train(THEIRS + BESIDE + TRAIN + CHECK, receiver.url)
    points = receiver.points("loss.count")
    assert 3 == points[-1].value
    assert {"windows"} == {point.resource["monitel.pipeline"] for point in points}
    assert [] == receiver.points("mine")
    assert ["epoch"] == receiver.record_names()


def test_resource_of_the_application_is_used(receiver: Receiver, train: Run) -> None:
    """The resource is read from the TracerProvider, because a MeterProvider does not expose it."""
    tracing = "from opentelemetry import trace\nfrom opentelemetry.sdk.trace import TracerProvider\n"
    tracing += "trace.set_tracer_provider(TracerProvider(resource=resource))\n"
    train(THEIRS + tracing + BESIDE + TRAIN + CHECK, receiver.url)
    points = receiver.points("loss.count")
    assert {("theirs", "windows")} == {
        (point.resource["service.name"], point.resource["monitel.pipeline"]) for point in points
    }
    assert [] == receiver.spans()
