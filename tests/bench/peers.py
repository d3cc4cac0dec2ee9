"""The instruments of other libraries that do what a Stat does, where these are installed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from race import optional

if TYPE_CHECKING:
    from collections.abc import Callable


def torch_stat(name: str, max_samples: int = 2**63 - 1) -> Any:
    """A ``torch.monitor.Stat`` with all six aggregations, None without torch."""
    monitor = optional("torch.monitor")
    if monitor is None:
        return None
    aggregations = [getattr(monitor.Aggregation, each) for each in ("VALUE", "MEAN", "COUNT", "SUM", "MAX", "MIN")]
    return monitor.Stat(name, aggregations, timedelta(days=1000), max_samples)


def prometheus_summary() -> Any:
    """A ``prometheus_client.Summary``, its cheapest instrument with count and sum, None without the library."""
    prometheus = optional("prometheus_client")
    return None if prometheus is None else prometheus.Summary("loss", "A loss.", registry=None)


def otel_record() -> Callable[[float], None] | None:
    """``Histogram.record`` of the OpenTelemetry SDK with a reader that sends nothing, None without the SDK."""
    metrics, export = optional("opentelemetry.sdk.metrics"), optional("opentelemetry.sdk.metrics.export")
    if metrics is None or export is None:
        return None
    histogram = metrics.MeterProvider([export.InMemoryMetricReader()]).get_meter("bench").create_histogram("loss")
    record: Callable[[float], None] = histogram.record
    return record
