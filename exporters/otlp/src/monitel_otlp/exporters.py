"""The official exporters as encoders: what they would send goes to the delivery queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

import monitel
from monitel_otlp._compat import LogRecordExporter, LogRecordExportResult, OTLPLogExporter, preferences
from monitel_otlp.handover import HandOver, Route

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from monitel_otlp._compat import ReadableLogRecord
    from monitel_otlp.mapping import WindowMapping
    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.windows import WindowQueue

_SCOPE = InstrumentationScope("monitel", monitel.__version__)
_WINDOWS_A_REQUEST = 500


class WindowExporter(MetricExporter):
    """Adds the queued windows to the requests of the SDK's own reader: same resource, same request.

    Args:
        windows: Where they wait.
        mapping: How they become metrics.
        put: Gets the finished requests.
        settings: Arguments of the official exporter: ``endpoint`` and ``headers``.
    """

    def __init__(
        self,
        windows: WindowQueue,
        mapping: WindowMapping,
        put: Callable[[FrozenRequest], None],
        settings: dict[str, Any],
    ) -> None:
        self._windows = windows
        self._mapping = mapping
        self._handover = HandOver("metrics", put)
        self._encoder = OTLPMetricExporter(session=self._handover.session(), **settings)
        super().__init__(**preferences(self._encoder))

    def learn_route(self) -> Route | None:
        """How to send, found by having an empty request prepared; None when the exporter could not make one."""
        self._encoder.export(MetricsData([]))
        return self._handover.route

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Encode what the reader collected and as many windows as go into one request."""
        entries = self._windows.take(_WINDOWS_A_REQUEST)
        self._handover.items = len(entries)
        try:
            merged = _with_metrics(metrics_data, self._mapping.metrics(entries)) if entries else metrics_data
            return self._encoder.export(merged, timeout_millis, **kwargs)
        finally:
            self._handover.items = None

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002  nothing is held here
        """Nothing is held here."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Take no more."""
        self._encoder.shutdown(timeout_millis, **kwargs)


def _with_metrics(metrics_data: MetricsData, metrics: list[Any]) -> MetricsData:
    first, *others = metrics_data.resource_metrics
    scopes = list(first.scope_metrics)
    for position, scope in enumerate(scopes):
        if scope.scope == _SCOPE:  # the encoder keeps one of two equal scopes and drops the other
            scopes[position] = replace(scope, metrics=[*scope.metrics, *metrics])
            break
    else:
        scopes.append(ScopeMetrics(_SCOPE, metrics, ""))
    return MetricsData([ResourceMetrics(first.resource, scopes, first.schema_url), *others])


class RecordExporter(LogRecordExporter):
    """Encodes log records; see :class:`WindowExporter` for the arguments."""

    def __init__(self, put: Callable[[FrozenRequest], None], settings: dict[str, Any]) -> None:
        self._handover = HandOver("logs", put)
        self._encoder = OTLPLogExporter(session=self._handover.session(), **settings)

    def learn_route(self) -> Route | None:
        """How to send, found by having an empty request prepared; None when the exporter could not make one."""
        self._encoder.export([])
        return self._handover.route

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Encode one batch."""
        self._handover.items = len(batch)
        try:
            return self._encoder.export(batch)
        finally:
            self._handover.items = None

    def force_flush(self, timeout_millis: int = 10_000) -> bool:  # noqa: ARG002  nothing is held here
        """Nothing is held here."""
        return True

    def shutdown(self) -> None:
        """Take no more."""
        self._encoder.shutdown()  # type: ignore[no-untyped-call]  # OpenTelemetry left it untyped


class RangeExporter(SpanExporter):
    """Encodes spans; see :class:`WindowExporter` for the arguments."""

    def __init__(self, put: Callable[[FrozenRequest], None], settings: dict[str, Any]) -> None:
        self._handover = HandOver("traces", put)
        self._encoder = OTLPSpanExporter(session=self._handover.session(), **settings)

    def learn_route(self) -> Route | None:
        """How to send, found by having an empty request prepared; None when the exporter could not make one."""
        self._encoder.export([])
        return self._handover.route

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode one batch."""
        self._handover.items = len(spans)
        try:
            return self._encoder.export(spans)
        finally:
            self._handover.items = None

    def shutdown(self) -> None:
        """Take no more."""
        self._encoder.shutdown()  # type: ignore[no-untyped-call]  # OpenTelemetry left it untyped
