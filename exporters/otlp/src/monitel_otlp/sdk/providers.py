"""The pipeline's own OpenTelemetry providers, and how what they hold is put into requests."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry.sdk.metrics import MeterProvider, TraceBasedExemplarFilter
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from monitel_otlp.sdk._compat import LoggerProvider, LogRecordLimits
from monitel_otlp.sdk.processors import RecordProcessor, SpanQueue, drain

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.resources import Resource

    from monitel_otlp.sdk.exporters import BatchExporter, WindowExporter
    from monitel_otlp.accounting import Tally


_log = logging.getLogger("monitel.otlp")

_NONE, _COUNT = -1, 128  # OpenTelemetry's limits where no variable sets others

_Provider = TypeVar("_Provider")


class Providers:
    """A provider for each signal; no thread of the SDK's, the delivery thread says when.

    Args:
        resource: Who is speaking.
        windows: Encodes what the reader collects, windows with it.
        records: Encodes log records.
        spans: Encodes spans.
        flush: What ``force_flush`` of a processor does, given seconds.
        limit: Log records, and spans, that wait to be encoded; the oldest are dropped, and counted.
    """

    def __init__(  # noqa: PLR0917  an exporter for each signal
        self,
        resource: Resource,
        windows: WindowExporter,
        records: BatchExporter,
        spans: BatchExporter,
        flush: Callable[[float], bool],
        limit: int,
    ) -> None:
        self._records = RecordProcessor(limit, flush)
        self._spans = SpanQueue(limit, flush)
        self._export_records = records.export
        self._export_spans = spans.export
        self._reader = PeriodicExportingMetricReader(windows, export_interval_millis=math.inf)
        self.meter_provider = _tolerant(
            lambda **more: MeterProvider([self._reader], resource, shutdown_on_exit=False, **more),
            lambda: {"exemplar_filter": TraceBasedExemplarFilter()},
        )
        self.logger_provider = _tolerant(
            lambda **more: LoggerProvider(resource, shutdown_on_exit=False, **more),
            lambda: {"log_record_limits": LogRecordLimits(_NONE, _NONE, _COUNT, _NONE)},
        )
        self.logger_provider.add_log_record_processor(self._records)
        self.tracer_provider = _tolerant(
            lambda **more: TracerProvider(resource=resource, shutdown_on_exit=False, **more),
            lambda: {"sampler": DEFAULT_ON, "span_limits": _span_limits()},
        )
        self.tracer_provider.add_span_processor(self._spans)

    def collect(self) -> None:
        """Put what the instruments hold into a request, and as many windows as go with it."""
        self._reader.collect()

    def drain(self) -> None:
        """Put the log records and spans that wait into requests."""
        drain(self._records.queue, self._export_records)
        drain(self._spans.queue, self._export_spans)

    def count_drops(self, tally: Tally) -> None:
        """Tell the tally what the queues have dropped."""
        tally.dropped("logs", "queue_full", self._records.queue.take_dropped())
        tally.dropped("traces", "queue_full", self._spans.queue.take_dropped())


def _span_limits() -> SpanLimits:
    return SpanLimits(
        max_attributes=_NONE,
        max_events=_COUNT,
        max_links=_COUNT,
        max_span_attributes=_COUNT,
        max_event_attributes=_COUNT,
        max_link_attributes=_COUNT,
        max_attribute_length=_NONE,
        max_span_attribute_length=_NONE,
    )


def _tolerant(make: Callable[..., _Provider], defaults: Callable[[], dict[str, Any]]) -> _Provider:
    """Make a provider; where one of the SDK's own variables is malformed, say so and make it without them."""
    try:
        return make()
    except ValueError as error:
        _log.warning("a variable of the OpenTelemetry SDK cannot be read, and its default holds: %s", error)
        return make(**defaults())
