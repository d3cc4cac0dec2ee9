"""In an application's own OpenTelemetry: without a line of code, by a file, in its readers, or beside it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .spools import last_line, spooled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from .conftest import Ended, Run
    from .receiver import Receiver

    class Instrument(Protocol):
        """What the fixture ``instrument`` gives."""

        def __call__(self, script: str = ..., *, env: Mapping[str, str]) -> Ended:
            """Run a script by ``opentelemetry-instrument``."""


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


@pytest.fixture
def instrument(run: Run, tmp_path: Path) -> Instrument:
    """Run a script without a line of OpenTelemetry's set-up in it."""
    if find_spec("opentelemetry.distro") is None:
        pytest.skip("pip install opentelemetry-distro opentelemetry-instrumentation")

    def instrument(script: str = TRAIN, *, env: Mapping[str, str]) -> Ended:
        path = tmp_path / "train.py"
        path.write_text(script)
        return run(Path(sys.executable).with_name("opentelemetry-instrument"), sys.executable, path, env=env)

    return instrument


def endpoint(receiver: Receiver) -> dict[str, str]:
    """Where to, and how: opentelemetry-distro says gRPC where nothing is said."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}


def test_who_records_nothing_says_nothing(receiver: Receiver, instrument: Instrument) -> None:
    """A launcher, or any other program that runs in the same environment."""
    all_three = {METRICS: "monitel", LOGS: "monitel", TRACES: "monitel", "OTEL_METRIC_EXPORT_INTERVAL": "50"}
    rounds = "from threading import Event\nEvent().wait(0.5)\n"
    ended = instrument(rounds, env={**endpoint(receiver), **all_three})
    assert ([], "") == (receiver.requests, ended.stderr)


def test_three_variables_are_enough(receiver: Receiver, instrument: Instrument) -> None:
    """Windows, events and spans, and the application's own, each once and of one resource."""
    all_three = {METRICS: "monitel", LOGS: "monitel", TRACES: "monitel", "OTEL_SERVICE_NAME": "train"}
    ended = instrument(env={**endpoint(receiver), **all_three})
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


@pytest.mark.parametrize(
    ("variable", "expected"), [(METRICS, ([3], 0, 0)), (LOGS, ([], 1, 0)), (TRACES, ([], 0, 1))]
)
def test_one_variable_is_one_signal(
    receiver: Receiver, instrument: Instrument, variable: str, expected: tuple[list[int], int, int]
) -> None:
    """What the application did not ask for stays here, and nothing hangs on it."""
    instrument(env={**endpoint(receiver), **NOBODY, variable: "monitel"})
    assert expected == (receiver.values("loss.count")[-1:], len(receiver.records()), len(receiver.spans()))


def test_windows_need_nothing_else(receiver: Receiver, instrument: Instrument) -> None:
    """No instrument of the application's, no event, and no window is closed before the end."""
    script = "import monitel\nloss = monitel.stat('loss', [monitel.COUNT], 60.0)\nloss.add(1)\n"
    instrument(script, env={**endpoint(receiver), METRICS: "monitel", LOGS: "monitel", TRACES: "none"})
    assert [1] == receiver.values("loss.count")


def test_wait_counters_of_a_short_run(receiver: Receiver, instrument: Instrument) -> None:
    """A run that ends before the pipeline has looked at it for the first time, and that logs no event."""
    script = "import monitel\nwith monitel.WaitCounter('barrier').guard():\n    pass\n"
    instrument(script, env={**endpoint(receiver), METRICS: "monitel", LOGS: "monitel", TRACES: "none"})
    assert [1] == receiver.values("barrier.count")
    assert [0] == receiver.values("barrier.active")
    assert 1 == len(receiver.values("barrier.time")) == len(receiver.values("barrier.max"))


@pytest.mark.parametrize("before", ["", "monitel.emit('begin')\n"])
def test_what_exit_functions_log(receiver: Receiver, instrument: Instrument, before: str) -> None:
    """Python calls them in the reverse order, so theirs come before those of the application's providers."""
    script = f"import atexit, monitel\n{before}atexit.register(monitel.emit, 'first')\n{before}"
    script += "atexit.register(monitel.emit, 'last')\n"
    ended = instrument(script, env={**endpoint(receiver), METRICS: "monitel", LOGS: "monitel", TRACES: "none"})
    expected = ["begin", "begin", "last", "first"] if before else ["last", "first"]
    assert expected == [record.name for record in receiver.records()]
    assert f"monitel: exported 0 windows, {len(expected)} events\n" == ended.stderr


def test_without_a_backend_it_is_kept(instrument: Instrument, tmp_path: Path) -> None:
    """The spool works here too."""
    refusing = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "XDG_STATE_HOME": str(tmp_path / "state")}
    ended = instrument(env={**refusing, METRICS: "monitel", LOGS: "monitel", TRACES: "monitel"})
    values, names = spooled(tmp_path / "state")
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
def test_a_file_declares_it(receiver: Receiver, instrument: Instrument, tmp_path: Path) -> None:
    """``OTEL_CONFIG_FILE``, with the exporters by their name; there the TracerProvider shuts down last."""
    path = tmp_path / "otel.yaml"
    path.write_text(DECLARED)
    instrument(env={**endpoint(receiver), "OTEL_CONFIG_FILE": str(path)})
    assert (3, ["epoch"], ["step"]) == (
        receiver.values("loss.count")[-1],
        [record.name for record in receiver.records()],
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


def test_an_exporter_in_their_reader(receiver: Receiver, train: Run) -> None:
    """Windows travel in the requests of their reader, when it collects: same resource, same request."""
    flush = "assert provider.force_flush()\nloss.add(1)\nprovider.shutdown()\n"
    train(THEIRS + READER + TRAIN + flush, receiver.url)
    assert 4 == receiver.values("loss.count")[-1]
    assert {"theirs"} == {point.resource["service.name"] for point in receiver.all_points()}
    assert {2} == set(receiver.values("mine"))


def test_exporters_share_a_pipeline(receiver: Receiver, train: Run) -> None:
    """Two readers, two exporters: each window travels once."""
    again = READER.replace("metrics.set_meter_provider(provider)\n", "")
    train(THEIRS + READER + again + TRAIN, receiver.url)
    assert 3 == receiver.values("loss.count")[-1]
    assert 2 >= len(receiver.values("loss.count"))


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


def test_their_provider_is_left_alone(receiver: Receiver, train: Run) -> None:
    """``configure()`` beside it sends the windows by a private one, and says so in the resource."""
    train(THEIRS + BESIDE + TRAIN + CHECK, receiver.url)
    points = receiver.points("loss.count")
    assert 3 == points[-1].value
    assert {"windows"} == {point.resource["monitel.pipeline"] for point in points}
    assert [] == receiver.points("mine")
    assert ["epoch"] == [record.name for record in receiver.records()]


def test_their_resource_is_taken_from_their_other_providers(receiver: Receiver, train: Run) -> None:
    """A MeterProvider does not tell its resource; a TracerProvider does."""
    tracing = "from opentelemetry import trace\nfrom opentelemetry.sdk.trace import TracerProvider\n"
    tracing += "trace.set_tracer_provider(TracerProvider(resource=resource))\n"
    train(THEIRS + tracing + BESIDE + TRAIN + CHECK, receiver.url)
    points = receiver.points("loss.count")
    assert {("theirs", "windows")} == {
        (point.resource["service.name"], point.resource["monitel.pipeline"]) for point in points
    }
    assert [] == receiver.spans()
