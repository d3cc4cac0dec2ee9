"""An application's OpenTelemetry providers in memory, with everything that they have exported."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.validity.requests import assert_valid

import monitel_otel
from monitel_otel import Installation


@dataclass
class Backend:
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    exporter: InMemoryLogRecordExporter = field(default_factory=InMemoryLogRecordExporter)
    span_exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def __post_init__(self) -> None:
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.logger_provider = LoggerProvider(shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self.exporter))
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.span_exporter))
        self._collected: list[tuple[str, Any]] = []

    def install(self, **options: Any) -> Installation:
        return monitel_otel.install(self.meter_provider, self.logger_provider, self.tracer_provider, **options)

    def collect(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        if data is not None:
            self._collected.append(("metrics", encode_metrics(data)))
        return {
            metric.name: metric
            for resource_metrics in (data.resource_metrics if data else [])
            for scope_metrics in resource_metrics.scope_metrics
            if scope_metrics.scope.name == "monitel"
            for metric in scope_metrics.metrics
        }

    def values(self) -> dict[str, float]:
        return {
            name: metric.data.data_points[0].value
            for name, metric in self.collect().items()
            if len(metric.data.data_points) == 1
        }

    def records(self) -> list[Any]:
        return [each.log_record for each in self.exporter.get_finished_logs()]

    def spans(self) -> list[ReadableSpan]:
        return list(self.span_exporter.get_finished_spans())

    def exported(self) -> list[tuple[str, Any]]:
        """Return signal and message of a request for each collection, and of one for all records and all spans."""
        logs, spans = self.exporter.get_finished_logs(), self.span_exporter.get_finished_spans()
        return [*self._collected, ("logs", encode_logs(logs)), ("traces", encode_spans(spans))]


@contextmanager
def in_memory() -> Iterator[Backend]:
    """Yield providers of OpenTelemetry's SDK, and check everything that they have exported, unless the block raises."""
    backend = Backend()
    yield backend
    assert_valid(backend.exported(), distro=False)
