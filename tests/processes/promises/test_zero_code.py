"""A pipeline without code by ``opentelemetry-instrument``, and monitel beside the application's OpenTelemetry."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from tests.processes.patience import LONG, SHORT, with_patience
from tests.support.pipelines import Start
from tests.support.receiver import Receiver
from tests.support.scripts import Ended, Run
from tests.support.spools import last_line

Instrument = Callable[..., Ended]  # type of the fixture ``instrument``

METRICS, LOGS, TRACES = ("OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER", "OTEL_TRACES_EXPORTER")
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


#: What of it monitel's pipeline sends: the rest goes through the exporters of the distribution.
OWN = {name: value for name, value in RECORDED.items() if name != "mine"}


#: Resources lack the name of the distribution, and a schema.
pytestmark = pytest.mark.invalid_output(
    "the resource belongs to the application", "resource.distro", "resource.schema", "resource.required"
)


@pytest.fixture
def instrument(receiver: Receiver, run: Run, tmp_path: Path) -> Instrument:
    if find_spec("opentelemetry.distro") is None:
        pytest.skip("pip install opentelemetry-distro opentelemetry-instrumentation")

    def instrument(script: str, **env: str) -> Ended:
        seconds = SHORT if "OTEL_EXPORTER_OTLP_ENDPOINT" in env else LONG
        (tmp_path / "train.py").write_text(with_patience(script, seconds))
        program = Path(sys.executable).with_name("opentelemetry-instrument")
        usual = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        usual |= dict.fromkeys([METRICS, LOGS, TRACES], "otlp_proto_http")
        return run(program, sys.executable, tmp_path / "train.py", env={**usual, **env})

    return instrument


def totals(receiver: Receiver) -> dict[str, float]:
    return {name: receiver.values(name)[-1] for name in RECORDED if receiver.points(name)}


def test_both_pipelines_send_what_a_script_records(receiver: Receiver, instrument: Instrument) -> None:
    """Monitel's items by monitel, the application's by the distribution's exporters; both have the rank."""
    rank = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "monitel", "RANK": "3", "WORLD_SIZE": "4"}
    ended = instrument(RECORD, **rank, OTEL_SERVICE_NAME="train")
    assert RECORDED == totals(receiver)
    assert ["epoch", "own", "run.log"] == sorted(receiver.record_names())
    (span,), (event,) = receiver.spans(), receiver.records("epoch")
    assert ("step", span.trace_id, span.span_id) == (span.name, event.trace_id, event.span_id)
    every: list[Any] = [*receiver.all_points(), *receiver.records()]
    keys = ("service.name", "training.rank", "training.world_size")
    assert {("train", 3, 4)} == {tuple(each.resource[key] for key in keys) for each in every}
    line = last_line(ended.stderr)
    assert (3, 2, None, None) == (line.windows, line.events, line.dropped, line.spooled)


@pytest.mark.parametrize("switch", ["OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "OTEL_SDK_DISABLED"])
def test_pipeline_can_be_switched_off(receiver: Receiver, instrument: Instrument, switch: str) -> None:
    """By the name of the instrumentation, or with the SDK."""
    ended = instrument(RECORD, **{TRACES: "none", switch: "true" if switch == "OTEL_SDK_DISABLED" else "monitel"})
    assert {"mine"} >= totals(receiver).keys()
    assert set() == {*receiver.record_names()} - {"own"}
    assert "monitel: exported" not in ended.stderr


def test_pipeline_of_the_program_takes_its_place(receiver: Receiver, instrument: Instrument) -> None:
    """Events from before arrive once; the distribution's providers stay the global ones."""
    script = """\
import monitel, monitel_otlp
from opentelemetry import trace
before = trace.get_tracer_provider()
monitel.emit("early")
with monitel_otlp.configure(service_name="mine"):
    monitel.emit("late")
    assert trace.get_tracer_provider() is before
"""
    instrument(script)
    assert ["early", "late"] == receiver.record_names()


DECLARED = """\
file_format: "1.0"
resource:
  attributes:
    - {name: service.name, value: declared}
tracer_provider:
  processors:
    - batch: {exporter: {otlp_http: {endpoint: "URL/v1/traces"}}}
"""


@pytest.mark.skipif(find_spec("opentelemetry.configuration") is None, reason="pip install opentelemetry-configuration")
@pytest.mark.skipif(find_spec("yaml") is None, reason="pip install pyyaml")
def test_pipeline_beside_a_configuration_file(receiver: Receiver, instrument: Instrument, tmp_path: Path) -> None:
    """With OTEL_CONFIG_FILE, which configures the application's providers alone."""
    path = tmp_path / "otel.yaml"
    path.write_text(DECLARED.replace("URL", receiver.url))
    instrument(RECORD, OTEL_CONFIG_FILE=str(path))
    assert OWN == totals(receiver)
    assert (["epoch", "run.log"], 1) == (sorted(receiver.record_names()), len(receiver.spans()))


def test_providers_of_an_application_are_not_replaced(receiver: Receiver, start: Start) -> None:
    """With code ``configure()`` sends monitel's items with their resource, to which nothing is added about the host."""
    resource = Resource({"service.name": "theirs"}, "https://example.test/1")
    provider = MeterProvider([reader := InMemoryMetricReader()], resource, shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    _logs.set_logger_provider(LoggerProvider(resource, shutdown_on_exit=False))
    trace.set_tracer_provider(TracerProvider(resource=resource, shutdown_on_exit=False))
    pipeline = start()
    exec(RECORD, {})
    pipeline.shutdown()
    assert metrics.get_meter_provider() is provider
    data = reader.get_metrics_data()
    assert data is not None
    scopes = [scope for each in data.resource_metrics for scope in each.scope_metrics]
    assert ["mine"] == [each.name for scope in scopes for each in scope.metrics]
    assert OWN == totals(receiver)
    expected = {"service.name": "theirs", "monitel.pipeline": "windows"}
    assert not [point.resource for point in receiver.all_points() if point.resource != expected]
    assert [] == receiver.spans()
