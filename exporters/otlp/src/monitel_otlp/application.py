"""The providers for an application that records by OpenTelemetry's API, with the official OTLP exporters."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib import import_module
from queue import Queue
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider, TraceBasedExemplarFilter
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from monitel.process.os_threads import Event, RLock, SimpleQueue, get_ident
from monitel.variables import one_of
from monitel_otlp._compat import (
    APILoggerProvider,
    BatchLogRecordProcessor,
    LoggerProvider,
    LogRecordProcessor,
    NoOpLoggerProvider,
    OTLPMetricExporterMixin,
    log_record_limits,
    span_limits,
)
from monitel_otlp.config.endpoint import Endpoint
from monitel_otlp.config.secret import MASKED
from monitel_otlp.config.settings import GRPC, Environment, Settings
from monitel_otlp.transport.answer import check_file

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import TracerProvider as APITracerProvider

_log = logging.getLogger("monitel.otlp")

_PACKAGES = "opentelemetry.exporter.otlp.proto"
#: Module and class of the exporter of each signal.
_EXPORTERS = {
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
    "traces": ("trace_exporter", "OTLPSpanExporter"),
}
#: Loggers of exporters, which may log an address.
_LOGGERS = [f"{_PACKAGES}.http.{module}" for module, _ in _EXPORTERS.values()]
_LOGGERS += [f"{_PACKAGES}.grpc.exporter", "urllib3.connectionpool"]
_HEADERS_LOGGER = "opentelemetry.util.re"  # it logs malformed entries of the variables, which may be tokens
_masks: dict[int, Callable[[str], str]] = {}  # of all secrets so far: an exporter may outlive its pipeline

_Provider = TypeVar("_Provider")


class ApplicationTelemetry:
    """The OpenTelemetry providers for the application: the SDK's, with a periodic reader or a batch processor each.

    They begin, with their threads, when the application uses the signal: when it gets its first meter, ends its first
    sampled span, or emits its first log record. Without an endpoint, and in a forked child, nothing is sent. What a
    backend does not accept within the exporter's timeout is lost; the accounts of the pipeline do not include it.
    """

    def __init__(self, settings: Settings, resource: Resource, signals: Collection[str]) -> None:
        self._pid = os.getpid()
        endpoints = {each: settings.endpoints.get(each) for each in signals if each not in settings.off}
        self._signals = {each: _Signal(each, endpoint, settings.interval) for each, endpoint in endpoints.items()}
        self.meter_provider: metrics.MeterProvider = metrics.NoOpMeterProvider()
        self.logger_provider: APILoggerProvider = NoOpLoggerProvider()
        self.tracer_provider: APITracerProvider = trace.NoOpTracerProvider()
        if (signal := self._signals.get("metrics")) is not None:
            forms = ("explicit_bucket_histogram", "base2_exponential_bucket_histogram")
            Environment().value("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", one_of(forms), forms[0])
            meters = partial(_Meters, signal, resource=resource, shutdown_on_exit=False)
            self.meter_provider = _tolerant(meters, lambda: {"exemplar_filter": TraceBasedExemplarFilter()})
        if (signal := self._signals.get("logs")) is not None:
            loggers = partial(LoggerProvider, resource, shutdown_on_exit=False)
            made = self.logger_provider = _tolerant(loggers, lambda: {"log_record_limits": log_record_limits()})
            made.add_log_record_processor(_Processor(signal))
        if (signal := self._signals.get("traces")) is not None:
            tracers = self.tracer_provider = _tracer_provider(resource)
            tracers.add_span_processor(_Processor(signal))

    @property
    def sampler(self) -> Sampler:
        provider = self.tracer_provider
        if not isinstance(provider, TracerProvider):
            provider = _tracer_provider(Resource.get_empty())
        return provider.sampler

    def begin(self, call: str) -> list[threading.Event]:
        """Begin ``"force_flush"`` or ``"shutdown"`` of each signal in use; return events for :meth:`wait`."""
        if os.getpid() != self._pid:
            return []  # a forked child has no such threads
        for signal in self._signals.values() if call == "shutdown" else ():
            signal.is_over = True
        return [signal.call(call) for signal in self._signals.values() if signal.exports]

    def wait(self, calls: Sequence[threading.Event], deadline: float) -> bool:
        """Wait for calls until a monotonic deadline; return True if they have ended. One that hangs is left alone."""
        return all(call.wait(max(0.0, deadline - time.monotonic())) for call in calls)


class _Signal:
    """The reader or batch processor of a signal, made at the first use, and the thread that flushes and ends it.

    The thread is started early, because none can be started at exit. It is a thread of ``threading``, as those of the
    SDK: under gevent all of them are greenlets. If gevent comes later, it remains a thread, and a lock of gevent could
    miss that it is released there.
    """

    def __init__(self, name: str, endpoint: Endpoint | None, interval: float) -> None:
        self._name = name
        self._endpoint = endpoint
        self._interval = interval
        self._pid = os.getpid()
        self._making = RLock()
        self._is_used = False
        self.is_over = False
        self.exports: Any = None  # the reader or the batch processor

    def use(self, meters: MeterProvider | None = None) -> Any:
        if os.getpid() != self._pid:
            return None
        with self._making:
            if not (self._is_used or self.is_over or self._endpoint is None):
                self._is_used = True  # first: a signal handler may come here, too
                try:
                    self._make(_Exporter(self._name, self._endpoint), meters)
                except Exception as error:  # a variable of the SDK
                    _report(self._name, self._endpoint, error)
        return self.exports

    def call(self, name: str) -> threading.Event:
        ended = self._ended if name == "shutdown" else self._event()
        self._calls.put((name, ended))
        return ended

    def _make(self, exporter: Any, meters: MeterProvider | None) -> None:
        are_greenlets = threading.get_ident() != get_ident()
        self._event = threading.Event if are_greenlets else Event
        self._ended = self._event()
        self._calls: Any = Queue() if are_greenlets else SimpleQueue()
        if meters is not None:
            made: Any = PeriodicExportingMetricReader(exporter, 1000 * self._interval)
            meters.add_metric_reader(made)
        else:
            made = (BatchLogRecordProcessor if self._name == "logs" else BatchSpanProcessor)(exporter)
        threading.Thread(target=self._run, args=(made,), name="otel-application", daemon=True).start()
        self.exports = made
        if self.is_over:  # the pipeline has ended meanwhile
            self.call("shutdown")

    def _run(self, made: Any) -> None:
        name = ""
        while name != "shutdown":
            name, ended = self._calls.get()
            try:
                getattr(made, name)()
            except Exception:
                _log.debug("%s of the application's telemetry failed", name, exc_info=True)
            ended.set()


class _Meters(MeterProvider):
    """Has a reader from the first meter on."""

    def __init__(self, signal: _Signal, **options: Any) -> None:
        super().__init__(**options)
        self._signal = signal

    def get_meter(self, *positional: Any, **named: Any) -> Meter:
        self._signal.use(self)
        return super().get_meter(*positional, **named)


class _Processor(SpanProcessor, LogRecordProcessor):
    """Passes spans that end, or log records, to the batch processor."""

    def __init__(self, signal: _Signal) -> None:
        self._signal = signal

    def on_end(self, span: Any) -> None:
        if span.context.trace_flags.sampled and (processor := self._signal.use()) is not None:
            processor.on_end(span)

    def on_emit(self, log_record: Any) -> None:
        if (processor := self._signal.use()) is not None:
            processor.on_emit(log_record)

    def shutdown(self) -> None:
        if self._signal.exports is not None:
            self._signal.exports.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._signal.exports is None or bool(self._signal.exports.force_flush(timeout_millis))


class _Exporter(OTLPMetricExporterMixin):
    """The official exporter, which is imported by the thread that sends first: the application waits for no import.

    In a forked child nothing is sent: the SDK would send the values of the parent a second time.
    """

    def __init__(self, signal: str, endpoint: Endpoint) -> None:
        self._signal = signal
        self._endpoint = endpoint
        self._pid = os.getpid()
        self._official: Any = None
        self._failed = False
        if signal == "metrics":
            self._common_configuration()  # temporality and aggregation, for the reader

    def export(self, data: Any, **options: Any) -> None:
        if self._official is None and not self._failed and os.getpid() == self._pid:
            try:
                self._official = _official_exporter(self._signal, self._endpoint)
            except Exception as error:  # a package, a file, a credential provider
                self._failed = True
                _report(self._signal, self._endpoint, error)
        if self._official is not None and os.getpid() == self._pid:
            self._official.export(data, **options)

    def force_flush(self, *_given: Any, **_named: Any) -> bool:
        return True

    def shutdown(self, *_given: Any, **_named: Any) -> None:
        if self._official is not None:
            self._official.shutdown()


def _official_exporter(signal: str, endpoint: Endpoint) -> Any:
    for file in filter(None, endpoint.certificates if endpoint.address.scheme == "https" else ()):
        check_file(file, "the certificates")
    _masks[hash(tuple(endpoint.secrets()))] = endpoint.mask
    for logger in _LOGGERS:
        logging.getLogger(logger).addFilter(_mask)
    logging.getLogger(_HEADERS_LOGGER).addFilter(_without_values)
    address, module, name = endpoint.address, *_EXPORTERS[signal]
    headers = {name: value.reveal() for name, value in endpoint.headers.items()}
    options: dict[str, Any] = {"headers": headers or {"accept": "*/*"}}  # without any it would log malformed variables
    if endpoint.protocol == GRPC:
        import_module("monitel_otlp.transport.grpc")  # first: it sets what gRPC reads when it is imported
        kinds = import_module("grpc").Compression
        compression = {"gzip": kinds.Gzip, "deflate": kinds.Deflate}.get(endpoint.compression, kinds.NoCompression)
        url = f"{address.scheme}://{address.netloc}"
        options["insecure"] = address.scheme == "http"
    else:
        user, query = address.userinfo.reveal(), address.query.reveal()
        url = f"{address.scheme}://{user and f'{user}@'}{address.netloc}{address.path}{(query and f'?{query}') or ''}"
        compression = import_module(f"{_PACKAGES}.http").Compression(endpoint.compression)
    protocol = "grpc" if endpoint.protocol == GRPC else "http"
    kind = getattr(import_module(f"{_PACKAGES}.{protocol}.{module}"), name)
    return kind(url, compression=compression, timeout=endpoint.timeout, **options)


def _report(signal: str, endpoint: Endpoint, error: Exception) -> None:
    missing = "the exporter is missing; over gRPC run `pip install 'monitel-otlp[grpc]'`"
    text = endpoint.mask(missing if isinstance(error, ImportError) else f"{error!r:.300}")
    _log.warning("the application's %s by OpenTelemetry's API go nowhere: %s", signal, text)


def _mask(record: logging.LogRecord) -> bool:
    """Mask the secrets of all endpoints in a message of an exporter; a filter. An exception with one is left out."""
    text, error = record.getMessage(), str(record.exc_info[1]) if record.exc_info else ""
    for mask in [*_masks.values()]:
        text = record.msg = mask(text)
        record.args = None
        if mask(error) != error:
            record.exc_info = None
    return True


def _without_values(record: logging.LogRecord) -> bool:
    record.args = tuple(MASKED for _ in record.args or ())
    return True


def _tracer_provider(resource: Resource) -> TracerProvider:
    make = partial(TracerProvider, resource=resource, shutdown_on_exit=False)
    return _tolerant(make, lambda: {"sampler": DEFAULT_ON, "span_limits": span_limits()})


def _tolerant(make: Callable[..., _Provider], defaults: Callable[[], dict[str, Any]]) -> _Provider:
    """Make a provider. If a variable of the SDK is malformed, log a warning and use the defaults."""
    try:
        return make()
    except ValueError as error:
        _log.warning("invalid value in a variable of the OpenTelemetry SDK: %s; using the default", error)
        return make(**defaults())
