"""monitel's Stats, Events and ranges through an application's own OpenTelemetry providers."""

from monitel_otel.installation import Installation, install
from monitel_otel.names import MetricNames, describe, metric_name
from monitel_otel.periods import Fold, Opened, Period
from monitel_otel.range_attributes import RangeAttributes, of_track
from monitel_otel.ranges import BUDGET, Ranges, check_limits
from monitel_otel.records import Records, timestamp_ns
from monitel_otel.waits import WaitInstruments

__version__ = "0.1.0"

__all__ = [
    "BUDGET",
    "Fold",
    "Installation",
    "MetricNames",
    "Opened",
    "Period",
    "RangeAttributes",
    "Ranges",
    "Records",
    "WaitInstruments",
    "check_limits",
    "describe",
    "install",
    "metric_name",
    "of_track",
    "timestamp_ns",
]
