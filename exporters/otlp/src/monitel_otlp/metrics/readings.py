"""Readings: what a process reads of itself in a round: its counters, wait counters, step, goodput, and its pipeline."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

import monitel
from monitel.attributes import escape_surrogates, typed_items
from monitel.blackbox.recorder import plain_number
from monitel.clock import monotonic_ns
from monitel.counter import first_of_names
from monitel.process.worker import Pace
from monitel.training.counters import GOODPUT, NAME, goodput
from monitel.wait_counter import began_ns, own_waits, source_waits, wait_keys, waits_in_flight
from monitel_otel.names import NAMES, wait_metrics
from monitel_otlp.messages.attributes import key_values
from monitel_otlp.messages.request import Encoder, write_scope
from monitel_otlp.metrics.points import CUMULATIVE, DELTA, MILLISECOND_NS, Points, RisingSums

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.blackbox.account import Account
    from monitel.blackbox.forms import PlainCounter
    from monitel.blackbox.record import Item
    from monitel.blackbox.recorder import Series
    from monitel_otlp.export.recorder import MetricSeries
    from monitel_otlp.metrics.points import Metric

_log = logging.getLogger("monitel.otlp")

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
LEFT_OUT = (
    *("monitel.black_box.left_out", "{item}"),
    "Items that were recorded in memory without a file of the black box",
)
_WITH_ZERO = {NONFINITE, DISCARDED}  # the other counters have a series once there is something to count
NAMES.reserve(
    *(each[0] for each in (QUEUE_SIZE, _DURATION, _SPOOL, EXPORTED, DROPPED, NONFINITE, DISCARDED, COALESCED, LEFT_OUT))
)

_BOUNDS = (0.01, 0.1, 1.0)  # seconds; each bound is a series in every process of a job
_LONG_NS = 5_000_000_000  # a wait that lasts longer is sent soon


class ReadingsEncoder(Encoder):
    """Puts readings, which are encoded already, into requests."""

    most = 1  # readings of one metric are not merged

    def __init__(self, resource: bytes, write_queue_size: Callable[[Any], object] | None = None) -> None:
        super().__init__("metrics", resource, None, write_queue_size)

    def _write(self, items: Sequence[Item], resource: Any, _draft: None) -> int:
        content, points, _ = items[0].value
        resource.MergeFromString(content)
        return int(points)


class Readings:
    """Decides in which rounds the process is read, and writes what is read, in one or more messages.

    A round with windows is one of them. Without windows the process is read once in so many seconds, and soon if:

    * an item was lost;
    * a wait has been in flight for five seconds, or such a wait has ended;
    * a counter, a wait counter or the step is there for the first time.

    A counter is a monotonic sum with its bare name. Time and number of waits are monotonic sums; the number of active
    waits is a sum that may fall; the longest wait is a gauge, with a point if a wait has ended since the last request.

    All totals of a round are read at once, and their points have the same time, so that the activities of
    ``training.time`` add up. Reading takes no lock, except that of sources of waits, and of the longest waits: they are
    read by :meth:`call_sources`, which may hang and therefore runs in the application's thread. Use the other methods
    in one thread at a time.

    Args:
        table: The series of counters.
        delta: Use delta temporality.
        idle_interval: Seconds between two readings without windows; 0 for one in each round.
    """

    def __init__(self, table: MetricSeries, *, delta: bool, idle_interval: float) -> None:
        self._table = table
        self._attributes = key_values(table.attributes)
        self._delta = delta
        self._idle_ns = round(idle_interval * 1e9)
        self._due_ns = 0  # monotonic time
        self._sent: Hashable = None  # state of the process when it was last read
        self._now: Hashable = None
        self._now_ns = self._unseen_ns = 0  # times of the current round, and of the previous one
        self._sums = RisingSums(delta=delta)
        self._points = Points(ResourceMetrics().scope_metrics.add().metrics)  # of the current message
        self._pace = Pace()
        self._series: dict[monitel.Counter, Series] = {}
        self._of_series: dict[Series, tuple[Metric, list[KeyValue], Hashable]] = {}
        self._maxima = monitel.WaitMaxima()
        self._of_sources: dict[str, monitel.WaitReading] = {}
        self._in_flight: dict[str, int] = {}  # by key of a source: waits that had ended, if another one was active
        self._longest: deque[dict[str, float]] = deque()  # longest waits that were read
        self._maximum: dict[str, float] = {}  # by key: the longest wait since the last request
        self._seen_waits: dict[str, tuple[monitel.WaitReading, int]] = {}  # with the start of the active ones
        self._last_step: int | None = None
        self._warned: set[str] = set()

    def is_due(self, lost: int) -> bool:
        """Return True if the process is to be read without windows, too. Call it once in each round.

        ``lost`` is the number of items that were lost so far.
        """
        self._longest.append(self._maxima.read_own())
        names = len(first_of_names()), len(wait_keys()), monitel.get_step() is not None
        self._now = lost, self._lasting(monotonic_ns() - _LONG_NS), names
        return self._now != self._sent or monotonic_ns() >= self._due_ns

    def call_sources(self) -> None:
        """Call the sources of wait counters, which may hang."""
        self._of_sources = source_waits()
        self._longest.append(self._maxima.read_sources())

    def messages(self, now_ns: int, own: OwnMetrics, values: OwnValues) -> Iterator[tuple[bytes, int, bool]]:
        """Read the process at a time that is at least a millisecond after the last one. Never raises.

        It yields serialized ``ResourceMetrics`` without a resource, each with its number of points, and True if a
        reading in it differs from that of the last round.
        """
        self._sent, self._due_ns = self._now, monotonic_ns() + self._idle_ns
        self._unseen_ns, self._now_ns = self._now_ns, now_ns
        readings, is_first = self._read(), True
        while True:
            message = ResourceMetrics()
            scope = message.scope_metrics.add()
            write_scope(scope)
            self._points = Points(scope.metrics)
            found = [*islice(readings, READINGS_PER_REQUEST)]
            if is_first:
                own.write(self._points, now_ns, values)
            if self._points.number:
                yield message.SerializeToString(), self._points.number, any(found)
            if len(found) < READINGS_PER_REQUEST:
                return
            is_first = False

    def plain(self) -> list[PlainCounter]:
        """Return the counters with their current totals and last points, as plain values. It writes no point."""
        found = []
        for series, (total, start_ns) in self._by_series().items():
            metric, _, key = self._sum_of(series)
            name, unit, description = map(escape_surrogates, metric)
            sent = self._sums.sent(key, start_ns)
            last = None if sent is None else (int(sent.start_ns), int(sent.time_ns), plain_number(sent.total))
            number = plain_number(total)
            found.append((name, unit, description, series.plain_attributes, number, int(start_ns), last))
        return found

    def _read(self) -> Iterator[bool]:
        """Write one reading after the other into the current message, and yield True for each that differs."""
        activities = 0  # whose time has changed
        for series, (total, start_ns) in self._by_series().items():
            changed = self._written(f"counter {series.name!r}", self._write_counter, series, total, start_ns)
            is_time = series.name == NAME
            activities += changed and is_time
            yield changed and not is_time
        # Time that passes in one activity is stored with the next change, so that a process that hangs fills no disk. A
        # delta has to be stored.
        yield activities > (0 if self._delta else 1)
        for key, reading in self._read_waits():
            yield self._written(f"wait counter {key!r}", self._write_wait, key, reading)
        last, self._last_step = self._last_step, monitel.get_step()
        for metric, value in ((STEP, self._last_step), (GOODPUT, goodput())):
            if value is not None:
                self._points.add_gauge(self._now_ns, self._attributes, metric, value)
        yield self._last_step not in {None, last}

    def _written(self, noun: str, write: Callable[..., bool], *arguments: Any) -> bool:
        """Write a reading, or leave it out if it cannot be encoded; return True if it differs from the last one."""
        self._pace.pause()
        self._points.commit()
        try:
            return write(*arguments)
        except Exception:
            self._points.rollback()
            self._warn(noun)
            return False

    def _warn(self, noun: str) -> None:
        kind = noun.partition(" ")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            _log.exception("%s cannot be encoded and is left out (others are not logged)", noun)

    # ---- counters

    def _by_series(self) -> dict[Series, tuple[float, int]]:
        """Return total and start of each series; counters beyond the limit of series share one."""
        found: dict[Series, tuple[float, int]] = {}
        for counter, total, start_ns in monitel.counters():
            self._pace.pause()
            series = self._series.get(counter)
            if series is None:
                try:
                    series = self._series[counter] = self._table.of_counter(counter)
                except Exception:
                    self._warn(f"counter {counter.name!r}")
                    continue
            others, began_ns = found.get(series, (0, start_ns))
            found[series] = others + total, min(began_ns, start_ns)
        return found

    def _write_counter(self, series: Series, total: float, start_ns: int) -> bool:
        times: dict[str, Any] = {"start_ns": start_ns, "now_ns": self._now_ns, "unseen_ns": self._unseen_ns}
        return self._sums.write(self._points, *self._sum_of(series), total, **times)

    def _sum_of(self, series: Series) -> tuple[Metric, list[KeyValue], Hashable]:
        """Return the metric of a series, its attributes, and what identifies it in the process."""
        if (found := self._of_series.get(series)) is None:
            name, definition, attributes = series.name, series.definition, series.plain_attributes
            metric = name, definition.unit, definition.description
            found = self._of_series[series] = metric, key_values(attributes), (name, typed_items(attributes))
        return found

    # ---- wait counters

    def _lasting(self, since_ns: int) -> frozenset[Hashable]:
        """Return an identity of each wait that lasts since a time of monitel's monotonic clock. Takes no lock.

        A source provides no times: there a wait is long if it is in flight at two calls, and none of its key has ended
        in between.
        """
        before = self._in_flight
        self._in_flight = {key: reading.count for key, reading in self._of_sources.items() if reading.active}
        own = (wait for wait in waits_in_flight() if wait[2] <= since_ns)
        return frozenset((*own, *(each for each in self._in_flight.items() if before.get(each[0]) == each[1])))

    def _read_waits(self) -> Iterator[tuple[str, monitel.WaitReading]]:
        """Yield the current reading of each key; those that the process counts itself first."""
        while self._longest:
            for key, seconds in self._longest.popleft().items():
                self._maximum[key] = max(seconds, self._maximum.get(key, 0.0))
        own = set()
        for key, reading in own_waits():
            own.add(key)
            yield key, reading
        yield from ((key, reading) for key, reading in self._of_sources.items() if key not in own)

    def _write_wait(self, key: str, reading: monitel.WaitReading) -> bool:
        seen, since_ns = self._seen_waits.get(key, (None, 0))
        restarted = seen is not None and (reading.count < seen.count or reading.total < seen.total)
        changed = seen is None or reading.active != seen.active
        start_ns, now_ns, attributes = reading.start_ns or began_ns(), self._now_ns, self._attributes
        time, ended, active, longest = wait_metrics(key)
        times: dict[str, Any] = {"start_ns": start_ns, "now_ns": now_ns, "restarted": restarted}
        changed |= self._sums.write(self._points, time, attributes, time, float(reading.total), **times)
        changed |= self._sums.write(self._points, ended, attributes, ended, reading.count, **times)
        since_ns = since_ns or min(start_ns, now_ns - MILLISECOND_NS)  # the same after a restart of the sums
        self._points.add_level(now_ns, attributes, active, reading.active, since_ns)
        seconds = self._maximum.pop(key, None)
        if seconds is not None:
            self._points.add_gauge(now_ns, attributes, longest, seconds)
        self._seen_waits[key] = reading, since_ns
        return changed or seconds is not None


class OwnValues(NamedTuple):
    """The numbers of a pipeline: accounts, totals, bytes in the spool, durations of attempts to take out."""

    accounts: Mapping[str, Account]
    totals: Mapping[Metric, int]
    spool_bytes: int
    seconds: Mapping[str, deque[float]]


class _Durations:
    """The histogram of the attempts of one signal since a time."""

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.buckets = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0
        self.least, self.most = float("inf"), 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(_BOUNDS, seconds)] += 1
        self.sum += seconds
        self.least, self.most = min(self.least, seconds), max(self.most, seconds)


class OwnMetrics:
    """Writes the metrics of the pipeline itself, modelled on OpenTelemetry's ``otel.sdk.*`` metrics."""

    def __init__(self, attributes: Mapping[str, str | int], *, temporality: str, start_ns: int) -> None:
        self._own = attributes
        self._attributes = key_values(attributes)
        self._sums = RisingSums(delta=temporality == "delta", sent={})
        self._delta_durations = temporality != "cumulative"
        self._start_ns = start_ns
        self._seen_ns = self._size_ns = 0  # times of the previous call of write(), and of the last queue size
        self._durations: dict[str, _Durations] = {}

    def write_queue_size(self, metrics: Any, waiting: int, now_ns: int) -> None:
        """Add the number of waiting items to a list of metrics. Any sender may call it."""
        self._size_ns = max(now_ns, self._size_ns + MILLISECOND_NS)
        Points(metrics).add_level(self._size_ns, self._attributes, QUEUE_SIZE, waiting, self._start_ns)

    def write(self, points: Points, now_ns: int, values: OwnValues) -> None:
        """Add the other metrics to the points of a message."""
        times: dict[str, Any] = {"start_ns": self._start_ns, "now_ns": now_ns, "unseen_ns": self._seen_ns}
        for metric, attributes, value in _totals(values):
            key = (metric[0], *attributes.items())
            self._sums.write(points, metric, self._all(attributes), key, value, **times)
        self._seen_ns = now_ns
        points.add_level(now_ns, self._attributes, _SPOOL, values.spool_bytes, self._start_ns)
        for signal, seconds in values.seconds.items():
            durations = self._durations.setdefault(signal, _Durations(self._start_ns))
            while seconds:
                durations.add(seconds.popleft())
            if sum(durations.buckets):
                self._write_durations(points, now_ns, signal, durations)

    def _write_durations(self, points: Points, now_ns: int, signal: str, found: _Durations) -> None:
        temporality = DELTA if self._delta_durations else CUMULATIVE
        point = points.add(now_ns, self._all({"signal": signal}), *_DURATION, "histogram", temporality)
        point.start_time_unix_nano = min(found.start_ns, now_ns - MILLISECOND_NS)
        point.count, point.sum, point.min, point.max = sum(found.buckets), found.sum, found.least, found.most
        point.bucket_counts.extend(found.buckets)
        point.explicit_bounds.extend(_BOUNDS)
        if self._delta_durations:
            self._durations[signal] = _Durations(now_ns)

    def _all(self, attributes: dict[str, str]) -> list[KeyValue]:
        return key_values({**attributes, **self._own}) if attributes else self._attributes


def _totals(values: OwnValues) -> Iterator[tuple[Metric, dict[str, str], int]]:
    for signal, account in values.accounts.items():
        if account.delivered:
            yield EXPORTED, {"signal": signal}, account.delivered
        for reason, items in account.dropped.items():
            yield DROPPED, {"signal": signal, "error.type": reason}, items
    for metric, total in values.totals.items():
        if total or metric in _WITH_ZERO:
            yield metric, {}, total
