"""The whole pipeline: providers, queues, delivery, spool and exit."""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import time
import weakref
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.context import Context, get_current
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

import monitel
from monitel_otel import Records
from monitel_otlp._compat import LoggerProvider, get_logger_provider, is_set, set_logger_provider
from monitel_otlp.delivery import Delivery
from monitel_otlp.exporters import RangeExporter, RecordExporter, WindowExporter
from monitel_otlp.mapping import CumulativeMapping
from monitel_otlp.processors import BoundedQueue, RecordProcessor, SpanQueue, drain
from monitel_otlp.sender import Sender
from monitel_otlp.settings import Settings, resolve
from monitel_otlp.spool import Spool
from monitel_otlp.tally import Tally, register_self_metrics
from monitel_otlp.windows import WindowQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("monitel.otlp")

_QUEUE_LIMIT = 100_000
_SLICE = 100  # windows closed in one go, so that the training loop never waits long for the GIL
_EXIT_TIMEOUT = 2.0
_BEFORE_QUEUES = 50  # multiprocessing's priority: after monitel's own flush (100), before Queues close (10)

_Logged = tuple[monitel.Event, "int | None", Context, int]


class Pipeline:
    """What :func:`configure` returns: monitel's windows and events on their way to an OTLP endpoint.

    Windows and events wait in bounded queues (100,000 each; the oldest is dropped and counted) until the delivery
    thread encodes and sends them. What a backend does not take is kept, first in memory, then in the spool.
    Thread-safe. A forked child exports nothing.

    Attributes:
        meter_provider: For instruments of your own; they travel with the windows.
        logger_provider: For log records of your own.
        tracer_provider: For spans of your own.
        spool_dir: Where this process's spool is, or will be.
    """

    def __init__(self, settings: Settings, resource: Resource) -> None:
        self.spool_dir = settings.spool_dir
        self._tally = Tally()
        self._windows = WindowQueue(_QUEUE_LIMIT)
        self._events: BoundedQueue[_Logged] = BoundedQueue(_QUEUE_LIMIT)
        self._settings = settings
        self._ended: bool | None = None
        self._build(settings, resource)
        self._handle = monitel.register_event_handler(self._take)
        self._delivery.start()
        _at_exit(self)

    def _build(self, settings: Settings, resource: Resource) -> None:
        spool = Spool(settings.spool_dir, settings.spool_limit_bytes)
        mapping = CumulativeMapping(time.time_ns())
        metric = WindowExporter(self._windows, mapping, self._put, settings.exporter_arguments("metrics"))
        record = RecordExporter(self._put, settings.exporter_arguments("logs"))
        span = RangeExporter(self._put, settings.exporter_arguments("traces"))
        learn = {"metrics": metric.learn_route, "logs": record.learn_route, "traces": span.learn_route}
        routes = {signal: learn[signal]() for signal in settings.endpoints}
        senders = {signal: Sender(route) for signal, route in routes.items() if route is not None}
        self._delivery = Delivery(self._encode, senders, spool, self._tally, settings.interval)

        self._reader = PeriodicExportingMetricReader(metric, export_interval_millis=math.inf)  # we say when
        self.meter_provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self._records = RecordProcessor(_QUEUE_LIMIT, self.force_flush)
        self._export_records = record.export
        self.logger_provider = LoggerProvider(resource, shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(self._records)
        self._spans = SpanQueue(_QUEUE_LIMIT, self.force_flush)
        self._export_spans = span.export
        self.tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(self._spans)

        self._event_records = Records(self.logger_provider.get_logger("monitel", monitel.__version__))
        register_self_metrics(
            self.meter_provider.get_meter("monitel.pipeline", monitel.__version__),
            self._tally,
            queue_size=self._queue_size,
            spool_bytes=lambda: spool.size_bytes,
            nonfinite=lambda: self._windows.nonfinite,
        )

    def _put(self, request: object) -> None:
        self._delivery.put(request)  # type: ignore[arg-type]  # exporters are made before the delivery is

    def _take(self, event: monitel.Event) -> None:
        """The handler: in the thread that logs, an append and nothing else."""
        if event.window is not None:
            self._windows.put(event.window)
        else:
            self._events.put((event, monitel.get_step(), get_current(), time.time_ns()))

    def _encode(self) -> None:
        """Put everything queued into requests; runs in the delivery thread."""
        while monitel.close_expired_windows(_SLICE) == _SLICE:
            pass
        self._reader.collect()
        while self._windows:
            self._reader.collect()
        while logged := self._events.take(_SLICE):
            for event, step, context, observed_ns in logged:
                self._event_records.write(event, step=step, context=context, observed_ns=observed_ns)
        drain(self._records.queue, self._export_records)
        drain(self._spans.queue, self._export_spans)
        self._tally.dropped("metrics", "queue_full", self._windows.take_dropped())
        self._tally.dropped("logs", "queue_full", self._events.take_dropped() + self._records.queue.take_dropped())
        self._tally.dropped("traces", "queue_full", self._spans.queue.take_dropped())

    def _queue_size(self) -> int:
        waiting = sum(backlog.memory_items for backlog in self._delivery.backlogs.values())
        return waiting + len(self._windows) + len(self._events)

    def force_flush(self, timeout: float = 10.0) -> bool:
        """Close the windows whose time is over, and deliver everything that is queued.

        Windows still open stay open: ``monitel.flush()`` closes them.

        Args:
            timeout: Seconds at most.

        Returns:
            True if all of it was acknowledged, or is on disk where no endpoint is set.
        """
        return self._ended if self._ended is not None else self._delivery.force_flush(timeout)

    def shutdown(self, timeout: float = _EXIT_TIMEOUT) -> bool:
        """Flush every live Stat, deliver what can be delivered, put the rest into the spool, and stop.

        Runs by itself at exit. A second time does nothing.

        Args:
            timeout: Seconds at most, whatever the backend does.

        Returns:
            As :meth:`force_flush`.
        """
        if self._ended is None:
            try:
                monitel.flush()
            except Exception:
                _log.exception("a handler failed while Stats were flushed at the end")
            monitel.unregister_event_handler(self._handle)
            self._ended = self._delivery.shutdown(timeout)
            self._say_goodbye()
        return self._ended

    def __enter__(self) -> Pipeline:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.shutdown()

    def _say_goodbye(self) -> None:
        exported = {signal: self._tally.total_exported(signal) for signal in ("metrics", "logs")}
        line = f"monitel: exported {exported['metrics']} windows, {exported['logs']} events"
        if dropped := self._tally.total_dropped():
            line += f", dropped {dropped}"
        if self._delivery.spooled_items:
            line += (
                f"; {self._delivery.spooled_items} in {self.spool_dir}, "
                f"replay with: python -m monitel_otlp replay {self.spool_dir}"
            )
        print(line, file=sys.stderr)  # noqa: T201  the one line that a run says at its end

    def _forget(self) -> None:
        """In a forked child: nothing of the parent is exported, and nothing waits for its thread."""
        monitel.unregister_event_handler(self._handle)
        self._ended = False


def configure(
    *,
    service_name: str | None = None,
    endpoint: str | None = None,
    headers: Mapping[str, str] | None = None,
    export_interval: float | None = None,
    resource_attributes: Mapping[str, str | int | float | bool] | None = None,
    spool_dir: str | os.PathLike[str] | None = None,
) -> Pipeline:
    """Deliver every closed window, every event and the user's own OpenTelemetry data to an OTLP endpoint.

    What is left out comes from the standard OTEL_* variables, which the official exporters read. The providers become
    the global ones where none is set. A second call shuts the first pipeline down.

    Args:
        service_name: ``service.name``; else OTEL_SERVICE_NAME.
        endpoint: Base URL such as ``"http://localhost:4318"``; ``/v1/metrics`` and so on are appended. Without it and
            without a variable, everything goes to the spool under ``monitel-runs/``.
        headers: Sent with each request, e.g. a token; never written to disk or a log.
        export_interval: Seconds between two rounds of delivery; else OTEL_METRIC_EXPORT_INTERVAL, else 5.
        resource_attributes: Added to OTEL_RESOURCE_ATTRIBUTES.
        spool_dir: Where the folder of this process's spool is made; else ``$XDG_STATE_HOME/monitel``.

    Returns:
        The pipeline, a context manager. It shuts down by itself at exit.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An endpoint that is no base URL, or an interval that is not positive.

    Example:
        >>> import monitel
        >>> import monitel_otlp
        >>> with monitel_otlp.configure(service_name="train", spool_dir="runs") as pipeline:
        ...     monitel.stat("train.loss").add(0.25)
        >>> pipeline.force_flush(timeout=1.0)
        True
    """
    global _current
    settings = resolve(endpoint, headers, export_interval, spool_dir)
    attributes = dict(resource_attributes or {})
    if service_name is not None:
        attributes["service.name"] = service_name
    if _current is not None:
        _current.shutdown()
    if settings.offline:
        _log.warning(
            "no OTLP endpoint is set: telemetry goes to %s; set OTEL_EXPORTER_OTLP_ENDPOINT to send it",
            settings.spool_dir,
        )
    _current = Pipeline(settings, Resource.create(attributes))
    if not is_set(metrics.get_meter_provider()):
        metrics.set_meter_provider(_current.meter_provider)
    if not is_set(get_logger_provider()):
        set_logger_provider(_current.logger_provider)
    if not is_set(trace.get_tracer_provider()):
        trace.set_tracer_provider(_current.tracer_provider)
    return _current


_current: Pipeline | None = None


def _at_exit(pipeline: Pipeline) -> None:
    """Shut down at exit, in multiprocessing's children too; do nothing in a forked child."""
    atexit.register(pipeline.shutdown)
    multiprocessing_util = sys.modules.get("multiprocessing.util")
    if multiprocessing_util is not None:
        multiprocessing_util.Finalize(None, pipeline.shutdown, exitpriority=_BEFORE_QUEUES)
    forget = weakref.WeakMethod(pipeline._forget)

    def after_in_child() -> None:
        if (method := forget()) is not None:
            method()

    os.register_at_fork(after_in_child=after_in_child)
