"""Everything of a pipeline that belongs to one process: queues, encoders, delivery, spool."""

from __future__ import annotations

import logging
import time
from threading import RLock, Thread
from typing import TYPE_CHECKING

from opentelemetry import metrics
from opentelemetry.context import Context, get_current

import monitel
from monitel_otel import Records, WaitInstruments
from monitel_otlp.sdk._compat import get_logger_provider
from monitel_otlp.delivery.worker import Delivery
from monitel_otlp.sdk.exporters import BatchExporter, WindowExporter
from monitel_otlp.gil import give_way
from monitel_otlp.metrics.mapping import WindowMapping, choose_mapping
from monitel_otlp.sdk.processors import BoundedQueue
from monitel_otlp.sdk.providers import Providers
from monitel_otlp.transport.factory import make_encoders, make_senders
from monitel_otlp.config.settings import SPOOL_BYTES
from monitel_otlp.traces.mapping import SpanRequests
from monitel_otlp.spool.spool import Spool
from monitel_otlp.accounting import PIPELINE_SCOPE, Tally, register_self_metrics
from monitel_otlp.metrics.window_queue import WindowQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.config.settings import Settings
    from monitel_otlp.traces.span_queue import Identified, QueuedSpans

_log = logging.getLogger("monitel.otlp")

LIMIT = 100_000  # windows, events and ranges, of each kind, that wait to be encoded
_SLICE = 50  # what is done in one go, so that the training loop never waits long for the GIL
_PATIENCE = 0.3  # seconds, when what was interrupted by a signal may hold a lock

_Logged = tuple[monitel.Event, "int | None", Context, "Identified | None", int]


