"""The providers for an application that records by OpenTelemetry's API, with the SDK's reader and processors."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from queue import Queue
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider, TraceBasedExemplarFilter
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from monitel.process.os_threads import Event, RLock, SimpleQueue, get_ident
from monitel_otlp._compat import (
    ENCODERS,
    APILoggerProvider,
    BatchLogRecordProcessor,
    LoggerProvider,
    LogRecordProcessor,
    NoOpLoggerProvider,
    OTLPMetricExporterMixin,
    by_variables,
    log_record_limits,
    span_limits,
)
from monitel_otlp.export.sender import backoff
from monitel_otlp.messages.request import Request
from monitel_otlp.transport import make_transport
from monitel_otlp.transport.answer import Consequence

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import TracerProvider as APITracerProvider

    from monitel_otlp.config.endpoint import Endpoint
    from monitel_otlp.config.settings import Settings

_log = logging.getLogger("monitel.otlp")

#: Arguments of the SDK's batch processors where its variables contradict each other.
_BATCHES = {"max_queue_size": 2048, "schedule_delay_millis": 1000, "max_export_batch_size": 512}
_BATCHES |= {"export_timeout_millis": 30_000}


class ApplicationTelemetry:
    """The OpenTelemetry providers for the application: the SDK's, with a periodic reader or a batch processor each.

    They begin, with their threads, when the application uses the signal: when it gets its first meter, ends its first
    sampled span, or emits its first log record. Without an endpoint, and in a forked child, nothing is sent. What a
    backend does not accept within the time limit of an attempt is lost; the accounts of the pipeline do not include it.

    A thread for each signal flushes and ends it, because this may hang. It is started early: none can be started at
    exit. It is a thread of ``threading``, as those of the SDK: under gevent all of them are greenlets. If gevent comes
    later, it remains a thread, and a lock of gevent could miss that it is released there.
    """

    def __init__(self, settings: Settings, resource: Resource, signals: Collection[str]) -> None:
        self._pid = os.getpid()
        self._endpoints = settings.endpoints
        self._interval = settings.interval
        self._making = RLock()
        self._exports: dict[str, Any] = {}  # the reader or batch processor of each signal in use; None while it is made
        self._calls: list[Any] = []  # a queue for each of their threads
        self._is_over = False
        self.meter_provider: metrics.MeterProvider = metrics.NoOpMeterProvider()
        self.logger_provider: APILoggerProvider = NoOpLoggerProvider()
        self.tracer_provider: APITracerProvider = trace.NoOpTracerProvider()
        recorded = {*signals} - settings.off
        if "metrics" in recorded:
            meters = partial(_Meters, self._use, resource=resource, shutdown_on_exit=False)
            by_default = partial(meters, exemplar_filter=TraceBasedExemplarFilter())
            self.meter_provider = by_variables(meters, by_default)
        if "logs" in recorded:
            loggers = LoggerProvider(resource, shutdown_on_exit=False, log_record_limits=log_record_limits())
            loggers.add_log_record_processor(_Processor(partial(self._use, "logs")))
            self.logger_provider = loggers
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False, span_limits=span_limits())
        self.sampler = tracers.sampler
        if "traces" in recorded:
            tracers.add_span_processor(_Processor(partial(self._use, "traces")))
            self.tracer_provider = tracers

    def begin(self, call: str) -> list[threading.Event]:
        """Begin ``"force_flush"`` or ``"shutdown"`` of each signal in use; return events for :meth:`wait`."""
        if os.getpid() != self._pid:
            return []  # a forked child has no such threads
        self._is_over |= call == "shutdown"
        begun = [(calls, self._event()) for calls in [*self._calls]]
        for calls, ended in begun:
            calls.put((call, ended))
        return [ended for _, ended in begun]

    def wait(self, calls: Sequence[threading.Event], deadline: float) -> bool:
        """Wait for calls until a monotonic deadline; return True if they have ended. One that hangs is left alone."""
        return all(call.wait(max(0.0, deadline - time.monotonic())) for call in calls)

    def _use(self, signal: str, meters: MeterProvider | None = None) -> Any:
        """Return the reader or batch processor of a signal; None without an endpoint, and in a forked child."""
        if os.getpid() != self._pid:
            return None
        with self._making:
            if signal in self._endpoints and signal not in self._exports and not self._is_over:
                self._exports[signal] = None  # first: a signal handler may come here, too
                try:
                    self._exports[signal] = self._make(signal, self._endpoints[signal], meters)
                except Exception as error:  # a variable of the SDK
                    _log.warning("the application's %s by OpenTelemetry's API go nowhere: %r", signal, error)
        return self._exports.get(signal)

    def _make(self, signal: str, endpoint: Endpoint, meters: MeterProvider | None) -> Any:
        exporter: Any = _Exporter(signal, endpoint)
        are_greenlets = threading.get_ident() != get_ident()
        self._event = threading.Event if are_greenlets else Event
        calls: Any = Queue() if are_greenlets else SimpleQueue()
        if meters is not None:
            made: Any = PeriodicExportingMetricReader(exporter, 1000 * self._interval)
            meters.add_metric_reader(made)
        else:
            processor: Any = BatchLogRecordProcessor if signal == "logs" else BatchSpanProcessor
            made = by_variables(partial(processor, exporter), partial(processor, exporter, **_BATCHES))
        threading.Thread(target=_run, args=(made, calls), name="otel-application", daemon=True).start()
        self._calls.append(calls)
        if self._is_over:  # the pipeline has ended meanwhile
            calls.put(("shutdown", self._event()))
        return made


def _run(made: Any, calls: Any) -> None:
    name = ""
    while name != "shutdown":
        name, ended = calls.get()
        try:
            getattr(made, name)()
        except Exception:
            _log.debug("%s of the application's telemetry failed", name, exc_info=True)
        ended.set()


class _Meters(MeterProvider):
    """Has a reader from the first meter on."""

    def __init__(self, use: Callable[[str, MeterProvider], Any], **options: Any) -> None:
        super().__init__(**options)
        self._use = use

    def get_meter(self, *positional: Any, **named: Any) -> Meter:
        self._use("metrics", self)
        return super().get_meter(*positional, **named)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        reader = self._use("metrics", self)  # the SDK flushes no reader that was added later
        return reader is None or bool(reader.force_flush(timeout_millis))


class _Processor(SpanProcessor, LogRecordProcessor):
    """Passes spans that end, or log records, to the batch processor."""

    def __init__(self, use: Callable[[], Any]) -> None:
        self._use = use

    def on_end(self, span: Any) -> None:
        if span.context.trace_flags.sampled and (processor := self._use()) is not None:
            processor.on_end(span)

    def on_emit(self, log_record: Any) -> None:
        if (processor := self._use()) is not None:
            processor.on_emit(log_record)

    def shutdown(self) -> None:
        if (processor := self._use()) is not None:
            processor.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        processor = self._use()
        return processor is None or bool(processor.force_flush(timeout_millis))


class _Exporter(OTLPMetricExporterMixin):
    """Sends what the SDK hands over, by monitel's transport: one deadline for all attempts, and no secret in a log.

    In a forked child nothing is sent: the SDK would send the values of the parent a second time.
    """

    def __init__(self, signal: str, endpoint: Endpoint) -> None:
        self._signal = signal
        self._timeout = endpoint.timeout
        self._transport = make_transport(signal, endpoint)
        self._pid = os.getpid()
        self._fails = False
        self._ended = threading.Event()
        if signal == "metrics":
            self._common_configuration()  # temporality and aggregation, for the reader

    def export(self, data: Any, **_options: Any) -> None:
        if os.getpid() != self._pid:
            return
        request = Request(self._signal, ENCODERS[self._signal](data).SerializeToString())
        deadline, failures = time.monotonic() + self._timeout, 0
        answer = self._transport.send(request)
        while answer.consequence is Consequence.RETRY:
            failures += 1
            pause = backoff(answer, failures)
            if time.monotonic() + pause >= deadline or self._ended.wait(pause):
                break
            answer = self._transport.send(request, deadline - time.monotonic())
        fails = answer.consequence is not Consequence.DELIVERED or answer.rejected > 0
        if fails and not self._fails:
            why = answer.reason or f"the backend has left out {answer.rejected} of them"
            _log.warning("the application's %s by OpenTelemetry's API are lost: %s", self._signal, why)
        self._fails = fails

    def force_flush(self, *_given: Any, **_named: Any) -> bool:
        return True

    def shutdown(self, *_given: Any, **_named: Any) -> None:
        self._ended.set()
        self._transport.close()
