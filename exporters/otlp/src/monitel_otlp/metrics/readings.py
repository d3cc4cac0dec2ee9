"""Readings: what a process reads of itself in a round: its counters, wait counters, step and goodput."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

import monitel
from monitel.attributes import escape_surrogates, typed_items
from monitel.blackbox.recorder import plain_number
from monitel.process.worker import Pace
from monitel.readings import (
    began_ns,
    counter_names,
    monotonic_ns,
    own_waits,
    source_waits,
    wait_keys,
    waits_in_flight,
)
from monitel.training.training_time import GOODPUT, NAME, goodput
from monitel_otel.names import wait_metrics
from monitel_otlp.messages.attributes import key_values
from monitel_otlp.messages.request import write_scope
from monitel_otlp.metrics.points import MILLISECOND_NS, Points, RisingSums

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.blackbox.forms import PlainCounter
    from monitel.blackbox.recorder import Series
    from monitel_otlp.metrics.points import Metric
    from monitel_otlp.metrics.self_metrics import SelfMetrics
    from monitel_otlp.metrics.series import SeriesTable

_log = logging.getLogger("monitel.otlp")

READINGS_PER_REQUEST = 500  # a wait counter takes 0.5 kB; a larger message would occupy the GIL for too long

#: Name, unit and description of the gauge.
STEP = "training.step", "{step}", "Step of the process"

_LONG_NS = 5_000_000_000  # a wait that lasts longer is sent soon


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
        own: The metrics of the pipeline itself.
        delta: Use delta temporality.
        idle_interval: Seconds between two readings without windows; 0 for one in each round.
    """

    def __init__(self, table: SeriesTable, own: SelfMetrics, *, delta: bool, idle_interval: float) -> None:
        self._table = table
        self._own = own
        self._attributes = table.attributes()
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

        Args:
            lost: Number of items that were lost so far.
        """
        self._longest.append(self._maxima.read_own())
        names = len(counter_names()), len(wait_keys()), monitel.get_step() is not None
        self._now = lost, self._lasting(monotonic_ns() - _LONG_NS), names
        return self._now != self._sent or monotonic_ns() >= self._due_ns

    def call_sources(self) -> None:
        """Call the sources of wait counters, which may hang."""
        self._of_sources = source_waits()
        self._longest.append(self._maxima.read_sources())

    def messages(self, now_ns: int) -> Iterator[tuple[bytes, int, bool]]:
        """Read the process. Never raises.

        Args:
            now_ns: Time of the round, Unix ns, at least a millisecond after that of the last round.

        Yields:
            A serialized ``ResourceMetrics`` without a resource, its number of points, and True if a reading in it
            differs from that of the last round.
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
                self._own.write(self._points, now_ns)
            if self._points.number:
                yield message.SerializeToString(), self._points.number, any(found)
            if len(found) < READINGS_PER_REQUEST:
                return
            is_first = False

    def plain(self) -> list[PlainCounter]:
        """Return the counters with their current totals and last points, as plain values. It writes no point."""
        found = []
        for series, (total, start_ns) in self._by_series().items():
            (name, unit, description), _, key = self._sum_of(series)
            sent = self._sums.sent(key, start_ns)
            found.append(
                (
                    escape_surrogates(name),
                    escape_surrogates(unit),
                    escape_surrogates(description),
                    series.plain_attributes,
                    plain_number(total),
                    int(start_ns),
                    None if sent is None else (int(sent.start_ns), int(sent.time_ns), plain_number(sent.total)),
                )
            )
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
        metric, attributes, key = self._sum_of(series)
        now_ns, unseen_ns = self._now_ns, self._unseen_ns
        return self._sums.write(
            self._points, metric, attributes, key, total, start_ns=start_ns, now_ns=now_ns, unseen_ns=unseen_ns
        )

    def _sum_of(self, series: Series) -> tuple[Metric, list[KeyValue], Hashable]:
        """Return the metric of a series, its attributes, and what identifies it in the process."""
        if (found := self._of_series.get(series)) is None:
            name, definition, attributes = series.name, series.definition, series.plain_attributes
            metric = name, definition.unit, definition.description
            found = self._of_series[series] = metric, key_values(attributes), (name, typed_items(attributes))
        return found

    # ---- wait counters

    def _lasting(self, since_ns: int) -> frozenset[Hashable]:
        """Return an identity of each wait that lasts for long. Takes no lock.

        Args:
            since_ns: Monotonic time, by the clock of monitel; a wait is long if it began earlier. A source provides no
                times: there a wait is long if it is in flight at two calls, and none of its key has ended in between.
        """
        before, self._in_flight = (
            self._in_flight,
            {key: reading.count for key, reading in self._of_sources.items() if reading.active},
        )
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

    def _warn(self, noun: str) -> None:
        kind = noun.partition(" ")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            _log.exception("%s cannot be encoded and is left out (others are not logged)", noun)
