"""The official exporters as encoders: what they would send goes to the delivery queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
)
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from monitel_otlp._compat import LogRecordExporter, LogRecordExportResult, preferences
from monitel_otlp.request import FrozenRequest
from monitel_otlp.tally import PIPELINE_SCOPE, Tally, write_queue_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from monitel_otlp._compat import ReadableLogRecord
    from monitel_otlp.encoder import Encoder
    from monitel_otlp.mapping import WindowMapping
    from monitel_otlp.windows import WindowQueue

_WINDOWS_A_REQUEST = 100


class WindowExporter(MetricExporter):
    """Adds queued windows to the requests of the SDK's own reader: same resource, same request.

    More of them than go into one request go in requests of their own, which have that resource too, and one of the
    pipeline's own metrics, stamped now: Prometheus orders samples by resource, so that one must be of the present.

    Args:
        windows: Where they wait.
        mapping: How they become metrics.
        queue_size: Items that wait in memory.
        resource: Whose they are, until a reader says so.
        put: Gets the finished requests.
        encoder: Encodes what is not windows.
    """

    def __init__(  # noqa: PLR0917  what it stands between
        self,
        windows: WindowQueue,
        mapping: WindowMapping,
        queue_size: Callable[[], int],
        resource: Resource,
        put: Callable[[FrozenRequest], None],
        encoder: Encoder,
    ) -> None:
        self._windows = windows
        self._mapping = mapping
        self._queue_size = queue_size
        self._put = put
        self._encoder = encoder
        self._resource = self._encoded(MetricsData([ResourceMetrics(resource, [], "")])).resource_metrics[0].resource
        super().__init__(**preferences(self._encoder.exporter))

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:  # noqa: ARG002  nothing is waited for
        """Encode what the reader collected and as many windows as go into one request.

        When something of the user's cannot be encoded, the pipeline's own metrics go without it.
        """
        request = self._encoded(metrics_data)
        complete = bool(request.resource_metrics)
        if not complete:
            request = self._encoded(_own(metrics_data))
        self._resource = request.resource_metrics[0].resource
        self._put_with_windows(request)
        return MetricExportResult.SUCCESS if complete else MetricExportResult.FAILURE

    def export_windows(self) -> bool:
        """Encode as many windows as go into one request, without the SDK, whose locks may be held.

        Returns:
            Whether there were any.
        """
        if not self._windows:
            return False
        request = ExportMetricsServiceRequest()
        company = request.resource_metrics.add(resource=self._resource)
        write_queue_size(company.scope_metrics.add(), self._queue_size())
        self._put_with_windows(request)
        return True

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002  nothing is held here
        """Nothing is held here."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """The pipeline shuts down, not the provider: windows go on."""

    def _encoded(self, metrics_data: MetricsData) -> Any:
        """What the official exporter makes of it, decoded; empty when it cannot encode it."""
        return ExportMetricsServiceRequest.FromString(self._encoder.encode(metrics_data) or b"")

    def _put_with_windows(self, request: Any) -> None:
        entries = self._windows.take(_WINDOWS_A_REQUEST)
        idle = not entries and _is_idle(request)
        if entries:
            request.resource_metrics[0].scope_metrics.append(self._mapping.encode(entries))
        self._put(FrozenRequest("metrics", request.SerializeToString(), len(entries), time.time_ns(), idle))


def _own(metrics_data: MetricsData) -> MetricsData:
    first = metrics_data.resource_metrics[0]
    scopes = [scope for scope in first.scope_metrics if scope.scope.name == PIPELINE_SCOPE]
    return MetricsData([ResourceMetrics(first.resource, scopes, first.schema_url)])


def _is_idle(request: Any) -> bool:
    scopes = (each.scope for resource in request.resource_metrics for each in resource.scope_metrics)
    return all(scope.name == PIPELINE_SCOPE for scope in scopes)


class RecordExporter(LogRecordExporter):
    """Encodes log records; see :class:`WindowExporter`. The tally is told what could not be encoded."""

    def __init__(self, put: Callable[[FrozenRequest], None], tally: Tally, encoder: Encoder) -> None:
        self._tally = tally
        self._put = put
        self._encoder = encoder

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Encode one batch; when that fails, what can be encoded of it."""
        body = self._encoder.encode(batch)
        if body is not None:
            self._put(FrozenRequest("logs", body, len(batch), time.time_ns()))
        else:
            _halve(batch, self.export, self._tally, "logs")
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 10_000) -> bool:  # noqa: ARG002  nothing is held here
        """Nothing is held here."""
        return True

    def shutdown(self) -> None:
        """The pipeline shuts down, not the provider."""


class RangeExporter(SpanExporter):
    """Encodes spans; see :class:`RecordExporter`."""

    def __init__(self, put: Callable[[FrozenRequest], None], tally: Tally, encoder: Encoder) -> None:
        self._tally = tally
        self._put = put
        self._encoder = encoder

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode one batch; when that fails, what can be encoded of it."""
        body = self._encoder.encode(spans)
        if body is not None:
            self._put(FrozenRequest("traces", body, len(spans), time.time_ns()))
        else:
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