class Engine:
    """Takes windows, events and ranges from any thread, and delivers them from its own.

    They wait in queues of 100,000 each; the oldest is dropped when one is full, and counted as
    ``queue_full``. What happens to requests after that says :class:`monitel_otlp.delivery.retry_queue.Outbox`.

    Args:
        settings: Where to, how often, which spool.
        point_attributes: Put on every point of a window, e.g. the rank.
        resource: Who is speaking.
        ranges: Where the ranges wait that become spans.
        attached: Have no providers of its own: windows travel when the application's reader collects, and events by
            the global LoggerProvider.
    """

    def __init__(
        self,
        settings: Settings,
        point_attributes: Mapping[str, str | int],
        resource: Resource,
        ranges: QueuedSpans | None,
        *,
        attached: bool,
    ) -> None:
        self.settings = settings
        self.tally = Tally()
        self.encoding = RLock()  # held while the SDK collects: a fork waits for it, so that no lock stays held
        self._queue = WindowQueue(LIMIT, point_attributes)
        self._events: BoundedQueue[_Logged] = BoundedQueue(LIMIT)
        self._interrupted = False
        self._handler_failed = False
        mapping: WindowMapping = choose_mapping(time.time_ns(), settings.distributions)
        encoders = make_encoders(settings)
        self.windows = WindowExporter(
            self._queue, mapping, self._queue_size, resource, self._put, self.tally, encoders["metrics"]
        )
        self.records = BatchExporter("logs", self._put, self.tally, encoders["logs"])
        self.spans = BatchExporter("traces", self._put, self.tally, encoders["traces"])
        self._ranges = ranges
        self._range_requests: SpanRequests | None = None
        if ranges is not None:
            self._range_requests = SpanRequests(ranges, self.windows.resource, self._put, self.tally)
        self._spool = Spool(settings.spool_dir, SPOOL_BYTES, settings.endpoints)
        senders = make_senders(settings, encoders)
        self.delivery = Delivery(self._encode, senders, self._spool, self.tally, settings.interval)
        self.providers: Providers | None = None
        self._event_records: Records | None = None
        self._waits: WaitInstruments | None = None
        if not attached:
            flush = self.delivery.force_flush
            self.providers = Providers(resource, self.windows, self.records, self.spans, flush, LIMIT)
            self._observe_in(self.providers.meter_provider)
            if ranges is not None:
                ranges.sampler = self.providers.tracer_provider.sampler
        self.delivery.start()

    def _observe_in(self, meter_provider: MeterProvider) -> None:
        """Report the pipeline itself, and the process's wait counters, by this provider."""
        meter = meter_provider.get_meter(PIPELINE_SCOPE, monitel.__version__)
        self._waits = WaitInstruments(meter_provider.get_meter("monitel", monitel.__version__))
        register_self_metrics(
            meter,
            self.tally,
            queue_size=self._queue_size,
            spool_bytes=lambda: self._spool.size_bytes,
            nonfinite=lambda: self._queue.nonfinite,
            discarded=lambda: self._queue.discarded,
        )

    def take(self, event: monitel.Event) -> None:
        """Take one event, in the thread that logs it: an append and nothing else."""
        if event.window is not None:
            self._queue.put(event.window)
            waiting = len(self._queue)
        else:
            self._events.put((event, event.step, get_current(), self.innermost(), time.time_ns()))
            waiting = len(self._events)
        if waiting == LIMIT // 2:
            self.delivery.wake()

    def innermost(self) -> Identified | None:
        """The range that runs here and will be a span; None where a span of the caller's own, or none, is current."""
        return None if self._ranges is None else self._ranges.innermost()

    def shutdown(self, timeout: float, *, in_signal_handler: bool = False) -> bool:
        """End within ``timeout`` seconds; what is not delivered by then is in the spool.

        Args:
            timeout: Seconds at most.
            in_signal_handler: Have other threads do what may need a lock, flushing the Stats first.
        """
        self._interrupted = in_signal_handler
        return self.delivery.shutdown(timeout, in_signal_handler=in_signal_handler)

    def abandon(self) -> None:
        """In a forked child: let go of the files that are the parent's."""
        self._spool.abandon()

    def force_flush(self, timeout: float) -> bool:
        """Deliver everything that is queued within so many seconds; whether that is so."""
        return self.delivery.force_flush(timeout)

    def _put(self, request: FrozenRequest) -> None:
        self.delivery.put(request)

    def _queue_size(self) -> int:
        ranges = len(self._ranges.queue) if self._ranges is not None else 0
        return self.delivery.memory_items + len(self._queue) + len(self._events) + ranges

    def _encode(self, last: bool) -> None:
        """Put everything there is into requests; runs in the delivery thread."""
        if self._interrupted:
            # A signal handler waits for this thread, in code that may hold the lock of an instrument or, without the C
            # window, of a Stat: what is queued goes first, and the rest is waited for in vain at the worst.
            self._encode_queued()
            gathering = Thread(target=self._gather, args=(last,), name="monitel-otlp-last", daemon=True)
            gathering.start()
            gathering.join(_PATIENCE)
        else:
            self._gather(last)
        self._encode_queued(last=last)

    def _gather(self, last: bool) -> None:
        """Close windows, and put what the SDK's instruments hold into a request."""
        self._close_windows()
        if self._waits is None and not last and self._is_used():
            # Attached: by now the application has set its provider, and a reader without any instrument would never
            # ask for the windows. A process that records nothing, as a launcher, has nothing to say of itself.
            self._observe_in(metrics.get_meter_provider())
        if self._waits is not None:
            self._waits.refresh()
        if self.providers is not None:
            with self.encoding:
                self.providers.collect()

    def _is_used(self) -> bool:
        return bool(self._queue or self._events or monitel.wait_counters())

    def _close_windows(self) -> None:
        try:
            if self._interrupted:
                monitel.flush()
            # Each slice is encoded at once: many windows that live on would have the garbage collector at work.
            monitel.close_expired_windows(give_way if self.providers is None else self.windows.write)
        except BaseException:  # a user's handler, in our thread: not even its SystemExit may stop the delivery
            if not self._handler_failed:
                self._handler_failed = True
                _log.exception("a handler raised while windows were closed; telemetry goes on")

    def _encode_queued(self, *, last: bool = False) -> None:
        """Put windows, events, log records and spans that wait into requests."""
        if self.providers is not None:
            self.windows.flush()
        while logged := self._events.take(_SLICE):
            records = self._records()
            for event, step, context, inside, observed_ns in logged:
                where = context if inside is None else inside.context(context)
                records.write(event, step=step, context=where, observed_ns=observed_ns)
            give_way()
        self._encode_ranges(last=last)
        if self.providers is not None:
            self.providers.drain()
            self.providers.count_drops(self.tally)
        self.tally.dropped("metrics", "queue_full", self._queue.take_dropped())
        self.tally.dropped("logs", "queue_full", self._events.take_dropped())

    def _encode_ranges(self, *, last: bool) -> None:
        if self._ranges is None or self._range_requests is None:
            return
        self._ranges.prepare(last=last)
        while self._range_requests.export(_SLICE):
            give_way()
        self._range_requests.finish(last=last)
        self.tally.dropped("traces", "queue_full", self._ranges.queue.take_dropped())

    def _records(self) -> Records:
        if self._event_records is None:
            provider = self.providers.logger_provider if self.providers else get_logger_provider()
            self._event_records = Records(provider.get_logger("monitel", monitel.__version__))
        return self._event_records
