"""Everything of a pipeline that belongs to one process: queues, encoder, delivery, spool."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from itertools import takewhile
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics
from opentelemetry.context import get_current

import monitel
from monitel.bounded_queue import BoundedQueue
from monitel_otel import WaitInstruments
from monitel_otlp.accounting import EXIT, Stage
from monitel_otlp.delivery.delivery import Delivery, RawItems
from monitel_otlp.delivery.leftovers import Leftovers
from monitel_otlp.encoder import Encoder, Source
from monitel_otlp.gil import give_way
from monitel_otlp.logs.mapping import EventMapping, LoggedEvent
from monitel_otlp.logs.requests import EventRequests
from monitel_otlp.metrics.mapping import choose_mapping
from monitel_otlp.metrics.queue_size import PIPELINE_SCOPE
from monitel_otlp.metrics.window_queue import SERIES_LIMIT, WindowQueue
from monitel_otlp.raw import raw_events, raw_ranges, raw_records, raw_spans, raw_windows
from monitel_otlp.sdk._compat import log_record_limits
from monitel_otlp.sdk.application_events import ApplicationEvents
from monitel_otlp.sdk.collector import Callback, Collector
from monitel_otlp.sdk.exporters import BatchExporter, WindowExporter
from monitel_otlp.sdk.providers import Providers
from monitel_otlp.self_metrics import SelfMetrics
from monitel_otlp.spool.raw import encode_block
from monitel_otlp.spool.spool import Spool
from monitel_otlp.traces.mapping import SpanRequests
from monitel_otlp.transport.factory import make_transports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from monitel_otlp.accounting import Accounting
    from monitel_otlp.config.settings import Settings
    from monitel_otlp.raw import RawForm
    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.sdk._compat import ReadableLogRecord
    from monitel_otlp.traces.span_queue import Identified, QueuedSpans

_log = logging.getLogger("monitel.otlp")

LIMIT = 100_000  # windows, events, ranges, log records and spans, of each kind, that wait to be encoded
LIMIT_BYTES = 128 << 20
_SPOOL_BYTES = 1 << 30
_CALLBACKS = 1.5  # seconds that a round waits for foreign callbacks, each of which may take one
_LAST_CALLBACKS = 0.3  # of the exit's
_AHEAD, _AHEAD_TIMEOUT = 200, 0.05  # windows that are closed, or encoded, in one go; seconds to wait for the encoder
_PATIENCE = 0.3  # seconds, where the code that a signal has interrupted may hold a lock
_MANY = 20_000  # items; most of them have to go to disk as they are
# Shares of the time to shut down that have passed when each step ends.
_ENCODED, _ENCODED_OF_MANY, _STUCK, _SENT, _PREPARED, _STORED = 0.4, 0.05, 0.05, 0.65, 0.8, 0.9
_PROGRESS = 0.1  # seconds in which windows must come while Stats are flushed
_LEAST_FOR_DISK = 0.2  # seconds, even where there is no time to shut down
_LEAST_STUCK = 0.05  # seconds for the step that the encoder has begun


class Engine:
    """Takes windows, events and ranges from any thread, and delivers them from threads of its own.

    They wait in queues of 100,000 items and 128 MiB each. The oldest is dropped when one is full, and counted as
    ``queue_full``. The encoder makes requests of them, a sender for each signal sends these, and the disk's thread
    keeps what is not delivered: whatever hangs stops one of these threads, and none of the others.

    Args:
        settings: Endpoints, intervals and the spool.
        accounting: Counts the items.
        point_attributes: Put on every point of a window, e.g. the rank.
        resource: The resource of everything.
        ranges: Where the ranges wait that become spans.
        attached: Have no providers: windows travel when the application's reader collects, and events by the global
            LoggerProvider.
        series_limit: Attribute sets of one name; further ones become one series.
        leftovers: Deliver what earlier processes have left for the same endpoints.
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
        self.collecting = RLock()  # held while the SDK collects: a fork waits for it, so that no lock stays held
        self._interrupted = self._abandoned = False
        self._failed = False
        self._each_round = each_round
        self._ranges = ranges
        self._waits: WaitInstruments | None = None
        self._drained, self._never = Event(), Event()
        self._collector = Collector()
        self._collector.add(Callback("an event handler, while windows were closed,", self._close_windows))
        self._self_metrics = SelfMetrics(accounting.account)
        self._windows = WindowQueue(
            LIMIT, LIMIT_BYTES, point_attributes, series_limit=series_limit, wake=self.wake
        )
        self._events: BoundedQueue[LoggedEvent] = BoundedQueue(LIMIT, LIMIT_BYTES, wake=self.wake)
        self._spool = Spool(settings.spool_dir, _SPOOL_BYTES, settings.endpoints)
        self._leftovers: Leftovers | None = None
        if leftovers and settings.mark:
            self._leftovers = Leftovers(settings.spool_dir, settings.mark, lambda: make_transports(settings))
        transports = make_transports(settings)
        self.delivery = Delivery(
            accounting, transports, self._spool, self._self_metrics.attempted, self._start_leftovers
        )
        self.windows = WindowExporter(
            choose_mapping(time.time_ns(), settings.distributions),
            self._self_metrics.waiting,
            resource,
            self._put,
            self._lost,
        )
        self.records = BatchExporter("logs", self._put, self._lost)
        self.spans = BatchExporter("traces", self._put, self._lost)
        self.application_events = ApplicationEvents(accounting) if attached else None
        self._span_requests = SpanRequests(self._put, self._lost, self.windows.resource)
        self.providers: Providers | None = None
        self._windows_source = Source("metrics", "windows", self._windows.queue, self.windows.add, self.windows.flush)
        accounting.add_queue("metrics", self._windows.queue)
        sources = [self._events_source()]
        if not attached:
            self.providers, more = self._make_providers(resource)
            sources = [self._windows_source, *sources, *more]
        if ranges is not None:
            sources.append(Source("traces", "ranges", ranges.queue, self._add_ranges, self._span_requests.flush))
            accounting.add_folds(ranges)
        for source in sources:
            if source is not self._windows_source:
                accounting.add_queue(source.signal, source.queue)
        self.encoder = Encoder(accounting, sources, self._encode_metrics, self._after_round, settings.interval)
        self.delivery.disk.start()
        self.encoder.start()

    def take(self, event: monitel.Event) -> None:
        """Take one event, in the thread that logs it: an append and nothing else."""
        if event.window is not None:
            self._windows.put(event.window)
        else:
            logged = LoggedEvent(event, event.step, get_current(), self.innermost(), time.time_ns())
            self._events.put(logged, event.data)

    def innermost(self) -> Identified | None:
        """Return the range that runs here and becomes a span; None where a span of the application's is inside it."""
        return None if self._ranges is None else self._ranges.innermost()

    def wake(self) -> None:
        """Begin the next round of the encoder now. Takes no lock."""
        self.encoder.wake()

    def export(self, metrics_data: MetricsData) -> None:
        """Encode what an application's reader has collected, and every window that waits; for attached pipelines."""
        with self.collecting:
            self.windows.export(metrics_data)
            self.encoder.drain(self._windows_source)
            self.windows.flush()

    def export_records(self, batch: Sequence[ReadableLogRecord]) -> None:
        """Encode log records of an application's processor."""
        assert self.application_events is not None  # the pipeline is attached
        with self.collecting:
            self.application_events.take_back(batch)
            self.records.export(batch)

    def export_spans(self, batch: Sequence[ReadableSpan]) -> None:
        """Encode spans of an application's processor."""
        with self.collecting:
            self.accounting.record("traces", len(batch))
            self.spans.export(batch)

    def flush_windows(self) -> None:
        """Encode the windows that wait, without a reader."""
        with self.collecting:
            self.encoder.drain(self._windows_source)
            self.windows.flush()

    def force_flush(self, timeout: float) -> bool:
        """Encode and deliver what is queued now.

        Returns:
            True if within ``timeout`` seconds all of it was acknowledged, or is on disk where a signal is offline, and
            nothing was lost so far.
        """
        if self._abandoned:  # a forked child has the parent's providers
            return True
        deadline = time.monotonic() + timeout
        before = self.accounting.account()
        if not self.encoder.encode_all(deadline) or not self.delivery.flush(deadline):
            return False
        after = self.accounting.account()
        folding = 0 if self._ranges is None else self._ranges.folding()
        settled = all(
            each.recorded - each.waiting + (folding if signal == "traces" else 0) >= before[signal].recorded
            for signal, each in after.items()
        )
        return settled and not any(each.lost for each in after.values())

    def shutdown(self, timeout: float, *, in_signal_handler: bool = False) -> bool:
        """End within ``timeout`` seconds; what is not delivered by then is in the spool.

        Args:
            timeout: Seconds at most.
            in_signal_handler: Have other threads do whatever may need a lock, flushing the Stats first.

        Returns:
            True if everything was delivered, or is on disk where a signal is offline.
        """
        begin = time.monotonic()
        self._interrupted = in_signal_handler
        if self._leftovers is not None:
            self._leftovers.stop()
        many = sum(len(source.queue) for source in self._last_sources()) > _MANY
        encoded, raw = False, list[RawItems]()
        with _going_on():
            deadline = begin + (_ENCODED_OF_MANY if many else _ENCODED) * timeout
            encoded = self.encoder.finish(deadline, max(_STUCK * timeout, _LEAST_STUCK))
        with _going_on():
            raw = self._prepare_raw(max(begin + _PREPARED * timeout, time.monotonic() + _LEAST_FOR_DISK))
        with _going_on():
            self.delivery.finish(begin + _SENT * timeout)
        with _going_on():
            self.delivery.end(raw, max(begin + _STORED * timeout, time.monotonic() + _LEAST_FOR_DISK))
        self._collector.stop()
        self.accounting.close(encoded=encoded)
        accounts = self.accounting.account()
        return not any(
            each.lost or (each.on_disk and signal in self.settings.endpoints) for signal, each in accounts.items()
        )

    def flush_stats(self, timeout: float) -> None:
        """Close the window of every Stat, which calls event handlers of the application: in the collector's thread.

        Args:
            timeout: Seconds after which it goes on without this, unless windows still come: a window that is not closed
                would be lost uncounted.
        """
        callback = Callback("an event handler, while Stats were flushed,", _flush_stats)
        before = -1
        if not self._collector.call(callback, timeout) and not self._interrupted:
            callback.run()  # CPython has refused the thread
        while callback.queued and (recorded := self._windows.queue.counts().recorded) > before:
            before = recorded
            self._never.wait(_PROGRESS)

    def abandon(self) -> None:
        """Let go of the files, which are the parent's; for a forked child."""
        self._abandoned = True
        self._spool.abandon()

    def _events_source(self) -> Source:
        if self.application_events is not None:
            return Source("logs", "events", self._events, self.application_events.add, lambda: None)
        requests = EventRequests(self._put, self._lost, self.windows.resource)
        return Source("logs", "events", self._events, _each(requests.add), requests.flush)

    def _make_providers(self, resource: Resource) -> tuple[Providers, list[Source]]:
        records: BoundedQueue[ReadableLogRecord] = BoundedQueue(LIMIT, LIMIT_BYTES, wake=self.wake)
        spans: BoundedQueue[ReadableSpan] = BoundedQueue(LIMIT, LIMIT_BYTES, wake=self.wake)
        providers = Providers(resource, self._collector, records, spans, self.force_flush)
        self._observe_in(providers.meter_provider.own_meter)
        if self._ranges is not None:
            self._ranges.sampler = providers.tracer_provider.sampler
        return providers, [
            Source("logs", "records", records, _each(self.records.add), self.records.flush),
            Source("traces", "spans", spans, _each(self.spans.add), self.spans.flush),
        ]

    def _observe_in(self, get_meter: Callable[[str, str], Meter]) -> None:
        """Report the pipeline itself, and the process's wait counters."""
        self._waits = WaitInstruments(get_meter("monitel", monitel.__version__))
        self._self_metrics.register(
            get_meter(PIPELINE_SCOPE, monitel.__version__),
            spool_bytes=lambda: self._spool.size_bytes,
            nonfinite=lambda: self._windows.nonfinite,
            discarded=lambda: self._windows.discarded,
        )

    def _put(self, request: FrozenRequest) -> None:
        self.delivery.put(request)

    def _lost(self, signal: str, reason: str, items: int) -> None:
        self.accounting.drop(signal, Stage.ENCODING, reason, items)

    def _add_ranges(self, taken: list[Any]) -> None:
        assert self._ranges is not None  # else there is no such source
        for ended in taken:
            self._ranges.extend(ended)
            self._span_requests.add(ended)

    def _encode_metrics(self, last: bool) -> None:
        """Encode windows and the values of instruments; in the encoder's thread."""
        self._each_round()
        if self._ranges is not None:
            self._ranges.prepare(last=last)
        if self._interrupted:  # a signal handler waits for this thread: what is queued goes first
            self._drain_windows()
            self.flush_stats(_LAST_CALLBACKS)
        self._collector.refresh(_LAST_CALLBACKS if last else _CALLBACKS, self._drain_windows)
        if self._interrupted:
            # The handler has interrupted code that may hold the lock of an instrument; then this waits in vain.
            collecting = Thread(target=self._collect, args=(last,), name="monitel-otlp-last", daemon=True)
            collecting.start()
            collecting.join(_PATIENCE)
        else:
            self._collect(last)
        self._drain_windows()
        if self.providers is not None:
            self.windows.flush()
        self.delivery.keep_up()

    def _collect(self, last: bool) -> None:
        """Encode the values of the SDK's instruments."""
        if self._waits is None and not last and self._is_used():
            # Attached: by now the application has set its provider, and a reader without any instrument would never
            # ask for the windows. A process that records nothing, such as a launcher, reports nothing of itself.
            self._observe_in(metrics.get_meter_provider().get_meter)
        if self._waits is not None:
            self._waits.refresh()
        if self.providers is not None:
            try:
                with self.collecting:
                    collected = self.providers.collect()
            except Exception:  # of a view or a reservoir of the application
                if not self._failed:
                    self._failed = True
                    _log.exception("the values of instruments cannot be collected (further failures are not logged)")
                return
            for _ in self.windows.collected(collected) if collected is not None else ():
                self.encoder.pause()

    def _is_used(self) -> bool:
        return bool(len(self._windows) or len(self._events) or monitel.wait_counters())

    def _close_windows(self) -> list[Any]:
        """Close windows, which calls event handlers of the application; in the collector's thread."""

        def pause() -> None:
            self._collector.goes_on()
            self._drained.clear()
            if self.providers is not None and len(self._windows) > _AHEAD:
                self._drained.wait(_AHEAD_TIMEOUT)  # windows that live on would have the garbage collector at work
            else:
                give_way()

        monitel.close_expired_windows(pause)
        return []

    def _drain_windows(self) -> bool:
        """Encode some of the windows that wait, unless a reader asks for them; True if the round should end."""
        if self.providers is not None:
            self.encoder.drain(self._windows_source, _AHEAD)
            self._drained.set()
        return self.encoder.superseded

    def _after_round(self, last: bool) -> None:
        """Encode the spans of steps that are over; keep the disk up with memory."""
        if self._ranges is not None:
            with self.accounting.lock:
                finished = self._ranges.finish(last=last)
                self.accounting.fold(sum(attributes.get("monitel.folded.count", 0) for _, attributes in finished))
            for ended, attributes in finished:
                self._span_requests.add(ended, attributes)
            self._span_requests.flush()
        self.delivery.keep_up()

    def _start_leftovers(self) -> None:
        """Begin with what earlier processes have left, once the backend has accepted something."""
        leftovers = self._leftovers
        if leftovers is None or leftovers.started:
            return
        if any(each.delivered for each in self.accounting.account().values()):
            leftovers.start()

    def _prepare_raw(self, deadline: float) -> list[RawItems]:
        """Take what could not be encoded in time, in the form in which it goes to disk.

        Args:
            deadline: Monotonic time after which the rest is dropped, with reason ``exit``.
        """
        resource = self.windows.resource
        forms: dict[str, Callable[[Any], RawForm]] = {
            "windows": lambda items: raw_windows(list(items), self.windows.mapping, resource),
            "events": lambda items: raw_events(items, EventMapping(log_record_limits()), resource),
            "ranges": lambda items: raw_ranges(items, self._span_requests.mapping, resource),
            "records": raw_records,
            "spans": raw_spans,
        }
        prepared = []
        for source in self._last_sources():
            if taken := self.accounting.take(source.signal, source.queue.take, LIMIT):
                written, tried = 0, len(taken)
                try:
                    form = forms[source.kind](takewhile(lambda _: time.monotonic() < deadline, taken))
                    items = RawItems(source.signal, form.header, encode_block(form.items))
                    written, tried = items.items, len(form.items) + form.lost
                    prepared.append(items)
                except Exception:
                    _log.exception("the %s that are left cannot be written to disk and are dropped", source.kind)
                self._lost(source.signal, "encoding", tried - written)
                self._lost(source.signal, EXIT, len(taken) - tried)
        return prepared

    def _last_sources(self) -> Sequence[Source]:
        """Return the queues that go to disk; what waits for a reader or provider of the application does not."""
        attached = self.application_events
        return self.encoder.sources if attached is None or attached.returned else []


def _flush_stats() -> list[Any]:
    monitel.flush()
    return []


def _each(add: Callable[[Any], object]) -> Callable[[list[Any]], None]:
    def add_each(taken: list[Any]) -> None:
        for item in taken:
            add(item)

    return add_each


@contextmanager
def _going_on() -> Iterator[None]:
    """Log an exception of one phase of the exit, and go on with the next."""
    try:
        yield
    except Exception:
        _log.exception("a phase of the shutdown of telemetry failed")
