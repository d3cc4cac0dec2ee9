"""The providers for an application that records by OpenTelemetry's API, with the official OTLP exporters."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from queue import Queue
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider, TraceBasedExemplarFilter
from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from monitel.process.os_threads import Event, RLock, SimpleQueue, get_ident
from monitel.variables import one_of
from monitel_otlp._compat import (
    BatchLogRecordProcessor,
    LoggerProvider,
    LogRecordExportResult,
    LogRecordProcessor,
    NoOpLoggerProvider,
    log_record_limits,
    span_limits,
)
from monitel_otlp.config.settings import GRPC, Environment
from monitel_otlp.transport.connection import may_block

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import TracerProvider as APITracerProvider

    from monitel_otlp._compat import APILoggerProvider
    from monitel_otlp.config.endpoint import Endpoint
    from monitel_otlp.config.settings import Settings

_log = logging.getLogger("monitel.otlp")

_PACKAGES = "opentelemetry.exporter.otlp.proto"
#: Module and class of each exporter, and the result of an export.
_EXPORTERS: dict[str, tuple[str, str, object]] = {
    "metrics": ("metric_exporter", "OTLPMetricExporter", MetricExportResult.SUCCESS),
    "logs": ("_log_exporter", "OTLPLogExporter", LogRecordExportResult.SUCCESS),
    "traces": ("trace_exporter", "OTLPSpanExporter", SpanExportResult.SUCCESS),
}
#: Loggers of exporters, which may log an address.
_LOGGERS = [f"{_PACKAGES}.http.{module}" for module, _, _ in _EXPORTERS.values()]
_LOGGERS += [f"{_PACKAGES}.grpc.exporter", "urllib3.connectionpool"]

_masks: dict[str, Callable[[str], str]] = {}  # by signal and endpoint

_PATIENCE = 2.0  # seconds that a thread waits for an exporter, which another one makes

_Provider = TypeVar("_Provider")


class ApplicationTelemetry:
    """The OpenTelemetry providers for the application: the SDK's, with a periodic reader or a batch processor each.

    The official exporter of a signal, and its two threads, are made when the application uses the signal: when it gets
    its first meter, ends its first sampled span, or emits its first log record. They have the endpoints, the headers
    and the resource of the pipeline. Without an endpoint, and in a forked child, they send nothing: the SDK would send
    the values of the parent a second time. What a backend does not accept within the exporter's timeout is lost; the
    accounts of the pipeline do not include it. Each provider has no effect if its signal has none.
    """

    def __init__(self, settings: Settings, resource: Resource, signals: Collection[str]) -> None:
        self._pid = os.getpid()
        endpoints = {each: settings.endpoints.get(each) for each in signals if each not in settings.off}
        self._signals = {each: _Signal(each, endpoint, settings.interval) for each, endpoint in endpoints.items()}
        self.meter_provider: metrics.MeterProvider = metrics.NoOpMeterProvider()
        self.logger_provider: APILoggerProvider = NoOpLoggerProvider()
        self.tracer_provider: APITracerProvider = trace.NoOpTracerProvider()
        if (signal := self._signals.get("metrics")) is not None:
            _check_histograms()
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
        """The sampler that the SDK's variables name."""
        provider = self.tracer_provider
        if not isinstance(provider, TracerProvider):
            provider = _tracer_provider(Resource.get_empty())
        return provider.sampler

    def begin(self, call: str) -> list[threading.Event]:
        """Begin ``"force_flush"`` or ``"shutdown"`` in the threads of the signals in use. Takes no lock.

        Returns:
            An event for each provider, which is set at the end; see :meth:`wait`.
        """
        if os.getpid() != self._pid:
            return []  # a forked child has no such threads
        for signal in self._signals.values() if call == "shutdown" else ():
            signal.is_over = True
        return [signal.call(call) for signal in self._signals.values() if signal.exports]

    def wait(self, calls: Sequence[threading.Event], deadline: float) -> bool:
        """Wait for calls until a monotonic deadline; return True if they have ended. One that hangs is left alone."""
        return all(call.wait(max(0.0, deadline - time.monotonic())) for call in calls)


