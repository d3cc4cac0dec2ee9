"""The OpenTelemetry providers of a pipeline, and the temporality and aggregation of a metric reader."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry.sdk.metrics import (
    Counter,
    Histogram,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    TraceBasedExemplarFilter,
    UpDownCounter,
)
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, ExponentialBucketHistogramAggregation
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from monitel.os_threads import Lock, RLock, get_ident
from monitel_otlp._compat import LoggerProvider, log_record_limits, span_limits
from monitel_otlp.sdk.meter_provider import CallbackMeterProvider
from monitel_otlp.sdk.processors import RecordQueue, SpanQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from monitel.bounded_queue import BoundedQueue
    from monitel_otlp._compat import ReadableLogRecord
    from monitel_otlp.threads.callbacks import CallbackThread

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


_log = logging.getLogger("monitel.otlp")

_LOCKS = {"Lock": Lock, "RLock": RLock}

_Provider = TypeVar("_Provider")


class Providers:
    """A provider for each signal, without threads of the SDK.

    Args:
        resource: The resource of the providers.
        callbacks: Runs the observable callbacks of the application.
        records: The queue of log records.
        spans: The queue of spans.
        flush: Delivers all items within so many seconds; the ``force_flush`` of each provider calls it.
    """

    def __init__(
        self,
        resource: Resource,
        callbacks: CallbackThread,
        records: BoundedQueue[ReadableLogRecord],
        spans: BoundedQueue[ReadableSpan],
        flush: Callable[[float], bool],
    ) -> None:
        _use_locks_of_threads()
        self._reader = InMemoryMetricReader(**reader_preferences())
        self.meter_provider = _tolerant(
            lambda **more: CallbackMeterProvider(
                callbacks, flush, [self._reader], resource, shutdown_on_exit=False, **more
            ),
            lambda: {"exemplar_filter": TraceBasedExemplarFilter()},
        )
        self.logger_provider = _tolerant(
            lambda **more: LoggerProvider(resource, shutdown_on_exit=False, **more),
            lambda: {"log_record_limits": log_record_limits()},
        )
        self.logger_provider.add_log_record_processor(RecordQueue(records, flush))
        self.tracer_provider = _tolerant(
            lambda **more: TracerProvider(resource=resource, shutdown_on_exit=False, **more),
            lambda: {"sampler": DEFAULT_ON, "span_limits": span_limits()},
        )
        self.tracer_provider.add_span_processor(SpanQueue(spans, flush))

    def collect(self) -> MetricsData | None:
        """Return the values of all instruments. This takes locks of the SDK, and runs no code of the application."""
        return self._reader.get_metrics_data()


def _use_locks_of_threads() -> None:
    """Give the SDK's instruments Python's locks again: those of gevent and eventlet may hang between two threads."""
    if threading.get_ident() == get_ident():
        return
    for name, module in [*sys.modules.items()]:
        if name.startswith("opentelemetry.sdk.metrics."):
            vars(module).update({kind: lock for kind, lock in _LOCKS.items() if kind in vars(module)})


def _tolerant(make: Callable[..., _Provider], defaults: Callable[[], dict[str, Any]]) -> _Provider:
    """Make a provider. If a variable of the SDK is malformed, log a warning and use the defaults."""
    try:
        return make()
    except ValueError as error:
        _log.warning("invalid value in a variable of the OpenTelemetry SDK: %s; using the default", error)
        return make(**defaults())
