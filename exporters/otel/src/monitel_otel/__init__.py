"""Export of monitel's Stats, Events and ranges through the OpenTelemetry providers of an application."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from monitel_otel.counters import counter_description
from monitel_otel.installation import Installation, install
from monitel_otel.names import NAMES, MetricNames, describe, metric_name
from monitel_otel.periods import BUDGET, Fold, Opened, Period, check_limits
from monitel_otel.range_attributes import RangeAttributes, of_track
from monitel_otel.records import Records, timestamp_ns
from monitel_otel.scope import SCHEMA_URL, SCOPE
from monitel_otel.units import unit_of_number
from monitel_otel.waits import WaitInstruments, WaitMetric, WaitMetrics

if _TYPE_CHECKING:
    from monitel_otel.ranges import Ranges

__version__ = "0.2.0"

__all__ = [
    "BUDGET",
    "NAMES",
    "SCHEMA_URL",
    "SCOPE",
    "Fold",
    "Installation",
    "MetricNames",
    "Opened",
    "Period",
    "RangeAttributes",
    "Ranges",
    "Records",
    "WaitInstruments",
    "WaitMetric",
    "WaitMetrics",
    "check_limits",
    "counter_description",
    "describe",
    "install",
    "metric_name",
    "of_track",
    "timestamp_ns",
    "unit_of_number",
]


def __getattr__(name: str) -> "type[Ranges[_Any]]":
    if name == "Ranges":  # imported on demand: it loads the profiler
        from monitel_otel.ranges import Ranges

        return Ranges
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
