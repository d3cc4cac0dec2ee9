"""The parts of a pipeline that belong to one process: its record, what it records, and the senders."""

from __future__ import annotations

import logging
import marshal
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from monitel.blackbox.box import Box
from monitel.blackbox.journal import Account
from monitel.blackbox.record import READING, REJECTED, SIGNALS
from monitel.blackbox.silent import give_way
from monitel.process.failures import warn_once
from monitel.process.os_threads import Event, RLock
from monitel.process.worker import yield_gil
from monitel.run_events import end_if_due
from monitel.stats import before_flush, registry
from monitel_otlp.config.settings import Settings, has_delta_temporality
from monitel_otlp.export.application_thread import ApplicationThread
from monitel_otlp.export.collector import deliver_leftovers
from monitel_otlp.export.recorder import ExportRecorder, MetricSeries
from monitel_otlp.export.sender import JOURNALS_OF, Rejected, Sender, outboxes, warn_rejected
from monitel_otlp.messages.request import identity_of
from monitel_otlp.metrics.points import MILLISECOND_NS, RisingSums
from monitel_otlp.metrics.readings import (
    COALESCED,
    DISCARDED,
    NONFINITE,
    OwnMetrics,
    Readings,
)
from monitel_otlp.metrics.totals import Totals, WindowMapping
from monitel_otlp.transport import make_transports
from monitel_run.folder import VARIABLE as RUN_FOLDER

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from monitel.runs.ledger import RunLedger
    from monitel_otlp.traces.span_queue import QueuedSpans

_log = logging.getLogger("monitel.otlp")

_PATIENCE = 0.5  # seconds that a new engine is waited for
_APPLICATION = 1.5  # seconds that a flush waits for code of the application
_MOST_LATE = 1000  # rounds whose windows wait for event handlers
# Shares of the time to shut down that have passed when each phase ends.
_HANDLED, _SENT, STORED = 0.35, 0.7, 0.85
_LEAST = 0.2  # seconds, even if there is no time to shut down

_newest_ns: dict[Any, int] = {}  # time after the newest point of each resource in this process; 0 without one


