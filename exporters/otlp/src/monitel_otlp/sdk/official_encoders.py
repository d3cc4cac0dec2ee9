"""The public encoders of the official OTLP exporters, called in small steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource

from monitel_otlp._compat import encode_logs
from monitel_otlp.messages.request import complete_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.sdk.metrics.export import Metric

#: The function that encodes a batch of log records or spans as a request, by signal.
ENCODERS: dict[str, Callable[[Any], Any]] = {"logs": encode_logs, "traces": encode_spans}

POINTS_PER_STEP = 16


def resource_metrics(resource: Resource) -> Any:
    """Return a new ``ResourceMetrics`` message with a resource and its schema, and without metrics."""
    message = encode_metrics(MetricsData([ResourceMetrics(resource, [], resource.schema_url)])).resource_metrics[0]
    complete_schema(message)
    return message


def encode_resource(resource: Resource) -> bytes:
    """Return a resource and its schema as a serialized ``ResourceMetrics`` without metrics.

    The message has the same form as a ``ResourceLogs`` without log records, and a ``ResourceSpans`` without spans.
    """
    body: bytes = resource_metrics(resource).SerializeToString()
    return body


def scope_metrics(scope: ScopeMetrics, metrics: Sequence[Metric]) -> Any:
    """Return some metrics of a scope as a message. Each point starts before its time.

    Raises:
        Exception: A metric cannot be encoded.
    """
    part = ScopeMetrics(scope.scope, metrics, scope.schema_url)
    data = MetricsData([ResourceMetrics(Resource.get_empty(), [part], "")])
    message = encode_metrics(data).resource_metrics[0].scope_metrics[0]
    for metric in message.metrics:
        _order_times(metric)
    return message


def _order_times(metric: Any) -> None:
    """Move the start of points before their time, or the time if the start must stay.

    In the SDK a series that begins during a collection starts after the time of its points.
    """
    data = getattr(metric, metric.WhichOneof("data"))
    temporality = getattr(data, "aggregation_temporality", None)  # gauges have none, and no start
    for point in data.data_points if temporality else ():
        if point.start_time_unix_nano >= point.time_unix_nano:
            if temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA:
                point.start_time_unix_nano = point.time_unix_nano - 1
            else:
                point.time_unix_nano = point.start_time_unix_nano + 1


def steps(metrics: Sequence[Metric]) -> Iterator[list[Metric]]:
    """Yield lists of metrics with few points each. A metric with many points is divided into parts."""
    held: list[Metric] = []
    points = 0
    for metric in metrics:
        every = metric.data.data_points
        for begin in range(0, len(every), POINTS_PER_STEP):
            part = every[begin : begin + POINTS_PER_STEP]
            held.append(metric if len(part) == len(every) else _part(metric, part))
            points += len(part)
            if points >= POINTS_PER_STEP:
                yield held
                held, points = [], 0
    if held:
        yield held


def _part(metric: Metric, points: Sequence[Any]) -> Metric:
    data: Any = metric.data
    return replace(metric, data=replace(data, data_points=points))


def append_metrics(target: Any, source: Any) -> None:
    """Append the metrics of one ``ScopeMetrics`` message to another, and join the parts of a metric."""
    for metric in source.metrics:
        last = target.metrics[-1] if target.metrics else None
        if last is not None and _identity(last) == _identity(metric):
            kind = metric.WhichOneof("data")
            getattr(last, kind).data_points.extend(getattr(metric, kind).data_points)
        else:
            target.metrics.append(metric)


def _identity(metric: Any) -> tuple[str, str, str, str]:
    return metric.name, metric.unit, metric.description, metric.WhichOneof("data")
