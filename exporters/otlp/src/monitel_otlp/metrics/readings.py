"""Points of the process's counters and of its step."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, NumberDataPoint, ScopeMetrics

import monitel
from monitel.attributes import INT64_MAX
from monitel_otlp.metrics.start_points import MILLISECOND_NS, start_point_ns
from monitel_otlp.threads.pacing import Pace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitel_otlp.metrics.series import Series, SeriesTable

_log = logging.getLogger("monitel.otlp")

#: Name, unit and description of the gauge.
STEP = "training.step", "{step}", "Step of the process"

_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


class _Sent(NamedTuple):
    """The last point of a series, or of a counter in it: its start and time, and the total up to it."""

    start_ns: int
    time_ns: int
    total: float


#: The last point of each counter of this process, by its start: a later pipeline continues from there.
_last_sent: dict[tuple[monitel.Counter, int], _Sent] = {}


class Readings:
    """Writes the total of each counter, and the step of the process. Use it in one thread at a time.

    A counter is a monotonic sum with its bare name. With cumulative temporality each total is a point, and a series
    begins with a point of value zero at the start of the counter. With delta temporality a point is the difference from
    the previous one, and there is no point without a difference. Reading takes no lock.

    Args:
        table: The series of counters.
        delta: Use delta temporality.
    """

    def __init__(self, table: SeriesTable, *, delta: bool) -> None:
        self._table = table
        self._delta = delta
        self._pace = Pace()
        self._series: dict[monitel.Counter, Series] = {}
        self._sent: dict[Series, _Sent] = {}
        self._step: Sequence[Any] | None = None  # attributes of the gauge
        self._last_step: tuple[int, int] = 0, -1  # time and value of its last point
        self._failed = False

    @staticmethod
    def any() -> bool:
        """Return True if there is a counter or a step."""
        return bool(monitel.counters()) or monitel.get_step() is not None

    def write(self, resource_metrics: Any, now_ns: int) -> bool:
        """Add the current readings to a ``ResourceMetrics`` message. Never raises.

        Returns:
            True if a reading differs from that of the last call.
        """
        scope = ScopeMetrics()
        changed = False
        metrics: dict[str, Any] = {}
        for series, readings in self._by_series().items():
            self._pace.pause()
            total = sum(reading.total for reading in readings)
            sent = self._sent.get(series) or _sent_earlier(readings)
            try:
                if sent is None:
                    points = self._first_points(series, total, min(each.start_ns for each in readings), now_ns)
                else:
                    points = self._next_points(series, total, sent, now_ns)
                if points:
                    metric = metrics.get(series.name) or metrics.setdefault(series.name, self._metric(scope, series))
                    metric.sum.data_points.extend(points)
            except Exception:
                self._warn(series.name)
                continue
            if points:
                changed |= sent is None or total != sent.total  # a zero is needed as well: the increase begins there
                start_ns, time_ns = points[-1].start_time_unix_nano, points[-1].time_unix_nano
                self._sent[series] = _Sent(start_ns, time_ns, total)
                for counter, part, began_ns in readings:
                    _last_sent[counter, began_ns] = _Sent(start_ns, time_ns, part)
        changed |= self._write_step(scope, now_ns)
        if scope.metrics:
            scope.scope.name, scope.scope.version = "monitel", monitel.__version__
            resource_metrics.scope_metrics.append(scope)
        return changed

    def _by_series(self) -> dict[Series, list[monitel.CounterReading]]:
        """Return the readings of each series; counters beyond the limit of series share one."""
        found: dict[Series, list[monitel.CounterReading]] = {}
        for reading in monitel.counters():
            self._pace.pause()
            counter = reading.counter
            series = self._series.get(counter)
            if series is None:
                try:
                    series = self._series[counter] = self._table.of_counter(counter)
                except Exception:
                    self._warn(counter.name)
                    continue
            found.setdefault(series, []).append(reading)
        return found

    def _first_points(self, series: Series, total: float, start_ns: int, now_ns: int) -> list[Any]:
        """Return the first point of a series, after its start point unless it is zero itself."""
        if start_ns > now_ns:  # the clock was set back
            start_ns = now_ns - MILLISECOND_NS
        time_ns = max(now_ns, start_ns + MILLISECOND_NS)
        point = _point(series, start_ns, time_ns, total)
        if not total:
            return [] if self._delta else [point]
        at_ns = None if self._delta else start_point_ns(start_ns, start_ns, time_ns)
        return [point] if at_ns is None else [_point(series, start_ns, at_ns, type(total)(0)), point]

    def _next_points(self, series: Series, total: float, sent: _Sent, now_ns: int) -> list[Any]:
        """Return the next point of a series, if there is one."""
        time_ns = max(now_ns, sent.time_ns + MILLISECOND_NS)
        if not self._delta:
            return [_point(series, sent.start_ns, time_ns, total)]  # another start would look like a reset
        return [_point(series, sent.time_ns, time_ns, total - sent.total)] if total != sent.total else []

    def _metric(self, scope: Any, series: Series) -> Any:
        definition = series.definition
        metric = scope.metrics.add(name=series.name, unit=definition.unit, description=definition.description)
        metric.sum.is_monotonic = True
        metric.sum.aggregation_temporality = _DELTA if self._delta else _CUMULATIVE
        return metric

    def _write_step(self, scope: Any, now_ns: int) -> bool:
        step = monitel.get_step()
        if step is None:
            return False
        if self._step is None:
            self._step = self._table.own_gauge(STEP[0])
        last_ns, last = self._last_step
        time_ns = max(now_ns, last_ns + MILLISECOND_NS)
        name, unit, description = STEP
        metric = scope.metrics.add(name=name, unit=unit, description=description)
        metric.gauge.data_points.add(time_unix_nano=time_ns, as_int=step, attributes=self._step)
        self._last_step = time_ns, step
        return step != last

    def _warn(self, name: str) -> None:
        if not self._failed:
            self._failed = True
            _log.exception("counter %r cannot be encoded and is left out (further ones are not logged)", name)


def _sent_earlier(readings: list[monitel.CounterReading]) -> _Sent | None:
    """Return what earlier pipelines have sent of a series, in which its counters may have had separate series."""
    found = [_last_sent.get((counter, start_ns)) for counter, _, start_ns in readings]
    sent = [each for each in found if each is not None]
    if not sent:
        return None
    starts, times, totals = zip(*sent, strict=True)
    return _Sent(min(starts), max(times), sum(totals))


def _point(series: Series, start_ns: int, time_ns: int, value: float) -> Any:
    point = NumberDataPoint(start_time_unix_nano=start_ns, time_unix_nano=time_ns, attributes=series.attributes)
    if isinstance(value, int) and value <= INT64_MAX:  # the sum of several counters may have more bits
        point.as_int = value
    else:
        point.as_double = value
    return point
