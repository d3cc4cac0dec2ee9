"""Numbers of log() in the providers of an application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from tests.support.inbox import DEADLINE

import monitel
import monitel_otlp.attach
import monitel_otlp.logs.application_events
from monitel_otlp import LogExporter, MetricExporter

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver


@pytest.mark.parametrize("returned", [True, False])
def test_numbers_are_points_and_the_call_is_a_record_of_the_application(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returned: bool
) -> None:
    """The record goes through the application's LoggerProvider, and back if monitel's exporter is in it."""
    arguments: dict[str, Any] = {"endpoint": receiver.url, "spool_dir": tmp_path / "spool"}
    monkeypatch.setattr(monitel_otlp.attach, "_attached", None)
    monkeypatch.setattr(monitel_otlp.attach, "_hand_over_at_exit", lambda _pipeline, **_: None)
    elsewhere: Any = InMemoryLogRecordExporter  # untyped
    elsewhere = elsewhere()
    logs = LoggerProvider(shutdown_on_exit=False)
    logs.add_log_record_processor(SimpleLogRecordProcessor(LogExporter(**arguments) if returned else elsewhere))
    monkeypatch.setattr(monitel_otlp.logs.application_events, "get_logger_provider", lambda: logs)
    reader = PeriodicExportingMetricReader(MetricExporter(**arguments), export_interval_millis=3_600_000)
    metrics = MeterProvider([reader], shutdown_on_exit=False)
    metrics.get_meter("mine").create_counter("mine").add(1)  # a reader does not export without a value
    pipeline = monitel_otlp.attach._attach(**arguments)
    monitel.log({"loss": 0.25, "tokens": 3}, step=7, split="val")
    monitel.config({"layers": [1, None], "empty": {}})
    assert metrics.force_flush()
    pipeline.force_flush(DEADLINE)
    metrics.shutdown()
    logs.shutdown()
    pipeline.shutdown()
    assert ([0.25], [3.0]) == (receiver.values("loss"), receiver.values("tokens"))
    if returned:
        found = [(record.body, record.attributes) for record in receiver.records()]
    else:
        records = [each.log_record for each in elsewhere.get_finished_logs()]
        found = [(record.body, dict(record.attributes or {})) for record in records]
    attributes = {"training.step": 7, "split": "val"}
    assert [({"loss": 0.25, "tokens": 3}, attributes), ({"layers": [1, None], "empty": {}}, {})] == found
    assert (2, 2) == (pipeline.account()["metrics"].delivered, pipeline.account()["logs"].delivered)
