"""Readings: what a process reads of itself in a round: its counters, wait counters, step, goodput, and its pipeline."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import ChainMap, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

import monitel
from monitel import clock
from monitel.attributes import typed_items
from monitel.counter import first_of_names
from monitel.process.worker import Pace
from monitel.training.counters import GOODPUT, NAME, goodput
from monitel.wait_counter import began_ns, foreign_waits, own_waits, wait_keys, waits_in_flight
from monitel_otel.names import NAMES, wait_metrics
from monitel_otlp.messages.attributes import key_values
from monitel_otlp.messages.request import write_scope
from monitel_otlp.metrics.points import CUMULATIVE, DELTA, MILLISECOND_NS, SENT, Points, RisingSums, Sent

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.blackbox.journal import Account
    from monitel_otlp.export.recorder import MetricSeries
    from monitel_otlp.metrics.points import Metric

READINGS_PER_REQUEST = 500  # a wait counter takes 0.5 kB; a larger message would occupy the GIL for too long

#: Name, unit and description of each metric that is not a counter.
STEP = "training.step", "{step}", "Step of the process"
QUEUE_SIZE = "monitel.queue.size", "{item}", "Items that wait in memory"
_SPOOL = "monitel.spool.size", "By", "Bytes in the spool"
_DURATION = "monitel.export.duration", "s", "Duration of one delivery attempt"

EXPORTED = "monitel.exporter.item.exported", "{item}", "Items that a backend acknowledged"
DROPPED = "monitel.exporter.item.dropped", "{item}", "Lost items, by reason"
NONFINITE = (
    *("monitel.stat.nonfinite", "{window}"),
    "Windows whose sum was left out: not finite, or a fall of a monotonic sum",
)
DISCARDED = "monitel.stat.discarded", "{sample}", "Samples discarded because of max_samples"
COALESCED = (
    *("monitel.log.coalesced", "{value}"),
    "Logged numbers without a point, because a later one has the same millisecond",
)
_SIZE_KEY = QUEUE_SIZE[0], 0
_WITH_ZERO = {NONFINITE, DISCARDED}  # the other counters have a series once there is something to count
NAMES.reserve(
    *(each[0] for each in (QUEUE_SIZE, _DURATION, _SPOOL, EXPORTED, DROPPED, NONFINITE, DISCARDED, COALESCED))
)

_BOUNDS = (0.01, 0.1, 1.0)  # seconds; each bound is a series in every process of a job
_LONG_NS = 5_000_000_000  # a wait that lasts longer is sent soon


class _Sum(NamedTuple):
    """The series of one or more counters, as its points need it."""

    metric: Metric
    attributes: list[KeyValue]
    key: Hashable  # that identifies it in the process


class Readings:
    """Decides in which rounds the process is read, and writes what is read, in one or more messages.

    A round with windows is one of them. Without windows the process is read once in so many seconds, and soon if:

    * an item was lost;
    * a wait has been in flight for five seconds, or such a wait has ended;
    * a counter, a wait counter or the step is there for the first time.

    All points of a round have the same time, so that the activities of ``training.time`` add up. Use it in one thread
    at a time.
    """

    def __init__(self, table: MetricSeries, *, delta: bool, idle_interval: float) -> None:
        self._table = table
        self._attributes = key_values(table.attributes)
        self._delta = delta
        self._idle_ns = round(idle_interval * 1e9)
        self._due_ns = 0  # monotonic time
        self._sent: Hashable = None  # state of the process when it was last read
        self._now: Hashable = None
        self._sums = RisingSums(delta=delta)
        self._pace = Pace()
        self._of_counter: dict[monitel.Counter, _Sum] = {}
        self._maxima = monitel.WaitMaxima()
        self._in_flight: dict[str, int] = {}  # by foreign key: waits that had ended, if another one was active
        self._maximum: dict[str, float] = {}  # by key: the longest wait since the last request
        self._seen_waits: dict[str, tuple[monitel.WaitReading, int]] = {}  # with the start of the active ones
        self._last_step: int | None = None

    def is_due(self, lost: int) -> bool:
        """Return True if the process is to be read without windows, too. Call it once in each round.

        ``lost`` is the number of items that were lost so far.
        """
        names = len(first_of_names()), len(wait_keys()), monitel.get_step() is not None
        self._now = lost, self._lasting(clock.monotonic_ns() - _LONG_NS), names
        return self._now != self._sent or clock.monotonic_ns() >= self._due_ns

    def messages(self, write_own: Callable[[RisingSums], object]) -> Iterator[tuple[bytes, int, bool]]:
        """Read the process now, at least a millisecond after the last time.

        It yields serialized ``ResourceMetrics`` without a resource, each with its number of points, and True if a
        reading in it differs from that of the last round. ``write_own`` writes into the first one.
        """
        self._sent, self._due_ns = self._now, clock.monotonic_ns() + self._idle_ns
        last_ns = self._sums.now_ns
        self._sums.unseen_ns, self._sums.now_ns = last_ns, max(time.time_ns(), last_ns + MILLISECOND_NS)
        return _encode(self._sums, self._read(write_own))

    def pending(self) -> list[tuple[bytes, int]]:
        """Return the messages of a last round now, of the counters that have changed; nothing is noted."""
        sums = RisingSums(delta=self._delta, sent=ChainMap({}, SENT))
        sums.unseen_ns, sums.now_ns = self._sums.now_ns, time.time_ns()
        written = (
            sums.write(metric, attributes, key, total, start_ns)
            for (metric, attributes, key), total, start_ns in self._totals()
            if (sent := SENT.get((key, start_ns))) is None or sent.total != total
        )
        return [(content, points) for content, points, _ in _encode(sums, written)]

    def _read(self, write_own: Callable[[RisingSums], object]) -> Iterator[bool]:
        """Write one reading after the other into the current message, and yield True for each that differs."""
        write_own(self._sums)
        yield False
        activities = 0  # whose time has changed
        for (metric, attributes, key), total, start_ns in self._totals():
            changed = self._sums.write(metric, attributes, key, total, start_ns)
            is_time = metric[0] == NAME
            activities += changed and is_time
            yield changed and not is_time
        # Time that passes in one activity is stored with the next change, so that a process that hangs fills no disk. A
        # delta has to be stored.
        yield activities > (0 if self._delta else 1)
        for each, reading in self._read_waits():
            self._pace.pause()
            yield self._write_wait(each, reading)
        last, self._last_step = self._last_step, monitel.get_step()
        for metric, value in ((STEP, self._last_step), (GOODPUT, goodput())):
            if value is not None:
                self._sums.points.add_gauge(self._sums.now_ns, self._attributes, metric, value)
        yield self._last_step not in {None, last}

    def _totals(self) -> Iterable[tuple[_Sum, float, int]]:
        """Return total and start of each series; counters beyond the limit of series share one."""
        found: dict[Hashable, tuple[_Sum, float, int]] = {}
        for counter, total, start_ns in monitel.counters():
            self._pace.pause()
            known = self._of_counter.get(counter) or self._define(counter)
            _, others, began_ns = found.get(known.key, (known, 0, start_ns))
            found[known.key] = known, others + total, min(began_ns, start_ns)
        return found.values()

    def _define(self, counter: monitel.Counter) -> _Sum:
        series = self._table.of_counter(counter)
        definition, attributes = series.definition, series.plain_attributes
        metric = series.name, definition.unit, definition.description
        found = _Sum(metric, key_values(attributes), (series.name, typed_items(attributes)))
        self._of_counter[counter] = found
        return found

    # ---- wait counters

    def _lasting(self, since_ns: int) -> frozenset[Hashable]:
        """Return an identity of each wait that lasts since a time of monitel's monotonic clock. Takes no lock.

        Another library provides no times: there a wait is long if it is in flight at two calls, and none of its key has
        ended in between.
        """
        before = self._in_flight
        self._in_flight = {key: reading.count for key, reading in foreign_waits().items() if reading.active}
        own = (wait for wait in waits_in_flight() if wait[2] <= since_ns)
        return frozenset((*own, *(each for each in self._in_flight.items() if before.get(each[0]) == each[1])))

    def _read_waits(self) -> Iterator[tuple[str, monitel.WaitReading]]:
        """Yield the current reading of each key; those that the process counts itself first."""
        self._maximum |= self._maxima.read()
        own = set()
        for key, reading in own_waits():
            own.add(key)
            yield key, reading
        yield from ((key, reading) for key, reading in foreign_waits().items() if key not in own)

    def _write_wait(self, key: str, reading: monitel.WaitReading) -> bool:
        seen, since_ns = self._seen_waits.get(key, (None, 0))
        restarted = seen is not None and (reading.count < seen.count or reading.total < seen.total)
        changed = seen is None or reading.active != seen.active
        sums, start_ns, attributes = self._sums, reading.start_ns or began_ns(), self._attributes
        waited, ended, active, longest = wait_metrics(key)
        changed |= sums.write(waited, attributes, waited, float(reading.total), start_ns, restarted=restarted)
        changed |= sums.write(ended, attributes, ended, reading.count, start_ns, restarted=restarted)
        since_ns = since_ns or min(start_ns, sums.now_ns - MILLISECOND_NS)  # the same after a restart of the sums
        sums.points.add_level(sums.now_ns, attributes, active, reading.active, since_ns)
        seconds = self._maximum.pop(key, None)
        if seconds is not None:
            sums.points.add_gauge(sums.now_ns, attributes, longest, seconds)
        self._seen_waits[key] = reading, since_ns
        return changed or seconds is not None


def _encode(sums: RisingSums, readings: Iterator[bool]) -> Iterator[tuple[bytes, int, bool]]:
    """Yield messages of readings, which write their points into the current one, as :meth:`Readings.messages` does."""
    while True:
        message = ResourceMetrics()
        scope = message.scope_metrics.add()
        write_scope(scope)
        points = sums.points = Points(scope.metrics)
        found = [*islice(readings, READINGS_PER_REQUEST)]
        if not found:
            return
        if points.number:
            yield message.SerializeToString(), points.number, any(found)


@dataclass
class _Durations:
    start_ns: int
    buckets: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))
    sum: float = 0.0


class OwnMetrics:
    """Writes the metrics of the pipeline itself, modelled on OpenTelemetry's ``otel.sdk.*`` metrics."""

    def __init__(self, attributes: Mapping[str, str | int], *, delta: bool, start_ns: int) -> None:
        self._own = attributes
        self._attributes = key_values(attributes)
        self._delta = delta
        self._start_ns = start_ns
        self._durations: dict[str, _Durations] = {}

    def write_queue_size(self, metrics: Any, waiting: int) -> None:
        """Add the number of waiting items to a list of metrics, after that of an earlier pipeline."""
        last = SENT.get(_SIZE_KEY)
        now_ns = max(time.time_ns(), 0 if last is None else last.time_ns + MILLISECOND_NS)
        SENT[_SIZE_KEY] = Sent(self._start_ns, now_ns, waiting)
        Points(metrics).add_level(now_ns, self._attributes, QUEUE_SIZE, waiting, self._start_ns)

    def write(
        self,
        sums: RisingSums,
        accounts: Mapping[str, Account],
        *,
        totals: Mapping[Metric, int],
        spool_bytes: int,
        attempts: Mapping[str, deque[float]],
    ) -> None:
        """Write the other metrics into a reading; the seconds of attempts are taken out of ``attempts``."""
        points, now_ns = sums.points, sums.now_ns
        rising: list[tuple[Metric, dict[str, str], int]] = [
            (metric, {}, total) for metric, total in totals.items() if total or metric in _WITH_ZERO
        ]
        for signal, account in accounts.items():
            own = {"signal": signal}
            rising += [(EXPORTED, own, account.delivered)] * bool(account.delivered)
            rising += [(DROPPED, {**own, "error.type": reason}, items) for reason, items in account.dropped.items()]
        for metric, attributes, value in rising:
            key = (metric[0], *attributes.items())
            sums.write(metric, self._all(attributes), key, value, self._start_ns)
        points.add_level(now_ns, self._attributes, _SPOOL, spool_bytes, self._start_ns)
        for signal, ended in attempts.items():
            durations = self._durations.setdefault(signal, _Durations(self._start_ns))
            while ended:
                seconds = ended.popleft()
                durations.buckets[bisect_left(_BOUNDS, seconds)] += 1
                durations.sum += seconds
            if sum(durations.buckets):
                self._write_durations(points, now_ns, signal, durations)

    def _write_durations(self, points: Points, now_ns: int, signal: str, found: _Durations) -> None:
        temporality = DELTA if self._delta else CUMULATIVE
        point = points.add(now_ns, self._all({"signal": signal}), *_DURATION, "histogram", temporality)
        point.start_time_unix_nano = min(found.start_ns, now_ns - MILLISECOND_NS)
        point.count, point.sum = sum(found.buckets), found.sum
        point.bucket_counts.extend(found.buckets)
        point.explicit_bounds.extend(_BOUNDS)
        if self._delta:
            self._durations[signal] = _Durations(now_ns)

    def _all(self, attributes: dict[str, str]) -> list[KeyValue]:
        return key_values({**attributes, **self._own}) if attributes else self._attributes
