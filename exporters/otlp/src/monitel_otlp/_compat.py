"""Every name of OpenTelemetry that begins with an underscore, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context
from opentelemetry._logs import get_logger_provider, set_logger_provider
from opentelemetry._logs._internal import ProxyLoggerProvider
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.metrics._internal import _ProxyMeterProvider
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor, ReadableLogRecord, ReadWriteLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.trace import ProxyTracerProvider

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

__all__ = [
    "LogRecordExportResult",
    "LogRecordExporter",
    "LogRecordProcessor",
    "LoggerProvider",
    "OTLPLogExporter",
    "ReadWriteLogRecord",
    "ReadableLogRecord",
    "get_logger_provider",
    "is_set",
    "preferences",
    "set_logger_provider",
    "suppress_instrumentation",
]


def preferences(exporter: MetricExporter) -> dict[str, Any]:
    """What an exporter prefers, as the arguments of a MetricExporter around it; readers read the same names."""
    return {
        "preferred_temporality": exporter._preferred_temporality,
        "preferred_aggregation": exporter._preferred_aggregation,
    }


def is_set(provider: object) -> bool:
    """Whether this global provider is somebody's, and not OpenTelemetry's stand-in until one is set."""
    return not isinstance(provider, (_ProxyMeterProvider, ProxyLoggerProvider, ProxyTracerProvider))


def suppress_instrumentation() -> None:
    """From here on in this thread, the user's instrumentation of HTTP clients leaves our own requests alone."""
    context.attach(context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, True))
