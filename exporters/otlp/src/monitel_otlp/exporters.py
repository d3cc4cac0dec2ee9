"""The official exporters as encoders: what they would send goes to the delivery queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    Metric,
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
from monitel_otlp.handover import HandOver, Route, headers_unsaid
from monitel_otlp.tally import PIPELINE_SCOPE, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from monitel_otlp._compat import ReadableLogRecord
    from monitel_otlp.mapping import WindowMapping
    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.windows import WindowQueue

_SCOPE = InstrumentationScope("monitel", monitel.__version__)
_WINDOWS_A_REQUEST = 100


class WindowExporter(MetricExporter):
    """Adds the queued windows to the requests of the SDK's own reader: same resource, same request.

    When something of the user's cannot be encoded, the windows go without it.

    Args:
        windows: Where they wait.
        mapping: How they become metrics.
        put: Gets the finished requests.
        tally: Told what could not be encoded.
        settings: Arguments of the official exporter: ``endpoint`` and ``headers``.
    """

    def __init__(
        self,
        windows: WindowQueue,
        mapping: WindowMapping,
        put: Callable[[FrozenRequest], None],
        tally: Tally,
        settings: dict[str, Any],
    ) -> None:
        self._windows = windows
        self._mapping = mapping
        self._tally = tally
        self._handover = HandOver("metrics", put)
        with headers_unsaid():
            self._encoder = OTLPMetricExporter(session=self._handover.session(), **settings)
        super().__init__(**preferences(self._encoder))

    def learn_route(self) -> Route | None:
        """How to send, found by having an empty request prepared; None when the exporter could not make one."""
        self._encoder.export(MetricsData([]))
        return self._handover.route

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Encode what the reader collected and as many windows as go into one request."""
        entries = self._windows.take(_WINDOWS_A_REQUEST)
        metrics = self._mapping.metrics(entries)
        idle = not entries and _is_idle(metrics_data)
        for attempt in (_with_metrics(metrics_data, metrics), _without_others(metrics_data, metrics)):
            with self._handover.of(len(entries), idle=idle):
                result = self._encoder.export(attempt, timeout_millis, **kwargs)
            if result is MetricExportResult.SUCCESS:
                return result
        self._tally.dropped("metrics", "encoding", len(entries))
        return MetricExportResult.FAILURE

    def export_all(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """The same, in as many requests as the windows take: each carries what the reader collected."""
        result = self.export(metrics_data, timeout_millis, **kwargs)
        while self._windows:
            result = self.export(metrics_data, timeout_millis, **kwargs)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002  nothing is held here
        """Nothing is held here."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """The pipeline shuts down, not the provider: windows go on."""


def _with_metrics(metrics_data: MetricsData, metrics: list[Metric]) -> MetricsData:
    if not metrics:
        return metrics_data
    first, *others = metrics_data.resource_metrics
    scopes = list(first.scope_metrics)
    for position, scope in enumerate(scopes):
        if scope.scope == _SCOPE:  # the encoder keeps one of two equal scopes and drops the other
            scopes[position] = replace(scope, metrics=[*scope.metrics, *metrics])
            break
    else:
        scopes.append(ScopeMetrics(_SCOPE, metrics, ""))
    return MetricsData([ResourceMetrics(first.resource, scopes, first.schema_url), *others])


def _is_idle(metrics_data: MetricsData) -> bool:
    scopes = (scope for resource in metrics_data.resource_metrics for scope in resource.scope_metrics)
    return all(scope.scope.name == PIPELINE_SCOPE for scope in scopes)


def _without_others(metrics_data: MetricsData, metrics: list[Metric]) -> MetricsData:
    """The windows, and of the rest the pipeline's own metrics."""
    first = metrics_data.resource_metrics[0]
    own = [scope for scope in first.scope_metrics if scope.scope.name == PIPELINE_SCOPE]
    return MetricsData([ResourceMetrics(first.resource, [*own, ScopeMetrics(_SCOPE, metrics, "")], first.schema_url)])


class RecordExporter(LogRecordExporter):
    """Encodes log records; see :class:`WindowExporter` for the arguments."""

    def __init__(self, put: Callable[[FrozenRequest], None], tally: Tally, settings: dict[str, Any]) -> None:
        self._tally = tally
        self._handover = HandOver("logs", put)
        with headers_unsaid():
            self._encoder = OTLPLogExporter(session=self._handover.session(), **settings)

    def learn_route(self) -> Route | None:
        """How to send, found by having an empty request prepared; None when the exporter could not make one."""
        self._encoder.export([])
        return self._handover.route

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Encode one batch; when that fails, what can be encoded of it."""
        with self._handover.of(len(batch)):
            result = self._encoder.export(batch)
        if result is LogRecordExportResult.SUCCESS or not batch:
            return result
        _halve(batch, self.export, self._tally, "logs")
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 10_000) -> bool:  # noqa: ARG002  nothing is held here
        """Nothing is held here."""
        return True

    def shutdown(self) -> None:
        """The pipeline shuts down, not the provider."""


class RangeExporter(SpanExporter):
    """Encodes spans; see :class:`WindowExporter` for the arguments."""

    def __init__(self, put: Callable[[FrozenRequest], None], tally: Tally, settings: dict[str, Any]) -> None:
        self._tally = tally
        self._handover = HandOver("traces", put)
        with headers_unsaid():
            self._encoder = OTLPSpanExporter(session=self._handover.session(), **settings)

    def learn_route(self) -> Route | None:
        """How to send, found by having an empty request prepared; None when the exporter could not make one."""
        self._encoder.export([])
        return self._handover.route

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode one batch; when that fails, what can be encoded of it."""
        with self._handover.of(len(spans)):
            result = self._encoder.export(spans)
        if result is SpanExportResult.SUCCESS or not spans:
            return result
        _halve(spans, self.export, self._tally, "traces")
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """The pipeline shuts down, not the provider."""


def _halve(batch: Sequence[Any], export: Callable[[Sequence[Any]], object], tally: Tally, signal: str) -> None:
    """Encode the halves of a batch that could not be encoded; a single item that cannot is dropped, and counted."""
    half = len(batch) // 2
    if half == 0:
        tally.dropped(signal, "encoding", 1)
        return
    export(batch[:half])
    export(batch[half:])
