"""monitel_otel with the providers that the application sets, and without an SDK."""

from contextlib import ExitStack

import pytest
from opentelemetry import metrics, trace
from opentelemetry._logs import set_logger_provider
from tests.support.scripts import Run
from tests.unit.promises.providers import in_memory

import monitel
import monitel_otel

SHUT_DOWN = """\
import os, sys
os.environ["MONITEL_RUN_EVENTS"] = "1"
from opentelemetry import metrics
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, ConsoleLogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
import monitel, monitel_otel

def meter_provider():
    exporter = ConsoleMetricExporter(formatter=lambda data: data.to_json(indent=None) + "\\n")
    return MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)])

logger_provider, tracer_provider = LoggerProvider(), TracerProvider()
logger_provider.add_log_record_processor(BatchLogRecordProcessor(ConsoleLogRecordExporter()))
tracer_provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
provider = None if sys.argv[1] == "later" else meter_provider()
monitel_otel.install(provider, logger_provider, tracer_provider, spans={"budget": 1})
if provider is None:
    metrics.set_meter_provider(meter_provider())
monitel.set_step(1)
for name in ("own", "folded"):
    with monitel.profiler.record_function(name):
        pass
monitel.stat("step.time", unit="µs").add(5)
if sys.argv[1] == "explicit":
    provider.shutdown()
if sys.argv[1] == "raises":
    monitel.register_event_handler(lambda event: event.window and 1 / 0)
if sys.argv[1] == "ctrl-c":
    monitel.register_event_handler(lambda event: event.window and os.kill(os.getpid(), 2))
"""

FORK = """\
import os, sys
import monitel, monitel_otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
monitel_otel.install(tracer_provider=provider, spans={"budget": 1})
monitel.set_step(1)
with monitel.profiler.record_function("own"):
    with monitel.profiler.record_function("folded"):
        pass
    sys.stdout.flush()
    if child := os.fork():
        os.waitpid(child, 0)
"""

NO_SDK = """\
import sys
import monitel, monitel_otel

with monitel_otel.install():
    stat = monitel.Stat("loss", monitel.stats.definition.TORCHS, 1e9)
    for number in range(3):
        stat.add(number)
        stat.flush()
    monitel.emit("epoch")
print([name for name in sys.modules if name.startswith("opentelemetry.sdk")])
"""


@pytest.mark.parametrize("when", ["set install", "install set", "install set install"])
def test_global_providers_are_the_default(when: str) -> None:
    """This is so even if the application sets them later, as frameworks do, and if a notebook's cell runs again."""
    with in_memory() as backend, ExitStack() as stack, monitel.testing.ManualClock() as clock:
        for step in when.split():
            if step == "install":
                stack.enter_context(monitel_otel.install(spans=True))
            else:
                metrics.set_meter_provider(backend.meter_provider)
                set_logger_provider(backend.logger_provider)
                trace.set_tracer_provider(backend.tracer_provider)
        stat = monitel.Stat("loss", [monitel.SUM], 60.0)
        stat.add(5)
        clock.advance(60)
        monitel.emit("epoch")
        with monitel.profiler.record_function("step"):
            pass
        assert {"loss.sum": 5.0, "monitel.windows": 1}.items() <= backend.values().items()
        assert ["epoch"] == [each.event_name for each in backend.records()]
        assert ["step"] == [each.name for each in backend.spans()]


@pytest.mark.parametrize("how", ["at exit", "later", "explicit", "raises", "ctrl-c"])
def test_what_is_open_at_the_end_is_exported(run: Run, how: str) -> None:
    """The providers shut down before monitel, at exit, if they are set after install() too, or by the application.

    So it is if an event handler of the application raises then, or Ctrl-C is pressed.
    """
    ended = run("-c", SHUT_DOWN, how, fresh=True)
    assert (how == "raises") == ("ZeroDivisionError" in ended.stderr) == bool(ended.stderr)
    assert '"name": "step.time.mean", "description": "", "unit": "us"' in ended.stdout
    assert '"name": "monitel.folded"' in ended.stdout
    assert '"event_name": "run.ended"' in ended.stdout


def test_forked_child_leaves_folded_ranges_to_its_parent(run: Run) -> None:
    """And the end of one that is open; both processes end normally."""
    ended = run("-c", FORK, fresh=True)
    assert ended.stdout.count('"name": "own"') == ended.stdout.count('"name": "monitel.folded"') == 1


@pytest.mark.parametrize("given", ["", "MeterProvider(), LoggerProvider()"])
@pytest.mark.parametrize("is_first", [True, False])
def test_installation_beside_a_pipeline_is_reported(run: Run, given: str, is_first: bool) -> None:
    """Everything would arrive twice, unless the installation has other providers."""
    calls = ["monitel_otlp.configure(spool_dir='spool')", f"monitel_otel.install({given})"]
    imports = "from opentelemetry.sdk.metrics import MeterProvider\nfrom opentelemetry.sdk._logs import LoggerProvider"
    script = "\n".join([imports, "import monitel_otel, monitel_otlp", *(calls if is_first else calls[::-1])])
    assert (given == "") == run("-c", script, fresh=True).stderr.count("arrive twice")


def test_api_without_an_sdk(run: Run) -> None:
    """Nothing is exported, loaded or logged, so that a library may install monitel_otel."""
    ended = run("-c", NO_SDK, fresh=True)
    assert ("[]\n", "") == (ended.stdout, ended.stderr)
