"""The engine: the part of a pipeline that belongs to one process (queues, encoder, delivery, spool)."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.context import get_current

import monitel
from monitel.bounded_queue import BoundedQueue
from monitel_otlp.accounting import Stage
from monitel_otlp.config.environment import temporality_preference
from monitel_otlp.delivery.delivery import Delivery
from monitel_otlp.delivery.leftovers import Leftovers
from monitel_otlp.engine.encoder import Encoder, Source
from monitel_otlp.engine.exit_phases import raw_forms, run_exit_phases
from monitel_otlp.engine.metric_round import MetricRound, Occasion
from monitel_otlp.engine.recording import Recording
from monitel_otlp.logs.mapping import EventRequests, LoggedEvent, LoggedRecord
from monitel_otlp.messages.resource import encode_resource
from monitel_otlp.metrics import self_metrics
from monitel_otlp.metrics.mapping import WindowMapping
from monitel_otlp.metrics.readings import Readings
from monitel_otlp.metrics.requests import MetricRequests
from monitel_otlp.metrics.self_metrics import SelfMetrics
from monitel_otlp.metrics.series import SERIES_LIMIT, end_of_earlier_pipelines_ns
from monitel_otlp.metrics.window_queue import WindowQueue
from monitel_otlp.spool.spool import Spool
from monitel_otlp.threads.callbacks import CallbackThread
from monitel_otlp.traces.mapping import RangeRequests
from monitel_otlp.transport.factory import make_transports
from monitel_otlp.values.latest import flat, latest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.resources import Resource

    from monitel_otlp.accounting import Accounting
    from monitel_otlp.config.settings import Settings
    from monitel_otlp.engine.exit_phases import RawForms
    from monitel_otlp.metrics.series import Series
    from monitel_otlp.traces.span_queue import QueuedSpans
    from monitel_otlp.values.latest import Latest

LIMIT = 100_000  # items of each kind (windows, events, ranges) in a queue
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
        series_limit: int = SERIES_LIMIT,
        leftovers: bool = False,
        each_round: Callable[[], object] = lambda: None,
    ) -> None:
        self.settings = settings
        self.accounting = accounting
        self._each_round = each_round
        self._ranges = ranges
        self._callbacks = CallbackThread()
        temporality, encoded_resource = temporality_preference(), encode_resource(resource)
        mapping = WindowMapping(temporality, time.time_ns(), settings.distributions)
        self._window_queue = WindowQueue(
            LIMIT,
            LIMIT_BYTES,
            point_attributes,
            series_limit=series_limit,
            wake=self.wake,
            after_ns=end_of_earlier_pipelines_ns(resource, mapping),
        )
        self._recording = Recording(
            settings.box,
            settings.spool_dir,
            encoded_resource,
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
        counts = {
            self_metrics.NONFINITE: lambda: self._window_queue.nonfinite,
            self_metrics.DISCARDED: lambda: self._window_queue.discarded,
            self_metrics.COALESCED: lambda: self._window_queue.coalesced + mapping.coalesced,
            self_metrics.LEFT_OUT: lambda: self.box.left_out,
        }
        own_metrics = SelfMetrics(
            *(accounting.account, counts, lambda: self._spool.size_bytes),
            temporality=temporality,
            start_ns=mapping.start_ns,
        )
        self.delivery = Delivery(
            accounting,
            transports,
            self._spool,
            own_metrics.attempted,
            self._start_leftovers,
            kept=self.box if self.box.enabled else None,
        )
        self._readings = Readings(self._window_queue.table, delta=mapping.delta)
        self.metric_requests = requests = MetricRequests(
            *(mapping, own_metrics.waiting, encoded_resource, self._put, self._lost),
            readings=self._readings,
            self_metrics=own_metrics,
            attributes=self._window_queue.table.attributes(),
        )
        self._event_requests = EventRequests(self._put, self._lost, encoded_resource)
        self._range_requests = RangeRequests(self._put, self._lost, encoded_resource)
        self._window_source = Source("metrics", "windows", self._window_queue.queue, self._add_windows, requests.flush)
        self._config: dict[str, Any] = {}
        events = Source("logs", "events", self._event_queue, self._add_events, self._event_requests.flush)
        sources = [self._window_source, events]
        if ranges is not None:
            sources.append(Source("traces", "ranges", ranges.queue, self._add_ranges, self._range_requests.flush))
            accounting.add_folds(ranges)
        for source in sources:
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
            [requests, self._event_requests, self._range_requests],
            readings=self._readings,
            ranges=ranges,
        )
        self._metric_round = MetricRound(
            self.encoder,
            self._callbacks,
            queue=self._window_queue,
            source=self._window_source,
            requests=requests,
            waits=self._readings.waits,
            occasion=Occasion(settings.idle_interval, self._items_lost, self._readings.waits),
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
        payload = event.config if isinstance(event, monitel.RunConfig) else event.data
        self._queue_event(event, event.step, payload)

    def take_record(self, record: LoggedRecord) -> None:
        """Queue one record of Python's ``logging``, in the thread that logs it."""
        self._queue_event(record, None, {"": record.body, **record.attributes})

    def _queue_event(self, event: monitel.Event | LoggedRecord, step: int | None, payload: Any) -> None:
        if "logs" not in self.settings.off:
            inside = None if self._ranges is None else self._ranges.innermost()
            logged = LoggedEvent(event, step, get_current(), inside, time.time_ns())
            self._event_queue.put(self._recording.emitted(logged), payload)

    def wake(self) -> None:
        """Start the next round of the encoder now. Takes no lock."""
        self.encoder.wake()

    def force_flush(self, timeout: float) -> bool:
        """Encode and deliver all items that are queued now.

        Returns:
            True if within ``timeout`` seconds all of them were acknowledged, or are on disk because the signal is
            offline, and if no item was lost so far.
        """
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
            sources=self.encoder.sources,
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
        self._spool.abandon()
        self.box.abandon()

    def _add_windows(self, entries: list[Any]) -> None:
        self.metric_requests.add(entries)
        self._recording.encoded_windows(entries)

    def _add_events(self, taken: list[LoggedEvent]) -> None:
        for logged in taken:
            self._event_requests.add(logged)
            self._recording.event_done(logged)

    def _lost(self, signal: str, reason: str, items: int) -> None:
        self.accounting.drop(signal, Stage.ENCODING, reason, items)

    def _add_ranges(self, taken: list[Any]) -> None:
        assert self._ranges is not None  # because only then there is this source
        for ended in taken:
            self._ranges.extend(ended)
            self._range_requests.add(ended)

    def _encode_metrics(self, last: bool) -> None:
        """Encode windows and the metrics of the process; in the encoder's thread."""
        self._each_round()
        if self._ranges is not None:
            self._ranges.prepare(last=last)
        self._metric_round.run(last=last)
        self.delivery.keep_up()

    def _items_lost(self) -> int:
        return sum(each.lost for each in self.accounting.account().values())

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
