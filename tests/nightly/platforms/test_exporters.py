"""monitel-tensorboard and monitel-otel on Windows and macOS: readable files; metrics, records and spans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.nightly.platforms.conftest import RunOn

_TENSORBOARD = """
import monitel, monitel_tensorboard

writers = [monitel_tensorboard.install("runs/first"), monitel_tensorboard.SummaryWriter("runs/second")]
loss = monitel.stat("loss", window_size=3600.0)
for step in range(100):
    monitel.set_step(step)
    loss.add(step)
monitel.emit("checkpoint", path="first.pt", seconds=1.5)
for step in range(3):
    writers[1].add_scalar("rate", step / 4, step)
"""


def test_tensorboard_reads_the_files(run_on: RunOn, platform: str, tmp_path: Path) -> None:
    """Windows, events and scalars are in files that TensorBoard reads; the exit writes the rest."""
    pytest.importorskip("monitel_tensorboard")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert "" == run_on(platform, "-c", _TENSORBOARD).stderr
    first, second = (reader.EventAccumulator(str(tmp_path / "runs" / name)) for name in ("first", "second"))
    first.Reload()
    second.Reload()
    assert [(99, 49.5)] == [(point.step, point.value) for point in first.Scalars("loss.mean")]
    assert [(99, 1.5)] == [(point.step, point.value) for point in first.Scalars("checkpoint/seconds")]
    assert "checkpoint/path" in "".join(first.Tags()["tensors"])
    assert [(0, 0.0), (1, 0.25), (2, 0.5)] == [(point.step, point.value) for point in second.Scalars("rate")]


_OTEL = """
import json
import monitel, monitel_otel
from monitel import profiler
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

reader, records, spans = InMemoryMetricReader(), InMemoryLogRecordExporter(), InMemorySpanExporter()
logs, traces = LoggerProvider(), TracerProvider()
logs.add_log_record_processor(SimpleLogRecordProcessor(records))
traces.add_span_processor(SimpleSpanProcessor(spans))
with monitel_otel.install(meter_provider=MeterProvider([reader]), logger_provider=logs, tracer_provider=traces):
    loss = monitel.Stat("train.loss", [monitel.MEAN, monitel.COUNT], 60.0)
    loss.add(0.5)
    loss.add(0.25)
    loss.flush()
    monitel.emit("checkpoint", path="first.pt")
    with profiler.record_function("save"):
        pass
scopes = reader.get_metrics_data().resource_metrics[0].scope_metrics
values = {metric.name: metric.data.data_points[0].value for scope in scopes for metric in scope.metrics}
print(json.dumps([
    values["train.loss.mean"],
    values["train.loss.count"],
    [each.log_record.event_name for each in records.get_finished_logs()],
    [each.name for each in spans.get_finished_spans()],
]))
"""


def test_otel_exports_through_the_providers(run_on: RunOn, platform: str) -> None:
    """Windows become metrics, events become log records, and ranges become spans of the application's providers."""
    pytest.importorskip("monitel_otel")
    pytest.importorskip("opentelemetry.sdk")
    finished = run_on(platform, "-c", _OTEL)
    assert [0.375, 2, ["checkpoint"], ["save"]] == json.loads(finished.stdout)
    assert "" == finished.stderr
