"""Everything of a pipeline that belongs to one process: queues, encoders, delivery, spool."""

from __future__ import annotations

import logging
import math
import time
from threading import RLock
from typing import TYPE_CHECKING

from opentelemetry.context import Context, get_current
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider

import monitel
from monitel_otel import Records
from monitel_otlp._compat import LoggerProvider
from monitel_otlp.delivery import Delivery
from monitel_otlp.exporters import RangeExporter, RecordExporter, WindowExporter
from monitel_otlp.mapping import choose_mapping
from monitel_otlp.processors import BoundedQueue, RecordProcessor, SpanQueue, drain
from monitel_otlp.senders import make_senders
from monitel_otlp.spool import Spool
from monitel_otlp.tally import Tally, register_self_metrics
from monitel_otlp.windows import WindowQueue

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.settings import Settings

_log = logging.getLogger("monitel.otlp")

_LIMIT = 100_000  # windows, and events, that wait to be encoded
_SLICE = 100  # what is done in one go, so that the training loop never waits long for the GIL

_Logged = tuple[monitel.Event, "int | None", Context, int]


class Engine:
    """Takes windows and events from any thread, and delivers them from its own.

    Windows and events wait in queues of 100,000 each; the oldest is dropped when one is full, and counted as
    ``queue_full``. What happens to requests after that says :class:`monitel_otlp.outbox.Outbox`.

    Args:
        settings: Where to, how often, which spool.
        resource: Who is speaking.
    """

    def __init__(self, settings: Settings, resource: Resource) -> None:
        self.settings = settings
        self.tally = Tally()
        self.encoding = RLock()  # held while the SDK collects: a fork waits for it, so that no lock stays held
        self._windows = WindowQueue(_LIMIT)
        self._events: BoundedQueue[_Logged] = BoundedQueue(_LIMIT)
        self._flush_stats = False

        mapping = choose_mapping(time.time_ns())
        windows = WindowExporter(self._windows, mapping, self._put, settings.encoder_arguments("metrics"))
        records = RecordExporter(self._put, settings.encoder_arguments("logs"))
        spans = RangeExporter(self._put, settings.encoder_arguments("traces"))
        routes = {"metrics": windows.learn_route, "logs": records.learn_route, "traces": spans.learn_route}
        self._spool = Spool(settings.spool_dir, settings.spool_limit_bytes)
        self.delivery = Delivery(
            self._encode, make_senders(settings, routes), self._spool, self.tally, settings.interval
        )

        self._reader = PeriodicExportingMetricReader(windows, export_interval_millis=math.inf)  # we say when
        self.meter_provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self._records = RecordProcessor(_LIMIT, self.delivery.force_flush)
        self._export_records = records.export
        self.logger_provider = LoggerProvider(resource, shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(self._records)
        self._spans = SpanQueue(_LIMIT, self.delivery.force_flush)
        self._export_spans = spans.export
        self.tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(self._spans)
        self._event_records = Records(self.logger_provider.get_logger("monitel", monitel.__version__))
        register_self_metrics(
            self.meter_provider.get_meter("monitel.pipeline", monitel.__version__),
            self.tally,
            queue_size=lambda: self.delivery.memory_items + len(self._windows) + len(self._events),
            spool_bytes=lambda: self._spool.size_bytes,
            nonfinite=lambda: self._windows.nonfinite,
            discarded=lambda: self._windows.discarded,
        )
        self.delivery.start()

    def take(self, event: monitel.Event) -> None:
        """Take one event, in the thread that logs it: an append and nothing else."""
        if event.window is not None:
            self._windows.put(event.window)
            waiting = len(self._windows)
        else:
            self._events.put((event, monitel.get_step(), get_current(), time.time_ns()))
            waiting = len(self._events)
        if waiting == _LIMIT // 2:
            self.delivery.wake()

    def shutdown(self, timeout: float, *, flush_stats: bool = False) -> bool:
        """End within ``timeout`` seconds; what is not delivered by then is in the spool.

        Args:
            timeout: Seconds at most.
            flush_stats: Have the delivery thread flush the Stats, for a signal handler, which must not.
        """
        self._flush_stats = flush_stats
        return self.delivery.shutdown(timeout)

    def _put(self, request: FrozenRequest) -> None:
        self.delivery.put(request)

    def _encode(self) -> None:
        """Put everything queued into requests; runs in the delivery thread."""
        if self._flush_stats:
            monitel.flush()
        while monitel.close_expired_windows(_SLICE) == _SLICE:
            _yield()
        self._collect()
        while self._windows:
            _yield()
            self._collect()
        while logged := self._events.take(_SLICE):
            for event, step, context, observed_ns in logged:
                self._event_records.write(event, step=step, context=context, observed_ns=observed_ns)
            _yield()
        drain(self._records.queue, self._export_records)
        drain(self._spans.queue, self._export_spans)
        self.tally.dropped("metrics", "queue_full", self._windows.take_dropped())
        self.tally.dropped("logs", "queue_full", self._events.take_dropped() + self._records.queue.take_dropped())
        self.tally.dropped("traces", "queue_full", self._spans.queue.take_dropped())

    def _collect(self) -> None:
        with self.encoding:
            self._reader.collect()


def _yield() -> None:
    """Let a thread go on that waits for the GIL."""
    time.sleep(0)  # noqa: TID251  no waiting: it only gives the GIL away
