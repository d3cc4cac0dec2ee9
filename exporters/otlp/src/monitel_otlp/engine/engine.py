"""The engine: the part of a pipeline that belongs to one process (queues, encoder, delivery, spool)."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.context import get_current

import monitel
from monitel.bounded_queue import BoundedQueue
from monitel.os_threads import RLock
from monitel_otlp.accounting import Stage
from monitel_otlp.choices import OFF
from monitel_otlp.delivery.delivery import Delivery
from monitel_otlp.delivery.leftovers import Leftovers
from monitel_otlp.engine.encoder import Encoder, Source
from monitel_otlp.engine.exit_phases import raw_forms, run_exit_phases
from monitel_otlp.engine.metric_round import MetricRound, Occasion
from monitel_otlp.engine.recording import Recording
from monitel_otlp.logs.application_events import ApplicationEvents
from monitel_otlp.logs.mapping import EventRequests, LoggedEvent
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.readings import Readings
from monitel_otlp.metrics.series import SERIES_LIMIT, end_of_earlier_pipelines_ns
from monitel_otlp.metrics.window_queue import WindowQueue
from monitel_otlp.sdk.metric_requests import MetricRequests
from monitel_otlp.sdk.providers import Providers, temporality_preference
from monitel_otlp.sdk.record_requests import RecordRequests
from monitel_otlp.sdk.self_metrics import SelfMetrics
from monitel_otlp.spool.spool import Spool
from monitel_otlp.threads.callbacks import CallbackThread
from monitel_otlp.traces.mapping import RangeRequests
from monitel_otlp.transport.factory import make_transports
from monitel_otlp.values.latest import flat, latest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from monitel_otlp._compat import ReadableLogRecord
    from monitel_otlp.accounting import Accounting
    from monitel_otlp.config.settings import Settings
    from monitel_otlp.engine.exit_phases import RawForms
    from monitel_otlp.metrics.series import Series
    from monitel_otlp.traces.span_queue import Identified, QueuedSpans
    from monitel_otlp.values.latest import Latest

LIMIT = 100_000  # items of each kind (windows, events, ranges, log records, spans) in a queue
LIMIT_BYTES = 128 << 20
_SPOOL_BYTES = 1 << 30
_PATIENCE = 0.5  # seconds that a new engine is waited for


class Engine:
    """Takes windows, events and ranges from any thread, and delivers them in background threads.

    Each queue holds 100,000 items and 128 MiB. When a queue is full the oldest item is dropped and counted as
    ``queue_full``. The encoder makes requests, one sender per signal sends them, and the disk thread stores undelivered
    requests. An operation that hangs stops one of these threads, and not the others.

    Args:
        settings: Endpoints, intervals and the spool.
        accounting: Counts the items.
        point_attributes: Added to every point of a window, e.g. the rank.
        resource: The resource of all requests.
        ranges: The queue of ranges that become spans.
        attached: Have no providers: windows are exported when the application's reader collects, and events through
            the global LoggerProvider.
        series_limit: Attribute sets per metric name. Further sets become one series.
        leftovers: Collect the black boxes of killed processes, and deliver the spools of earlier processes for the same
            endpoints.
        each_round: Called in each round of the encoder.
    """

    def __init__(
        self,
        settings: Settings,
        accounting: Accounting,
        point_attributes: Mapping[str, str | int],
        resource: Resource,
        ranges: QueuedSpans | None,
        *,
        attached: bool,
        series_limit: int = SERIES_LIMIT,
        leftovers: bool = False,
        each_round: Callable[[], object] = lambda: None,
    ) -> None:
        self.settings = settings
        self.accounting = accounting
        self.collecting = RLock()  # held while the SDK collects; a fork waits for it
        self._abandoned = False
        self._each_round = each_round
        self._ranges = ranges
        self._callbacks = CallbackThread()
        self._self_metrics = SelfMetrics(accounting.account)
        mapping = WindowMapping(temporality_preference(), time.time_ns(), settings.distributions)
        self._window_queue = WindowQueue(
            LIMIT,
            LIMIT_BYTES,
            point_attributes,
            series_limit=series_limit,
            wake=self.wake,
            after_ns=end_of_earlier_pipelines_ns(resource, mapping),
        )
        self._recording = Recording(
            OFF if attached else settings.box,
            settings.spool_dir,
            lambda: self.metric_requests.resource,
            mapping=mapping,
            table=self._window_queue.table,
            wake=self.wake,
            off=settings.off,
        )
        self.box = self._recording.box
        self._put = self._recording.put
        self._event_queue: BoundedQueue[LoggedEvent] = BoundedQueue(
            LIMIT, LIMIT_BYTES, wake=self.wake, evicted=self._recording.event_done
        )
        self._spool = Spool(settings.spool_dir, _SPOOL_BYTES, settings.endpoints)
        self._leftovers: Leftovers | None = None
        if leftovers:
            make = partial(make_transports, settings)
            self._leftovers = Leftovers(settings.spool_dir, settings.mark, make, settings.box)
        transports = make_transports(settings)
        self.delivery = Delivery(
            accounting,
            transports,
            self._spool,
            self._self_metrics.attempted,
            self._start_leftovers,
            kept=self.box if self.box.enabled else None,
        )
        self._readings = Readings(self._window_queue.table, delta=mapping.delta, with_waits=not attached)
        self.metric_requests = requests = MetricRequests(
            *(mapping, self._self_metrics.waiting, resource, self._put, self._lost),
            readings=self._readings,
            attributes=self._window_queue.table.attributes(),
        )
        self._record_requests = RecordRequests("logs", self._put, self._lost)
        self._span_requests = RecordRequests("traces", self._put, self._lost)
        self.application_events = ApplicationEvents(accounting) if attached else None
        self._range_requests = RangeRequests(self._put, self._lost, self.metric_requests.resource)
        self.providers: Providers | None = None
        self._window_source = Source("metrics", "windows", self._window_queue.queue, self._add_windows, requests.flush)
        accounting.add_queue("metrics", self._window_queue.queue)
        self._config: dict[str, Any] = {}
        self._builders: list[EventRequests] = []
        sources = [self._events_source()]
        if not attached:
            self.providers, more = self._make_providers(resource)
            sources = [self._window_source, *sources, *more]
        if ranges is not None:
            sources.append(Source("traces", "ranges", ranges.queue, self._add_ranges, self._range_requests.flush))
            accounting.add_folds(ranges)
        for source in sources:
            if source is not self._window_source:
                accounting.add_queue(source.signal, source.queue)
        self.encoder = Encoder(
            accounting,
            sources,
            self._encode_metrics,
            self._after_round,
            settings.interval,
            commit=lambda complete: self._recording.commit(complete=complete, last=self.encoder.over),
            due=lambda: self._recording.due,
        )
        self._recording.begin(
            self.delivery,
            self.encoder,
            self._window_source,
            [requests, *self._builders, self._record_requests, self._span_requests, self._range_requests],
            readings=self._readings,
            ranges=ranges,
        )
        self._metric_round = MetricRound(
            self.encoder,
            self._callbacks,
            queue=self._window_queue,
            source=self._window_source,
            requests=self.metric_requests,
            providers=self.providers,
            collecting=self.collecting,
            register=self._register_instruments,
            waits=self._readings.waits,
            occasion=Occasion(settings.idle_interval, self._items_lost, self._readings.waits),
            is_used=self._is_used,
        )
        self.delivery.disk.start()
        self.encoder.start()
        if self._leftovers is not None:
            self._leftovers.collect()

    @property
    def series(self) -> list[Series]:
        """All series of windows, logged numbers and counters so far."""
        return self._window_queue.table.all()

    def latest(self) -> Latest:
        """Return the last values of this process. It touches no file and takes no lock."""
        return latest(self.series, self._window_queue.numbers(), self._config)

    def take(self, event: monitel.Event) -> None:
        """Queue one event, in the thread that logs it, for each of its signals that is not off."""
        off = self.settings.off
        if event.window is not None:
            if "metrics" not in off:
                self._window_queue.put(event.window)
            return
        if isinstance(event, monitel.LoggedNumbers):
            if "metrics" not in off:
                self._window_queue.put_numbers(event)
        elif isinstance(event, monitel.RunConfig):
            self._config = {**self._config, **dict(flat(event.config))}
        if "logs" in off:
            return
        logged = LoggedEvent(event, event.step, get_current(), self.innermost(), time.time_ns())
        logged = self._recording.emitted(logged)
        self._event_queue.put(logged, event.config if isinstance(event, monitel.RunConfig) else event.data)

    def innermost(self) -> Identified | None:
        """Return the innermost open range that becomes a span; None if the application has opened a span inside it."""
        return None if self._ranges is None else self._ranges.innermost()

    def wake(self) -> None:
        """Start the next round of the encoder now. Takes no lock."""
        self.encoder.wake()

    def export(self, metrics_data: MetricsData) -> None:
        """Encode an application's collected metrics, all queued windows, and the counters; if attached."""
        with self.collecting:
            self.metric_requests.export(metrics_data)
            self._flush_metrics()

    def export_records(self, batch: Sequence[ReadableLogRecord]) -> None:
        """Encode log records of an application's processor."""
        assert self.application_events is not None  # because the pipeline is attached
        if "logs" in self.settings.off:
            return
        with self.collecting:
            self.application_events.take_back(batch)
            self._record_requests.export(batch)

    def export_spans(self, batch: Sequence[ReadableSpan]) -> None:
        """Encode spans of an application's processor."""
        if "traces" in self.settings.off:
            return
        with self.collecting:
            self.accounting.record("traces", len(batch))
            self._span_requests.export(batch)

    def flush_windows(self) -> None:
        """Encode the queued windows and the counters, without a reader."""
        with self.collecting:
            self._flush_metrics()

    def force_flush(self, timeout: float) -> bool:
        """Encode and deliver all items that are queued now.

        Returns:
            True if within ``timeout`` seconds all of them were acknowledged, or are on disk because the signal is
            offline, and if no item was lost so far.
        """
        if self._abandoned:  # a forked child has inherited the providers
            return True
        deadline = time.monotonic() + timeout
        before = self.accounting.account()
        if not self.encoder.encode_all(deadline) or not self.delivery.flush(deadline):
            return False
        after = self.accounting.account()
        folding = 0 if self._ranges is None else self._ranges.folding()
        done = all(
            each.recorded - each.waiting + (folding if signal == "traces" else 0) >= before[signal].recorded
            for signal, each in after.items()
        )
        return done and not any(each.lost for each in after.values())

    def shutdown(self, timeout: float, *, in_signal_handler: bool = False) -> bool:
        """End within ``timeout`` seconds. Items that are not delivered by then are in the spool.

        Args:
            timeout: Seconds at most.
            in_signal_handler: Run everything that may need a lock in other threads, including the flush of the Stats.

        Returns:
            True if all items were delivered, or are on disk because the signal is offline.
        """
        self._metric_round.interrupted = in_signal_handler
        if self._leftovers is not None:
            self._leftovers.stop()
        encoded = run_exit_phases(
            self.encoder,
            self.delivery,
            self.accounting,
            sources=self._sources_for_disk(),
            forms=self._raw_forms,
            timeout=timeout,
        )
        self.box.close()  # at once: its items are on disk now, and would be there twice if the process was killed
        self._callbacks.stop()
        self.accounting.close(encoded=encoded)
        accounts = self.accounting.account()
        return not any(
            each.lost or (each.on_disk and signal in self.settings.endpoints) for signal, each in accounts.items()
        )

    def discard(self) -> bool:
        """End without a trace, if no request has been finished: nothing is sent or written.

        Returns:
            True if that was possible; otherwise the engine continues.
        """
        if not self.encoder.cancel(_PATIENCE):
            return False
        if self._leftovers is not None:
            self._leftovers.stop()
        self.delivery.end([], time.monotonic() + _PATIENCE)
        self._callbacks.stop()
        self.box.close()
        return True

    def flush_stats(self, timeout: float) -> None:
        """Close the window of every Stat, which calls event handlers of the application, in the callback thread.

        Args:
            timeout: Seconds. After that it waits only while further windows arrive, because a window that is not
                closed would be lost uncounted.
        """
        self._metric_round.flush_stats(timeout)

    def abandon(self) -> None:
        """Close the files, which belong to the parent. For a forked child."""
        self._abandoned = True
        self._spool.abandon()
        self.box.abandon()

    def _flush_metrics(self) -> None:
        self.encoder.drain(self._window_source)
        self.metric_requests.read()
        self.metric_requests.flush()

    def _events_source(self) -> Source:
        if self.application_events is not None:
            return Source("logs", "events", self._event_queue, self.application_events.add, lambda: None)
        requests = EventRequests(self._put, self._lost, self.metric_requests.resource)
        self._builders.append(requests)

        def add(logged: LoggedEvent) -> None:
            requests.add(logged)
            self._recording.event_done(logged)

        return Source("logs", "events", self._event_queue, _each(add), requests.flush)

    def _make_providers(self, resource: Resource) -> tuple[Providers, list[Source]]:
        records: BoundedQueue[ReadableLogRecord] = BoundedQueue(LIMIT, LIMIT_BYTES, wake=self.wake)
        spans: BoundedQueue[ReadableSpan] = BoundedQueue(LIMIT, LIMIT_BYTES, wake=self.wake)
        providers = Providers(resource, self._callbacks, records, spans, self.force_flush)
        if self._ranges is not None:
            self._ranges.sampler = providers.tracer_provider.sampler
        return providers, [
            Source("logs", "records", records, _each(self._record_requests.add), self._record_requests.flush),
            Source("traces", "spans", spans, _each(self._span_requests.add), self._span_requests.flush),
        ]

    def _register_instruments(self, meter: Meter) -> None:
        """Create the instruments of the pipeline itself."""
        self._self_metrics.register(
            meter,
            spool_bytes=lambda: self._spool.size_bytes,
            nonfinite=lambda: self._window_queue.nonfinite,
            discarded=lambda: self._window_queue.discarded,
            coalesced=lambda: self._window_queue.coalesced + self.metric_requests.mapping.coalesced,
            without_box=lambda: self.box.left_out,
        )

    def _add_windows(self, entries: list[Any]) -> None:
        self.metric_requests.add(entries)
        self._recording.encoded_windows(entries)

    def _lost(self, signal: str, reason: str, items: int) -> None:
        self.accounting.drop(signal, Stage.ENCODING, reason, items)

    def _add_ranges(self, taken: list[Any]) -> None:
        assert self._ranges is not None  # because only then there is this source
        for ended in taken:
            self._ranges.extend(ended)
            self._range_requests.add(ended)

    def _encode_metrics(self, last: bool) -> None:
        """Encode windows and the values of instruments; in the encoder's thread."""
        self._each_round()
        if self._ranges is not None:
            self._ranges.prepare(last=last)
        self._metric_round.run(last=last)
        self.delivery.keep_up()

    def _items_lost(self) -> int:
        return sum(each.lost for each in self.accounting.account().values())

    def _is_used(self) -> bool:
        recorded = len(self._window_queue) or len(self._event_queue)
        return bool(recorded or monitel.wait_counters() or monitel.counters())

    def _after_round(self, last: bool) -> None:
        """Encode the spans of ended steps, and move requests to disk that have waited too long."""
        if self._ranges is not None:
            with self.accounting.lock:
                finished = self._ranges.finish(last=last)
                self.accounting.fold(sum(attributes.get("monitel.folded.count", 0) for _, attributes in finished))
            for ended, attributes in finished:
                self._range_requests.add(ended, attributes)
            self._range_requests.flush()
        self.delivery.keep_up()

    def _start_leftovers(self) -> None:
        """Start the delivery of earlier spools, once the backend has accepted a request."""
        leftovers = self._leftovers
        if leftovers is None or leftovers.accepted:
            return
        if any(each.delivered for each in self.accounting.account().values()):
            leftovers.deliver()

    def _raw_forms(self) -> RawForms:
        requests = self.metric_requests
        return raw_forms(requests.mapping, self._range_requests.mapping, requests.resource)

    def _sources_for_disk(self) -> Sequence[Source]:
        """Return all queues; none in an attached pipeline without a LogExporter."""
        attached = self.application_events
        return self.encoder.sources if attached is None or attached.returned else []


def _each(add: Callable[[Any], object]) -> Callable[[list[Any]], None]:
    def add_each(taken: list[Any]) -> None:
        for item in taken:
            add(item)

    return add_each
