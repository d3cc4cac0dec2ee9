"""The official exporters as encoders: what they would send goes to the delivery queue."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics as Company
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
)

from monitel_otlp.sdk._compat import preferences
from monitel_otlp.gil import Pace
from monitel_otlp.metrics.mapping import Points
from monitel_otlp.request import FrozenRequest
from monitel_otlp.accounting import PIPELINE_SCOPE, Tally, write_queue_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from monitel_otlp.sdk._compat import ReadableLogRecord
    from monitel_otlp.sdk.encoder import Encoder
    from monitel_otlp.metrics.mapping import WindowMapping
    from monitel_otlp.metrics.window_queue import WindowQueue

_log = logging.getLogger("monitel.otlp")

_WINDOWS_A_REQUEST = 500  # some 130 kB
_AT_ONCE = 16  # windows between two looks at the clock


class WindowExporter(MetricExporter):
    """Adds queued windows to the requests of the SDK's own reader: same resource, same request.

    Where they are too many for that they go in requests of their own, which have that resource too, and one of the
    pipeline's own metrics, stamped now: Prometheus orders samples by resource, so that one must be of the present.
    For one thread at a time.

    Args:
        windows: Where they wait.
        mapping: How they become metrics.
        queue_size: Items that wait in memory.
        resource: Whose they are, until a reader says so.
        put: Gets the finished requests.
        tally: Told what could not be encoded.
        encoder: Encodes what is not windows.

    Attributes:
        resource: Whose they are, as the protocol has it.
    """

    def __init__(  # noqa: PLR0917  what it stands between
        self,
        windows: WindowQueue,
        mapping: WindowMapping,
        queue_size: Callable[[], int],
        resource: Resource,
        put: Callable[[FrozenRequest], None],
        tally: Tally,
        encoder: Encoder,
    ) -> None:
        self._windows = windows
        self._mapping = mapping
        self._points = Points()  # of the next request
        self._pace = Pace()
        self._queue_size = queue_size
        self._put = put
        self._tally = tally
        self._encoder = encoder
        self.resource = self._encoded(MetricsData([ResourceMetrics(resource, [], "")])).resource
        super().__init__(**preferences(self._encoder.exporter))

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:  # noqa: ARG002  nothing is waited for
        """Encode what the reader collected and the windows that wait.

        When something of the user's cannot be encoded, the pipeline's own metrics go without it.
        """
        company = self._encoded(metrics_data)
        complete = company is not None
        if company is None:
            company = self._encoded(_own(metrics_data))
        self.resource = company.resource
        self._fill()
        self._put_with(company)  # before any request of windows alone: its metrics are older
        self.flush()
        return MetricExportResult.SUCCESS if complete else MetricExportResult.FAILURE

    def write(self) -> None:
        """Encode the windows that wait; as many as fill a request go in one of their own."""
        while self._fill():
            self._put_alone()

    def flush(self) -> None:
        """Put the windows that wait into requests of their own: without the SDK, whose locks may be held."""
        self.write()
        if self._points.windows:
            self._put_alone()

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002  nothing is held here
        """Nothing is held here."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """The pipeline shuts down, not the provider: windows go on."""

    def _encoded(self, metrics_data: MetricsData) -> Any:
        """What the official exporter makes of it, as a message; None when it cannot encode it."""
        body = self._encoder.encode(metrics_data)
        return None if body is None else ExportMetricsServiceRequest.FromString(body).resource_metrics[0]

    def _fill(self) -> bool:
        """Encode windows that wait, a slice at a time; True when the next request is full."""
        while self._points.windows < _WINDOWS_A_REQUEST and (entries := self._windows.take(_AT_ONCE)):
            try:
                self._mapping.write(entries, self._points)
            except Exception:
                _log.exception("windows cannot be encoded and are dropped")
                self._tally.dropped("metrics", "encoding", len(entries))
            else:
                self._points.windows += len(entries)
            self._pace.pause()
        return self._points.windows >= _WINDOWS_A_REQUEST

    def _put_alone(self) -> None:
        company = Company(resource=self.resource)
        write_queue_size(company.scope_metrics.add(), self._queue_size())
        self._put_with(company)

    def _put_with(self, company: Company) -> None:
        """Put the points into the request of other metrics: these are copied, for the points are many."""
        points, self._points = self._points, Points()
        idle = False
        if points.windows:
            points.request.resource_metrics[0].MergeFrom(company)
        else:
            points.request.resource_metrics[0].CopyFrom(company)
            idle = all(each.scope.name == PIPELINE_SCOPE for each in company.scope_metrics)
        body = points.request.SerializeToString()
        self._put(FrozenRequest("metrics", body, points.windows, time.time_ns(), idle))


def _own(metrics_data: MetricsData) -> MetricsData:
    first = metrics_data.resource_metrics[0]
    scopes = [scope for scope in first.scope_metrics if scope.scope.name == PIPELINE_SCOPE]
    return MetricsData([ResourceMetrics(first.resource, scopes, first.schema_url)])


class BatchExporter:
    """Encodes log records, or spans, in batches.

    Args:
        signal: ``"logs"`` or ``"traces"``.
        put: Gets the finished requests.
        tally: Told what could not be encoded.
        encoder: The signal's.
    """

    def __init__(self, signal: str, put: Callable[[FrozenRequest], None], tally: Tally, encoder: Encoder) -> None:
        self._signal = signal
        self._put = put
        self._tally = tally
        self._encoder = encoder

    def export(self, batch: Sequence[ReadableLogRecord] | Sequence[ReadableSpan]) -> None:
        """Encode one batch; when that fails, what can be encoded of it."""
        body = self._encoder.encode(batch)
        if body is not None:
            self._put(FrozenRequest(self._signal, body, len(batch), time.time_ns()))
        elif half := len(batch) // 2:
            self.export(batch[:half])
            self.export(batch[half:])
        else:
            self._tally.dropped(self._signal, "encoding", 1)
