"""monitel_otel with the providers that the application sets, and without an SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripts import Run

GLOBALS = """\
import sys
import monitel, monitel_otel
from opentelemetry import metrics, trace
from opentelemetry._logs import set_logger_provider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

reader, exporter, spans = InMemoryMetricReader(), InMemoryLogRecordExporter(), InMemorySpanExporter()

def set_providers():
    metrics.set_meter_provider(MeterProvider([reader]))
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    set_logger_provider(provider)
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(tracing)

if sys.argv[1] == "before":
    set_providers()
installation = monitel_otel.install(spans=True)
if sys.argv[1] == "after":
    set_providers()
stat = monitel.Stat("loss", [monitel.SUM], 1e9)
stat.add(5)
stat.flush()
monitel.emit("epoch")
with monitel.profiler.record_function("step"):
    pass
data = reader.get_metrics_data()
for metric in data.resource_metrics[0].scope_metrics[0].metrics:
    print(metric.name, metric.data.data_points[0].value)
print([each.name for each in spans.get_finished_spans()])
print([each.log_record.event_name for each in exporter.get_finished_logs()])
"""

NO_SDK = """\
import sys
import monitel, monitel_otel

with monitel_otel.install():
    stat = monitel.Stat("loss", monitel.aggregation.TORCHS, 1e9)
    for number in range(3):
        stat.add(number)
        stat.flush()
    monitel.emit("epoch")
print([name for name in sys.modules if name.startswith("opentelemetry.sdk")])
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_global_providers_are_the_default(run: Run, tmp_path: Path, when: str) -> None:
    """This is so even if the application sets them later, as frameworks do."""
    (tmp_path / "script.py").write_text(GLOBALS)
    ended = run(tmp_path / "script.py", when)
    assert {"loss.sum 5.0", "monitel.windows 1", "['epoch']", "['step']"} <= {*ended.stdout.splitlines()}
    assert "" == ended.stderr


def test_api_without_an_sdk(run: Run, tmp_path: Path) -> None:
    """Nothing is exported, loaded or logged, so that a library may install monitel_otel."""
    (tmp_path / "script.py").write_text(NO_SDK)
    ended = run(tmp_path / "script.py", fresh=True)
    assert ("[]\n", "") == (ended.stdout, ended.stderr)