class Engine:
    """Records windows, events and ranges from any thread, and delivers them in background threads.

    It collects what killed processes have left, and delivers it; with ``leftovers`` also what earlier processes have
    left for the same endpoints.
    """

    def __init__(
        self,
        settings: Settings,
        point_attributes: Mapping[str, str | int],
        resource: Resource,
        ranges: QueuedSpans | None,
        *,
        series_limit: int,
        leftovers: bool,
        each_round: Sequence[Callable[[], object]],
        ledger: RunLedger | None,
    ) -> None:
        self.settings = settings
        self._each_round = each_round
        self._ranges = ranges
        self._resource = resource
        delta, now_ns = has_delta_temporality(), time.time_ns()
        self.mapping = WindowMapping(delta, now_ns, settings.distributions, _newest_ns.get(resource, 0))
        identity = {
            **identity_of(resource),
            "mapping": tuple(self.mapping),
            "run": os.environ.get(RUN_FOLDER, ""),
            "store": "" if ledger is None else str(ledger.store),
            "off": sorted(name for signal in settings.off for name in JOURNALS_OF[signal]),
        }
        give_way()
        self.box = Box(
            settings.spool_root,
            settings.box.root,
            identity,
            interval_s=settings.interval,
            box_bytes=settings.box.size,
            mark=settings.mark,
        )
        table = MetricSeries(series_limit, point_attributes)
        self.recorder = ExportRecorder(self.box, table, ranges)
        if ledger is not None:
            ledger.draw(self.recorder)
        self._own = OwnMetrics(point_attributes, delta=delta, start_ns=now_ns)
        self._readings = Readings(table, delta=delta, idle_interval=settings.idle_interval)
        self._totals = Totals(self.recorder.definitions.__getitem__, self.mapping)
        self.box.journals["metrics"].fold = self._totals
        self._outboxes = outboxes(self.box.journals, identity["resource"], self.mapping)
        for outbox in self._outboxes["metrics"]:
            outbox.write_queue_size = self._write_queue_size
        self._collecting = RLock()
        self._is_over = False
        self._next_round = time.monotonic() + settings.interval
        self._windows_seen = self._changed_reading = 0  # numbers of items
        self.application = ApplicationThread()
        self._late: deque[Any] = deque(maxlen=_MOST_LATE)  # closed windows that event handlers have not seen
        self._accepted, self._stopped = Event(), Event()  # a request, by the backend; what delivers leftovers
        self._senders = self._make_senders()
        self.box.sources["pending"] = self._pending
        self.box.flushes.insert(0, self._flush)
        self.box.start()
        self.application.start()
        for sender in self._senders.values():
            sender.worker.start()
        deliver_leftovers(settings, self.box.name, self._accepted, self._stopped, earlier=leftovers)

    def _make_senders(self) -> dict[str, Sender]:
        """Make a sender for each signal with an endpoint. What is not off goes to the spool folder without one."""
        found = {}
        transports = make_transports(self.settings)
        for signal in SIGNALS:
            if signal in transports:
                found[signal] = Sender(
                    self._outboxes[signal],
                    transports[signal],
                    accepted=self._accepted,
                    note_position=self.box.note_position,
                    set_aside=self._set_aside,
                    interval=self.settings.interval,
                )
            elif signal not in self.settings.off:
                for outbox in self._outboxes[signal]:
                    outbox.journal.reader = "disk"
        return found

    @property
    def spool_dir(self) -> Path:
        return self.settings.spool_root / self.box.name

    @property
    def left(self) -> Path:
        """The folder of what is left at the end: the box, if the spool folder could not be made. No disk is asked."""
        box = self.box.folder
        return box.path if box is not None and self.box.disk is None and box.path.exists() else self.spool_dir

    @property
    def stored(self) -> bool:
        """True if something is on disk, even if it is not an item."""
        return any(each.is_on_disk for each in self.box.journals.values())

    def account(self) -> dict[str, Account]:
        journals = self.box.journals
        found = {signal: journals[signal].account() for signal in SIGNALS}
        if (ranges := self._ranges) is not None:
            with journals["traces"].lock:  # a range is queued, or in the journal
                now, queued = journals["traces"].account(), ranges.waiting
                left = queued if self._is_over else 0  # could not be taken
                dropped = Counter(now.dropped) + Counter(queue_full=ranges.dropped, exit=left)
                recorded = now.recorded + queued + ranges.folded + ranges.dropped
                waiting, synthetic = now.waiting + queued - left, journals["steps"].account().delivered
                found["traces"] = Account(
                    *(recorded, now.delivered, now.on_disk, ranges.folded, waiting),
                    dropped=MappingProxyType(dict(dropped)),
                    synthetic=synthetic,
                )
        return found

    # ---- rounds

    def _flush(self) -> None:
        """Take what was collected into the record; in the writer of the box, before each snapshot."""
        if not self._collecting.acquire(blocking=False):
            return  # another thread does it
        try:
            self._flush_ranges()
            if time.monotonic() >= self._next_round:
                self._round(asked=False)
        finally:
            self._collecting.release()

    def _flush_ranges(self, *, last: bool = False) -> None:
        if self._ranges is not None:
            journals = self.box.journals
            self._ranges.flush(journals["traces"], journals["steps"], last=last, begin=self.recorder.begin)

    def _round(self, *, asked: bool) -> None:
        """Close expired windows, append the process's counters if they are to be sent, and wake the senders."""
        self._next_round = time.monotonic() + self.settings.interval
        for each in self._each_round:
            each()
        self._take(expired=True, pause=yield_gil)
        self._call_application(0.0)
        self._read(asked=asked)
        for sender in self._senders.values():
            sender.worker.wake()

    def _take(self, **how: Any) -> None:
        taken = registry.TakenWindows(**how)
        taken.take()
        if taken:  # while a handler hangs, which is logged, they queue up
            self._late.append(taken)

    def _call_application(self, timeout: float) -> None:
        """Run code of the application, which may hang, in its thread, and wait for so many seconds at most.

        The windows are recorded already. What still runs from the last time is not begun again.
        """
        self.application.call("a source of events", before_flush.run)
        self.application.call("an event handler, while windows were closed,", self._call_handlers)
        self.application.wait(timeout)  # without time, too: a thread that hangs is replaced

    def _call_handlers(self) -> None:
        while self._late:
            self._late.popleft().log()

    def _read(self, *, asked: bool) -> None:
        journal, windows = self.box.journals["readings"], self.box.journals["metrics"].next
        accounts = self.account()
        if not (self._readings.is_due(_lost(accounts)) or asked or windows > self._windows_seen):
            return
        self._windows_seen = windows
        for content, points, changed in self._readings.messages(partial(self._write_own, accounts)):
            # A process that hangs fills no disk: what has not changed is recorded only if the backend takes it.
            if changed or journal.is_empty:
                number = journal.append(READING, marshal.dumps((content, points, windows), 2))
                self._changed_reading = number if changed else self._changed_reading

    def _pending(self) -> tuple[int, list[tuple[bytes, int, int]]]:
        following = self.box.journals["readings"].next  # first: there may be a newer one while these are made
        windows = self.box.journals["metrics"].next
        return following, [(*each, windows) for each in self._readings.pending()]

    def _write_own(self, accounts: dict[str, Account], sums: RisingSums) -> None:
        recorder = self.recorder
        totals = {
            NONFINITE: recorder.nonfinite,
            DISCARDED: recorder.discarded,
            COALESCED: self._totals.coalesced,
        }
        attempts = {signal: sender.seconds for signal, sender in self._senders.items()}
        spool_bytes = self.box.bytes_on_disk
        self._own.write(sums, accounts, totals=totals, spool_bytes=spool_bytes, attempts=attempts)

    def _write_queue_size(self, metrics: Any) -> None:
        self._own.write_queue_size(metrics, sum(each.waiting for each in self.account().values()))

    # ---- flush and end

    def force_flush(self, timeout: float) -> bool:
        """Deliver all items that are recorded now; return True if that was possible, and no item was lost so far."""
        deadline = time.monotonic() + timeout
        self._call_application(min(_APPLICATION, timeout))
        return self._collect(deadline, last=False) and self._deliver(deadline) and not _lost(self.account())

    def _collect(self, deadline: float, *, last: bool) -> bool:
        if not self._collecting.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        try:
            for _ in range(2):  # a step is over when it is found so twice
                self._flush_ranges(last=last)
            self._round(asked=True)
        finally:
            self._collecting.release()
        return True

    def _deliver(self, deadline: float) -> bool:
        """Wait until all items that are recorded now are settled, or on disk if their signal is offline."""
        ends = {name: journal.next for name, journal in self.box.journals.items()}
        for sender in self._senders.values():
            sender.worker.wake()
        if not all(sender.flush(ends, deadline) for sender in self._senders.values()):
            return False
        return self.box.spill(max(0.0, deadline - time.monotonic()))  # what was rejected is to be on the disk, too

    def shutdown(self, timeout: float, *, before: Callable[[], object]) -> bool:
        """End within so many seconds: items that are not delivered by then are in the spool.

        ``before`` is called when everything is recorded: later items go nowhere. Returns True if nothing is lost, or
        left on the disk although there is an endpoint.
        """
        begin = time.monotonic()
        phases: tuple[Callable[[], object], ...] = (
            lambda: self._take_all(_HANDLED * timeout),
            self._take,  # samples that other threads have added meanwhile
            before,
            self.recorder.take_rest,
            lambda: self._call_application(_LEAST if self._late else 0.0),
            lambda: self._collect(begin + max(_LEAST, _SENT * timeout), last=True),
            lambda: self._send_rest(begin + _SENT * timeout),
            self.application.stop,
            lambda: self._end_box(max(_LEAST, begin + STORED * timeout - time.monotonic())),
        )
        for phase in phases:
            try:
                phase()
            except Exception:
                _log.exception("a part of the shutdown of telemetry failed; the others follow")
        return not any(
            each.lost or (each.on_disk and signal in self.settings.endpoints) for signal, each in self.account().items()
        )

    def _take_all(self, timeout: float) -> None:
        """Take all open windows into the record, and call code of the application, for so many seconds at most."""
        self._leave_leftovers()
        self.recorder.define_stats()  # with one write, not one for each window
        taken = registry.TakenWindows()
        taken.take()  # all of them, before anything of the application can be slow
        self.application.call("a device, asked for values of samples,", taken.fetch)
        self._late.append(taken)
        self.application.call("the end of the run", end_if_due)
        self._call_application(timeout)

    def _leave_leftovers(self) -> None:
        self._stopped.set()
        self._accepted.set()

    def _send_rest(self, deadline: float) -> None:
        self._next_round = math.inf
        if self.box.room.memory:  # what the disk does not take, as it is full or hangs, is sent all the same
            self.box.snapshot()
            for journal in self.box.journals.values():
                journal.stop_waiting(_LEAST)
        senders = list(self._senders.values())
        for sender in senders:
            sender.finish(deadline)
        for sender in senders:
            sender.finished.wait(max(0.0, deadline - time.monotonic()))
            sender.stop()

    def _end_box(self, timeout: float) -> None:
        readings = self.box.journals["readings"]
        if readings.settled >= self._changed_reading:  # what is left differs from nothing that was sent
            readings.settle(readings.next - 1)
        self.box.close(timeout)
        self._is_over = True
        windows = [series.latest.end_ns for series in self.recorder.series if series.latest is not None]
        numbers = [time_ns for _, time_ns, _ in self.recorder.numbers.copy().values()]  # on the disk, perhaps
        newest_ns = max([self.mapping.after_ns, *windows, *numbers, self._totals.newest_ns])
        _newest_ns[self._resource] = newest_ns + MILLISECOND_NS if newest_ns else 0

    def discard(self) -> bool:
        """End without a trace, if nothing has been sent; return False if something was, and the engine continues."""
        with ExitStack() as held:
            for sender in self._senders.values():
                if not sender.sending.acquire(timeout=_PATIENCE):
                    return False
                held.callback(sender.sending.release)
            if any(each.attempts for each in self._senders.values()):
                return False
            for sender in self._senders.values():
                sender.stop()
        self._leave_leftovers()
        self._next_round = math.inf
        self.application.stop()
        for journal in self.box.journals.values():
            journal.reader = "nobody"
            journal.settle(journal.next - 1)  # what is on the disk without an endpoint, too
        self.box.close(_PATIENCE)
        return True

    def _set_aside(self, request: Rejected) -> None:
        journal, place = self.box.journals[REJECTED], ""
        if Rejected.has_room(journal):
            request.append(journal)
            place = f", and goes to {self.spool_dir}"
        else:
            message = "%s is full: further rejected requests are only counted"
            warn_once(_log, message, self.spool_dir, key=self.spool_dir)
        warn_rejected(request.reason, place)


def _lost(accounts: dict[str, Account]) -> int:
    return sum(each.lost for each in accounts.values())
