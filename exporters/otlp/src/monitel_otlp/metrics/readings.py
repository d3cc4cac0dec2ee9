"""Points of the process's counters, wait counters, step and goodput."""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics

import monitel
from monitel.attributes import escape_surrogates
from monitel.blackbox.recorder import plain_number
from monitel.training_time import GOODPUT, NAME, goodput
from monitel.worker import Pace
from monitel_otlp.messages.attributes import key_values
from monitel_otlp.messages.request import write_scope
from monitel_otlp.metrics.rising_sums import RisingSums, Total, number_point
from monitel_otlp.metrics.wait_readings import WaitReadings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.blackbox.forms import PlainCounter
    from monitel.blackbox.recorder import Series
    from monitel_otlp.metrics.series import SeriesTable

_log = logging.getLogger("monitel.otlp")

READINGS_PER_REQUEST = 500  # a wait counter takes 0.5 kB; a larger message would occupy the GIL for too long

#: Name, unit and description of the gauge.
STEP = "training.step", "{step}", "Step of the process"


class Readings:
    """Writes the total of each counter, the wait counters, and step and goodput, in one or more requests.

    A counter is a monotonic sum with its bare name. All totals of a round are read at once, and their points have the
    same time, so that the activities of ``training.time`` add up. Use it in one thread at a time. Reading takes no
    lock.

    Args:
        table: The series of counters.
        delta: Use delta temporality.

    Attributes:
        waits: Writes the wait counters.
        due: A reading of the current round is not written yet.
    """

    def __init__(self, table: SeriesTable, *, delta: bool) -> None:
        self._table = table
        self._delta = delta
        self._pace = Pace()
        self._series: dict[monitel.Counter, Series] = {}
        self._attributes: dict[Series, list[KeyValue]] = {}
        self._sums = RisingSums(delta=delta)
        self.waits = WaitReadings(self._sums, table.attributes())
        self.due = False
        self._round: Iterator[bool] = iter(())
        self._scope: Any = None  # of the current request
        self._points: dict[str, Any] = {}  # of the counters in the current request, by metric name
        self._now_ns = 0  # time of the current round
        self._unseen_ns = 0  # time of the previous round
        self._last_step: int | None = None
        self._failed = False

    def begin(self) -> None:
        """Begin a round, if there is a counter, a wait counter or a step."""
        self.due = self.waits.any() or bool(monitel.counters()) or monitel.get_step() is not None
        self._round = self._write_round()
        self._unseen_ns, self._now_ns = self._now_ns or self._unseen_ns, 0

    def write(self, resource_metrics: Any, now_ns: int) -> bool:
        """Add the next readings of the round to a ``ResourceMetrics`` message, as many as fit. Never raises.

        Args:
            resource_metrics: The message.
            now_ns: Time of the round, Unix ns, at least a millisecond after that of the last round.

        Returns:
            True if a reading differs from that of the last round.
        """
        self._now_ns = self._now_ns or now_ns
        self._points = {}
        self._scope = scope = ScopeMetrics()
        write_scope(scope)
        written = [*islice(self._round, READINGS_PER_REQUEST)]
        self.due = len(written) == READINGS_PER_REQUEST
        if scope.metrics:
            resource_metrics.scope_metrics.append(scope)
        return any(written)

    def plain(self) -> list[PlainCounter]:
        """Return the counters with their current totals and last points, as plain values. It writes no point."""
        found = []
        for series, totals in self._by_series().items():
            definition = series.definition
            sent = self._sums.sent(series, totals)
            found.append(
                (
                    escape_surrogates(series.name),
                    escape_surrogates(definition.unit),
                    escape_surrogates(definition.description),
                    series.plain_attributes,
                    plain_number(sum(total.value for total in totals)),
                    min(int(total.start_ns) for total in totals),
                    None if sent is None else (int(sent.start_ns), int(sent.time_ns), plain_number(sent.total)),
                )
            )
        return found

    def _write_round(self) -> Iterator[bool]:
        """Write one reading after the other into the current request, and yield True for each that differs."""
        activities = 0  # whose time has changed
        for series, totals in self._by_series().items():
            self._pace.pause()
            try:
                changed = self._sums.write(
                    *(series, self._attributes_of(series), totals, self._now_ns, partial(self._points_of, series)),
                    unseen_ns=self._unseen_ns,
                )
            except Exception:
                self._warn(series.name)
            else:
                is_time = series.name == NAME
                activities += changed and is_time
                yield changed and not is_time
        # Time that passes in one activity is stored with the next change, so that a process that hangs fills no disk. A
        # delta has to be stored.
        yield activities > (0 if self._delta else 1)
        for key, reading in self.waits.readings():
            self._pace.pause()
            yield self.waits.write(self._scope.metrics, key, reading, self._now_ns)
        yield self._write_gauges()

    def _attributes_of(self, series: Series) -> list[KeyValue]:
        if (found := self._attributes.get(series)) is None:
            found = self._attributes[series] = key_values(series.plain_attributes)
        return found

    def _points_of(self, series: Series) -> Any:
        """Return the points of a counter's metric in the current request."""
        points = self._points.get(series.name)
        if points is None:
            name, definition = series.name, series.definition
            points = self._sums.add_metric(self._scope.metrics, name, definition.unit, definition.description)
            self._points[name] = points
        return points

    def _by_series(self) -> dict[Series, list[Total]]:
        """Return the totals of each series; counters beyond the limit of series share one."""
        found: dict[Series, list[Total]] = {}
        for counter, total, start_ns in monitel.counters():
            self._pace.pause()
            series = self._series.get(counter)
            if series is None:
                try:
                    series = self._series[counter] = self._table.of_counter(counter)
                except Exception:
                    self._warn(counter.name)
                    continue
            found.setdefault(series, []).append(Total(counter, total, start_ns))
        return found

    def _write_gauges(self) -> bool:
        """Write step and goodput, each if it is known; return True if the step differs from that of the last round."""
        last, self._last_step = self._last_step, monitel.get_step()
        for (name, unit, description), value in ((STEP, self._last_step), (GOODPUT, goodput())):
            if value is not None:
                metric = self._scope.metrics.add(name=name, unit=unit, description=description)
                metric.gauge.data_points.append(number_point(self._table.attributes(), 0, self._now_ns, value))
        return self._last_step not in {None, last}

    def _warn(self, name: str) -> None:
        if not self._failed:
            self._failed = True
            _log.exception("counter %r cannot be encoded and is left out (further ones are not logged)", name)
