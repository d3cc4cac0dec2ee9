"""All private names of OpenTelemetry that this package uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import context, metrics, trace
from opentelemetry._logs import LoggerProvider as APILoggerProvider
from opentelemetry._logs import (
    NoOpLoggerProvider,
    SeverityNumber,
    get_logger_provider,
    set_logger_provider,
)
from opentelemetry._logs import _internal as logs_internal
from opentelemetry.metrics import _internal as metrics_internal
from opentelemetry.sdk._logs import LoggerProvider, LogRecordLimits
from opentelemetry.sdk._logs._internal import std_to_otel
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExportResult
from opentelemetry.sdk.resources import OsResourceDetector, ProcessResourceDetector
from opentelemetry.sdk.resources import _HostResourceDetector as HostResourceDetector
from opentelemetry.sdk.trace import SpanLimits

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

_UNLIMITED, _COUNT = -1, 128  # the default limits of OpenTelemetry

__all__ = [
    "APILoggerProvider",
    "BatchLogRecordProcessor",
    "HostResourceDetector",
    "LogRecordExportResult",
    "LogRecordLimits",
    "LoggerProvider",
    "NoOpLoggerProvider",
    "OsResourceDetector",
    "ProcessResourceDetector",
    "SeverityNumber",
    "get_logger_provider",
    "is_set",
    "log_record_limits",
    "set_global_providers",
    "span_limits",
    "std_to_otel",
    "suppress_instrumentation",
]


def log_record_limits() -> LogRecordLimits:
    """Return the attribute limits of log records from the SDK's variables; the defaults if a variable is malformed."""
    try:
        return LogRecordLimits()
    except ValueError:  # it is logged when the LoggerProvider is made
        return LogRecordLimits(_UNLIMITED, _UNLIMITED, _COUNT, _UNLIMITED)


def span_limits() -> SpanLimits:
    """Return the limits of spans from the SDK's variables; the defaults if a variable is malformed."""
    try:
        return SpanLimits()
    except ValueError:  # it is logged when the TracerProvider is made
        return SpanLimits(_UNLIMITED, _COUNT, _COUNT, _COUNT, _COUNT, _COUNT, _UNLIMITED, _UNLIMITED)


def is_set(provider: object) -> bool:
    """Return True if a global provider has been set; False for the proxy that OpenTelemetry returns before that."""
    proxies = metrics_internal._ProxyMeterProvider, logs_internal.ProxyLoggerProvider, trace.ProxyTracerProvider
    return not isinstance(provider, proxies)


def set_global_providers(
    meter_provider: MeterProvider | None,
    logger_provider: APILoggerProvider | None,
    tracer_provider: TracerProvider | None,
) -> None:
    """Set the global providers, even if they are already set: a second pipeline replaces the providers of the first."""
    if meter_provider is not None:
        if is_set(metrics.get_meter_provider()):
            metrics_internal._METER_PROVIDER = meter_provider
        else:
            metrics.set_meter_provider(meter_provider)
    if logger_provider is not None:
        if is_set(get_logger_provider()):
            logs_internal._LOGGER_PROVIDER = logger_provider
        else:
            set_logger_provider(logger_provider)
    if tracer_provider is not None:
        if is_set(trace.get_tracer_provider()):
            trace._TRACER_PROVIDER = tracer_provider
        else:
            trace.set_tracer_provider(tracer_provider)


def suppress_instrumentation() -> None:
    """Disable OpenTelemetry's instrumentation of HTTP clients in this thread, so that exports make no spans."""
    context.attach(context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, True))
