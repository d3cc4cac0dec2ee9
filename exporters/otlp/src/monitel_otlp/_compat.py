"""All private names of OpenTelemetry that this package uses."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeVar

try:
    import opentelemetry.sdk.trace
except ValueError:  # the import reads this variable; span_limits() warns of it
    _limit = os.environ.pop("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "")
    import opentelemetry.sdk.trace

    os.environ["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"] = _limit

from opentelemetry import context, metrics, trace
from opentelemetry._logs import LoggerProvider as APILoggerProvider
from opentelemetry._logs import NoOpLoggerProvider, SeverityNumber, get_logger_provider, set_logger_provider
from opentelemetry._logs import _internal as logs_internal
from opentelemetry.exporter.otlp.proto.common._internal.metrics_encoder import OTLPMetricExporterMixin
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.metrics import _internal as metrics_internal
from opentelemetry.sdk._logs import LoggerProvider, LogRecordLimits, LogRecordProcessor
from opentelemetry.sdk._logs._internal import std_to_otel
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace import SpanLimits

from monitel.process.failures import warn_once

_log = logging.getLogger("monitel.otlp")

_UNLIMITED, _COUNT = -1, 128  # the default limits of OpenTelemetry

#: The functions that make a request of what the SDK hands to the exporter of a signal.
ENCODERS: dict[str, Callable[[Any], Any]] = {"metrics": encode_metrics, "logs": encode_logs, "traces": encode_spans}

_Made = TypeVar("_Made")


def by_variables(make: Callable[[], _Made], by_default: Callable[[], _Made]) -> _Made:
    """Make an object of the SDK from its variables; if one is malformed, log a warning, and make the default."""
    try:
        return make()
    except ValueError as error:
        message = "invalid value in a variable of the OpenTelemetry SDK: %s; using the default"
        warn_once(_log, message, error, key=str(error))
        return by_default()


def log_record_limits() -> LogRecordLimits:
    return by_variables(LogRecordLimits, lambda: LogRecordLimits(_UNLIMITED, _UNLIMITED, _COUNT, _UNLIMITED))


def span_limits() -> SpanLimits:
    most = _UNLIMITED, _COUNT, _COUNT, _COUNT, _COUNT, _COUNT, _UNLIMITED, _UNLIMITED
    return by_variables(SpanLimits, lambda: SpanLimits(*most))


def is_set(provider: object) -> bool:
    """Return True if a global provider has been set; False for the proxy that OpenTelemetry returns before that."""
    proxies = metrics_internal._ProxyMeterProvider, logs_internal.ProxyLoggerProvider, trace.ProxyTracerProvider
    return not isinstance(provider, proxies)


#: For each signal: the function that returns the global provider, the one that sets it once, and where it is.
_GLOBALS: list[tuple[Callable[[], Any], Callable[[Any], object], ModuleType, str]] = [
    (metrics.get_meter_provider, metrics.set_meter_provider, metrics_internal, "_METER_PROVIDER"),
    (get_logger_provider, set_logger_provider, logs_internal, "_LOGGER_PROVIDER"),
    (trace.get_tracer_provider, trace.set_tracer_provider, trace, "_TRACER_PROVIDER"),
]


def global_providers() -> list[Any]:
    """Return the global providers. A variable with one that cannot be loaded is removed: the SDK would raise, too."""
    for get, _, _, name in _GLOBALS:
        try:
            get()
        except Exception:  # which the API has logged
            os.environ.pop(f"OTEL_PYTHON{name}", None)
    return [get() for get, *_ in _GLOBALS]


def set_global_providers(providers: Iterable[Any]) -> None:
    """Set the global providers, in the same order, even if they are set already; None leaves one as it is."""
    for provider, (get, set_once, module, name) in zip(providers, _GLOBALS, strict=True):
        if provider is not None and is_set(get()):
            setattr(module, name, provider)
        elif provider is not None:
            set_once(provider)


def suppress_instrumentation() -> None:
    """Disable OpenTelemetry's instrumentation of HTTP clients in this thread, so that exports make no spans."""
    context.attach(context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, True))
