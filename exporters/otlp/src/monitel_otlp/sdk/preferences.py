"""Temporality and aggregation of a metric reader, from the same variables as in the official exporters."""

from __future__ import annotations

import logging
import os
from typing import Any

from opentelemetry.sdk.metrics import (
    Counter,
    Histogram,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    UpDownCounter,
)
from opentelemetry.sdk.metrics.export import AggregationTemporality
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, ExponentialBucketHistogramAggregation

_log = logging.getLogger("monitel.otlp")

TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
HISTOGRAMS = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"

_INSTRUMENTS = (Counter, UpDownCounter, Histogram, ObservableCounter, ObservableUpDownCounter, ObservableGauge)
_DELTA: dict[str, set[type]] = {
    "cumulative": set(),
    "delta": {Counter, Histogram, ObservableCounter},
    "lowmemory": {Counter, Histogram},
}
_AGGREGATIONS: dict[str, type] = {
    "explicit_bucket_histogram": ExplicitBucketHistogramAggregation,
    "base2_exponential_bucket_histogram": ExponentialBucketHistogramAggregation,
}


def temporality_preference() -> str:
    """Return ``"cumulative"``, ``"delta"`` or ``"lowmemory"``. Any other value of the variable means cumulative."""
    preference = os.environ.get(TEMPORALITY, "cumulative").strip().lower()
    return preference if preference in _DELTA else "cumulative"


def reader_preferences() -> dict[str, Any]:
    """Return the arguments of a ``MetricExporter`` that apply the variables to its reader."""
    _warn_unknown(TEMPORALITY, os.environ.get(TEMPORALITY, "").strip().lower(), _DELTA, "cumulative")
    _warn_unknown(HISTOGRAMS, os.environ.get(HISTOGRAMS, ""), _AGGREGATIONS, "explicit_bucket_histogram")
    delta = _DELTA[temporality_preference()]
    temporality = {
        each: AggregationTemporality.DELTA if each in delta else AggregationTemporality.CUMULATIVE
        for each in _INSTRUMENTS
    }
    aggregation = _AGGREGATIONS.get(os.environ.get(HISTOGRAMS, ""), ExplicitBucketHistogramAggregation)
    return {"preferred_temporality": temporality, "preferred_aggregation": {Histogram: aggregation()}}


def _warn_unknown(variable: str, value: str, allowed: dict[str, Any], default: str) -> None:
    if value and value not in allowed:
        _log.warning("%s: expected one of %s, got %r; using %s", variable, ", ".join(allowed), value[:80], default)