class _Signal:
    """The exporter of a signal, made when the signal is used first, and the thread that flushes and ends it.

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
        self._is_making = False
        self.is_over = endpoint is None  # nothing is made any more
        self.exports: Any = None  # the reader or the batch processor

    def use(self, meters: MeterProvider | None = None) -> Any:
        """Return the reader or the processor; None without one, and in a forked child.

        While a thread makes it, others wait. An import in there may need what they hold, so they do not wait forever.
        """
        if os.getpid() != self._pid:
            return None
        if not self.is_over and self._making.acquire(timeout=_PATIENCE):
            nested, self._is_making = self._is_making, True  # a signal handler may come here, too
            try:
                if not (nested or self.is_over):
                    self._make(meters)
                    self.is_over = True
            finally:
                self._is_making = nested
                self._making.release()
        return self.exports

    def call(self, name: str) -> threading.Event:
        """Call a method in the thread; return an event that is set afterwards."""
        ended = self._ended if name == "shutdown" else self._event()
        self._calls.put((name, ended))
        return ended

    def _make(self, meters: MeterProvider | None) -> None:
        assert self._endpoint is not None
        try:
            exporter = _exporter(self._name, self._endpoint)
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
        except Exception as error:  # a package, a file, a credential provider, a variable of exporter or processor
            missing = "the exporter is missing; over gRPC run `pip install 'monitel-otlp[grpc]'`"
            text = self._endpoint.mask(missing if isinstance(error, ImportError) else f"{error!r:.300}")
            _log.warning("the application's %s by OpenTelemetry's API go nowhere: %s", self._name, text)
        else:
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


def _mask(record: logging.LogRecord) -> bool:
    """Mask the secrets of all endpoints in a message of an exporter; a filter. An exception with one is left out."""
    text, error = record.getMessage(), str(record.exc_info[1]) if record.exc_info else ""
    for mask in [*_masks.values()]:
        text = record.msg = mask(text)
        record.args = None
        if mask(error) != error:
            record.exc_info = None
    return True


def _exporter(signal: str, endpoint: Endpoint) -> Any:
    """Return the official exporter for an endpoint. Any exception means that it cannot be made."""
    if endpoint.address.scheme == "https" and any(map(may_block, filter(None, endpoint.certificates))):
        raise ValueError("a file with certificates is not a regular file")
    module, name, success = _EXPORTERS[signal]
    if endpoint.protocol == GRPC:
        import_module("monitel_otlp.transport.grpc")  # first: it sets what gRPC reads when it is imported
        protocol, options = "grpc", _grpc(endpoint)
    else:
        protocol, options = "http", _http(endpoint)
    kind = getattr(import_module(f"{_PACKAGES}.{protocol}.{module}"), name)  # late: requests takes 0.1 s
    headers = {name: value.reveal() for name, value in endpoint.headers.items()}
    with _quiet():
        exporter = _in_this_process(kind, success)(**options, headers=headers, timeout=endpoint.timeout)
    _masks[f"{signal} {endpoint.public_url}"] = endpoint.mask
    for logger in _LOGGERS:
        logging.getLogger(logger).addFilter(_mask)
    return exporter


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what the making of an exporter logs in this thread: variables are checked already, and may hold secrets."""
    own = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != own

    names = [each for each in logging.root.manager.loggerDict if each.startswith("opentelemetry.")]
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(others)


def _http(endpoint: Endpoint) -> dict[str, Any]:
    from opentelemetry.exporter.otlp.proto.http import Compression

    address = endpoint.address
    user, query = address.userinfo.reveal(), address.query.reveal()
    url = f"{address.scheme}://{f'{user}@' if user else ''}{address.netloc}{address.path}{f'?{query}' if query else ''}"
    return {"endpoint": url, "compression": Compression(endpoint.compression)}


def _grpc(endpoint: Endpoint) -> dict[str, Any]:
    import grpc

    compression = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
    return {
        "endpoint": f"{endpoint.address.scheme}://{endpoint.address.netloc}",
        "insecure": endpoint.address.scheme == "http",
        "compression": compression.get(endpoint.compression, grpc.Compression.NoCompression),
    }


def _in_this_process(kind: Any, success: object) -> Any:
    """Return a class of an exporter that sends nothing in a forked child."""
    pid = os.getpid()

    class Exporter(kind):  # type: ignore[misc]
        def export(self, *positional: Any, **named: Any) -> Any:
            return super().export(*positional, **named) if os.getpid() == pid else success

    return Exporter


def _check_histograms() -> None:
    """Log a warning if the variable for the form of histograms has another value than the exporter knows."""
    name = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
    forms = ("explicit_bucket_histogram", "base2_exponential_bucket_histogram")
    Environment().value(name, one_of(forms), forms[0])


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
