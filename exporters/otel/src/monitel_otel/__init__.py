"""monitel's Stats and Events through an application's own OpenTelemetry providers."""

from monitel_otel.installation import Installation, install
from monitel_otel.names import MetricNames, describe, metric_name
from monitel_otel.records import Records, timestamp_ns
from monitel_otel.waits import WaitInstruments

__version__ = "0.1.0"

__all__ = [
    "Installation",
    "MetricNames",
    "Records",
    "WaitInstruments",
    "describe",
    "install",
    "metric_name",
    "timestamp_ns",
]
