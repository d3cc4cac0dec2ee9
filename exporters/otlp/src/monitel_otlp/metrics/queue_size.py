"""Queue size: the self-metric that is in every request with windows."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

import monitel

PIPELINE_SCOPE = "monitel.pipeline"
#: Name, unit and description of the metric.
QUEUE_SIZE = "monitel.queue.size", "{item}", "Items that wait in memory"


def write_queue_size(scope: Any, items: int, time_ns: int) -> None:
    """Fill a new ``ScopeMetrics`` with the queue size."""
    scope.scope.name, scope.scope.version = PIPELINE_SCOPE, monitel.__version__
    metric = scope.metrics.add()
    metric.name, metric.unit, metric.description = QUEUE_SIZE
    metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    metric.sum.data_points.add(time_unix_nano=time_ns, as_int=items)
