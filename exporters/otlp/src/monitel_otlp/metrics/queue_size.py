"""Queue size: the self-metric that is in every metrics request."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from monitel_otlp.messages.scopes import write_scope

#: The names of all self-metrics begin with this.
SELF_METRICS = "monitel."
#: Name, unit and description of the metric.
QUEUE_SIZE = "monitel.queue.size", "{item}", "Items that wait in memory"


def write_queue_size(resource_metrics: Any, items: int, start_ns: int, time_ns: int) -> None:
    """Add the queue size to a ``ResourceMetrics`` message.

    Args:
        resource_metrics: The message.
        items: Number of waiting items.
        start_ns: Start of the pipeline in this process, Unix ns.
        time_ns: Time of the number, Unix ns. If it is before the start, because the clock was set back, the point
            starts at this time.
    """
    scope = resource_metrics.scope_metrics.add()
    write_scope(scope)
    metric = scope.metrics.add()
    metric.name, metric.unit, metric.description = QUEUE_SIZE
    metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    metric.sum.data_points.add(start_time_unix_nano=min(start_ns, time_ns), time_unix_nano=time_ns, as_int=items)
