"""The parts of a pipeline that belong to one process: its record, what it records, and the senders."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

import monitel
from monitel import registry, window_sinks
from monitel.blackbox.box import Box
from monitel.blackbox.record import READING
from monitel.os_threads import Condition, RLock, start_thread
from monitel.run_events import end_if_due
from monitel_otel.scope import SCOPE
from monitel_otlp.export.account import Account
from monitel_otlp.export.activity import describe
from monitel_otlp.export.application import ApplicationThread, Job
from monitel_otlp.export.leftovers import Leftovers
from monitel_otlp.export.recorder import Recorder
from monitel_otlp.export.requests import LogsEncoder, MetricsEncoder, ReadingsEncoder, SpansEncoder
from monitel_otlp.export.sender import Outbox, Sender
from monitel_otlp.export.totals import Definitions, Totals
from monitel_otlp.export.windows import Mapping, WindowPoints
from monitel_otlp.config.run_folder import VARIABLE as RUN_FOLDER
from monitel_otlp.messages.attributes import encode_resource, plain_attributes
from monitel_otlp.messages.request import SIGNALS
from monitel_otlp.metrics.occasion import Occasion
from monitel_otlp.metrics.readings import Readings
from monitel_otlp.metrics.self_metrics import SelfMetrics, write_queue_size
from monitel_otlp.metrics.series import SERIES_LIMIT, SeriesTable
from monitel_otlp.metrics.temporality import temporality_preference
from monitel_otlp.threads.worker import Pace
from monitel_otlp.traces.mapping import RangeMapping
from monitel_otlp.transport.factory import make_transports
from monitel_otlp.values.latest import flat, latest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping as MappingType
    from pathlib import Path

    from opentelemetry.sdk.resources import Resource

    from monitel_otlp.config.settings import Settings
    from monitel_otlp.metrics.series import Series
    from monitel_otlp.traces.span_queue import Identified, QueuedSpans
    from monitel_otlp.values.latest import Latest

_log = logging.getLogger("monitel.otlp")

SPOOL_BYTES = 1 << 30
MEMORY_BYTES = 64 << 20
DISK_AFTER_S = 60.0
SNAPSHOT_S = 1.0
#: Stats whose totals are in each snapshot: those of the summary of ``monitel run``.
REPORTED = STEP_TIME, STAGE_TIME, DEVICE_STAGE_TIME = (
    *("training.step.duration", "training.stage.duration", "training.stage.device.duration"),
)

_BESIDE = {"metrics": "readings", "traces": "steps"}  # journals of what the pipeline makes itself
_TICK = 0.05  # seconds between two checks of a flush
_COLLECT = 1.0  # seconds that a caller waits for another thread that reads counters and ranges
# Shares of the time to shut down that have passed when each phase ends.
_HANDLED, _SENT, _STORED = 0.35, 0.7, 0.95
_LEAST_FOR_DISK = 0.2  # seconds, even if there is no time to shut down

_newest_ns: dict[Any, int] = {}  # time of the newest point of each resource in this process


class Engine:
    """Records windows, events and ranges from any thread, and delivers them in background threads.

    Args:
        settings: Endpoints, intervals and the spool.
        point_attributes: Added to every point, e.g. the rank.
        resource: The resource of all requests.
        ranges: The ranges that become spans; None without them.
        series_limit: Attribute sets per metric name. Further sets become one series.
        leftovers: Collect what killed processes have left, and deliver the spools of earlier processes for the same
            endpoints.
        each_round: Called in each round.
    """

    def __init__(
        self,
        settings: Settings,
        point_attributes: MappingType[str, str | int],
        resource: Resource,
        ranges: QueuedSpans | None,
        *,
        series_limit: int = SERIES_LIMIT,
        leftovers: bool = False,
        each_round: Callable[[], object] = lambda: None,
    ) -> None:
        self.settings = settings
        self._each_round = each_round
        self._ranges = ranges
        self._resource_key = resource
        self._config: dict[str, Any] = {}
        temporality, now_ns = temporality_preference(), time.time_ns()
        self.mapping = Mapping(temporality, now_ns, settings.distributions, _newest_ns.get(resource, 0))
        encoded = encode_resource(resource)
        off = [name for signal in settings.off for name in (signal, _BESIDE.get(signal, signal))]
        identity = {
            "resource": encoded,
            "attributes": plain_attributes(resource.attributes),
            "scope": tuple(SCOPE),
            "mapping": tuple(self.mapping),
            "run": os.environ.get(RUN_FOLDER, ""),
            "off": sorted(set(off)),
        }
        self.box = Box(
            settings.spool_root,
            settings.box.root if settings.box.enabled else None,
            identity,
            interval_s=min(SNAPSHOT_S, settings.interval),
            box_bytes=settings.box.size,
            memory_bytes=MEMORY_BYTES,
            disk_bytes=SPOOL_BYTES,
            disk_after_s=DISK_AFTER_S,
            mark=settings.mark,
        )
        self._table = SeriesTable(series_limit, point_attributes)
        self.recorder = Recorder(self.box, self._table, ranges, RangeMapping())
        self._own = SelfMetrics(
            self.account,
            {
                "monitel.stat.nonfinite": lambda: self.recorder.nonfinite,
                "monitel.stat.discarded": lambda: self.recorder.discarded,
                "monitel.log.coalesced": lambda: self._points.coalesced,
                "monitel.black_box.left_out": lambda: self.box.left_out,
            },
            lambda: self.box.disk_size,
            temporality=temporality,
            start_ns=now_ns,
        )
        self._readings = Readings(self._table, delta=self.mapping.delta)
        self._occasion = Occasion(settings.idle_interval, self._items_lost, self._readings.waits)
        self._points = WindowPoints(self.mapping)
        self._settled = Condition()
        self._collecting = RLock()
        self._next_round = time.monotonic() + settings.interval
        self._windows_seen = 0
        self.application = ApplicationThread()
        self._round_job: Job | None = None
        self._make_senders(encoded)
        self._leftovers: Leftovers | None = None
        if leftovers:
            self._leftovers = Leftovers(settings, self.box.name, partial(make_transports, settings))
        self.box.sources.update(
            doing=lambda: describe(ranges),
            counters=self._readings.plain,
            readings=lambda: self.box.journals["readings"].next,
            totals=lambda: self.recorder.reported(frozenset(REPORTED)),
            numbers=self.recorder.last_numbers,
        )
        self.box.open_windows = self.recorder.open_windows
        self.box.flushes.append(self._flush)
        self.box.start()
        self.application.start()
        for sender in self._senders.values():
            sender.start()
        window_sinks.add(self.window)
        if self._leftovers is not None:
            self._leftovers.collect()

    @property
    def spool_dir(self) -> Path:
        """The spool folder of this process. It is made when it is needed."""
        return self.settings.spool_root / self.box.name

    @property
    def series(self) -> list[Series]:
        """All series of windows, logged numbers and counters so far."""
        return self._table.all()

    @property
    def stored(self) -> bool:
        """True if something is on disk, even if it is no item."""
        return self.box.disk_size > 0

    def latest(self) -> Latest:
        """Return the last values of this process. It touches no file and takes no lock."""
        return latest(self.series, self.recorder.numbers.copy(), self._config)

    def window(self, definition: monitel.StatDefinition, window: monitel.Window, content: bytes) -> None:
        """Record a window that closes; a sink of windows."""
        self.recorder.window(definition, window, content)

    def take(self, event: monitel.Event) -> None:
        """Record an event other than that of a window, in the thread that logs it."""
        if isinstance(event, monitel.LoggedNumbers):
            self.recorder.numbers_of(event)
        elif isinstance(event, monitel.RunConfig):
            self._config = {**self._config, **dict(flat(event.config))}
        self.recorder.event(event)

    def innermost(self) -> Identified | None:
        """Return the innermost open range that becomes a span; None if the application has opened a span inside it."""
        return None if self._ranges is None else self._ranges.innermost()

    def wake(self) -> None:
        """Take what was collected into the record soon. Takes no lock."""
        self.box.wake()

    def account(self) -> dict[str, Account]:
        """Return the account of each signal."""
        found = {}
        for signal in SIGNALS:
            journal = self.box.journals[signal]
            with journal.lock:
                now = journal.account()
                queued = dropped = folded = folding = 0
                if signal == "traces" and self._ranges is not None:
                    queued, dropped, folding = self._ranges.queued, self._ranges.dropped, self._ranges.folding()
                    folded = self.recorder.folded
            reasons = Counter(now.dropped)
            reasons["queue_full"] += dropped
            found[signal] = Account(
                recorded=now.recorded + queued + dropped + folding + folded,
                delivered=now.delivered,
                on_disk=now.on_disk,
                folded=folded,
                waiting=now.waiting + queued + folding,
                dropped={reason: items for reason, items in reasons.items() if items},
                synthetic=self.box.journals["steps"].delivered if signal == "traces" else 0,
            )
        return found

    # ---- rounds

    def _flush(self) -> None:
        """Take what was collected into the record; in the writer of the box, before each snapshot."""
        if not self._collecting.acquire(timeout=_COLLECT):
            return
        try:
            self.recorder.flush_ranges()
            if time.monotonic() >= self._next_round:
                self._round(asked=False)
        finally:
            self._collecting.release()

    def _round(self, *, asked: bool) -> None:
        """Close expired windows, read the process's counters if they are to be sent, and wake the senders."""
        self._next_round = time.monotonic() + self.settings.interval
        self._each_round()
        closed = registry.close_expired()
        job = self._round_job
        if job is None or job.is_over:
            self._round_job = self.application.submit(Job("an event handler", partial(self._call_handlers, closed)))
        else:
            self._late += closed
        self._read(asked=asked)
        for sender in self._senders.values():
            sender.wake()
