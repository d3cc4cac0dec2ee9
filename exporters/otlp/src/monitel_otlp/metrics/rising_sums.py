"""Points of sums that only rise and are read at each request: counters, and the totals of wait counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, NumberDataPoint

from monitel.attributes import INT64_MAX
from monitel_otlp.metrics.series import MILLISECOND_NS, start_point_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


class Total(NamedTuple):
    """A part of a sum.

    Attributes:
        identity: The counter; the same in every pipeline of the process.
        value: The total.
        start_ns: Time at which the total was zero, Unix ns.
    """

    identity: Hashable
    value: float
    start_ns: int


class Sent(NamedTuple):
    """The last point of a series, or of a part of it: its start and time, and the total up to it."""

    start_ns: int
    time_ns: int
    total: float


#: The last point of each counter of this process, by its start: a later pipeline continues from there.
_last_sent: dict[tuple[Hashable, int], Sent] = {}


class RisingSums:
    """Makes the points of sums. Use it in one thread at a time. Takes no lock.

    With cumulative temporality each total is a point, and a series begins with a point of value zero at the start of
    the sum, or later if the series did not exist in the previous round. With delta temporality a point is the
    difference from the previous one, and there is no point without a difference. A total that has fallen begins at zero
    again, with another start.

    Args:
        delta: Use delta temporality.
        earlier: The last point of each counter, by its start: the sums continue from there. By default those of this
            process.
    """

    def __init__(self, *, delta: bool, earlier: dict[tuple[Hashable, int], Sent] | None = None) -> None:
        self._delta = delta
        self._earlier = _last_sent if earlier is None else earlier
        self._sent: dict[Hashable, Sent] = {}

    def write(
        self,
        series: Hashable,
        attributes: Sequence[KeyValue],
        parts: Sequence[Total],
        now_ns: int,
        target: Callable[[], Any],
        *,
        restarted: bool = False,
        unseen_ns: int = 0,
    ) -> bool:
        """Add the points of a series for its current total.

        Args:
            series: Identifies the series.
            attributes: Attributes of the points.
            parts: The series is the sum of them.
            now_ns: Current time, Unix ns.
            target: Returns the list of points to which they are added. It is not called without a point.
            restarted: The sum has begun at zero again since the last point.
            unseen_ns: Time, Unix ns, at which a series without a point did not exist yet; 0 if unknown.

        Returns:
            True if the total differs from that of the last point.
        """
        total = sum(part.value for part in parts)
        sent = self.sent(series, parts)
        if sent is None:
            start_ns = min(part.start_ns for part in parts)
            if start_ns >= now_ns:  # the clock was set back
                start_ns = now_ns - MILLISECOND_NS
            points = self._first(attributes, total, start_ns, now_ns, unseen_ns)
        elif restarted or total < sent.total:
            points = self._first(attributes, total, sent.time_ns + MILLISECOND_NS, now_ns)
        else:
            points = self._next(attributes, total, sent, now_ns)
        if points:
            target().extend(points)
            start_ns, time_ns = points[-1].start_time_unix_nano, points[-1].time_unix_nano
        elif sent is not None and total < sent.total:  # it has fallen to zero: the next delta is the whole total
            start_ns, time_ns, _ = sent
        else:
            return False
        self._sent[series] = Sent(start_ns, time_ns, total)
        for identity, value, began_ns in parts:
            self._earlier[identity, began_ns] = Sent(start_ns, time_ns, value)
        return sent is None or total != sent.total  # a zero is needed as well: the increase begins there

    def sent(self, series: Hashable, parts: Sequence[Total]) -> Sent | None:
        """Return the last point of a series; None without one."""
        return self._sent.get(series) or self._sent_earlier(parts)

    def add_metric(self, metrics: Any, name: str, unit: str, description: str) -> Any:
        """Add an empty metric for such points to a message, and return its list of points."""
        metric = metrics.add(name=name, unit=unit, description=description)
        metric.sum.is_monotonic = True
        metric.sum.aggregation_temporality = _DELTA if self._delta else _CUMULATIVE
        return metric.sum.data_points

    def _sent_earlier(self, parts: Sequence[Total]) -> Sent | None:
        """Return what earlier pipelines have sent of a series, in which its counters may have had separate series."""
        found = [self._earlier.get((part.identity, part.start_ns)) for part in parts]
        sent = [each for each in found if each is not None]
        if not sent:
            return None
        starts, times, totals = zip(*sent, strict=True)
        return Sent(min(starts), max(times), sum(totals))

    def _first(
        self, attributes: Sequence[KeyValue], total: float, start_ns: int, now_ns: int, zero_ns: int = 0
    ) -> list[Any]:
        """Return the first point of a series, after its start point unless it is zero itself."""
        time_ns = max(now_ns, start_ns + MILLISECOND_NS)
        zero_ns = min(max(start_ns, zero_ns), time_ns - MILLISECOND_NS)
        if self._delta:
            return [number_point(attributes, zero_ns, time_ns, total)] if total else []
        point = number_point(attributes, start_ns, time_ns, total)
        if not total:
            return [point]
        at_ns = start_point_ns(start_ns, zero_ns, time_ns)
        return [number_point(attributes, start_ns, at_ns, type(total)(0)), point]

    def _next(self, attributes: Sequence[KeyValue], total: float, sent: Sent, now_ns: int) -> list[Any]:
        """Return the next point of a series, if there is one."""
        time_ns = max(now_ns, sent.time_ns + MILLISECOND_NS)
        if not self._delta:  # another start would look like a reset
            return [number_point(attributes, sent.start_ns, time_ns, total)]
        return [number_point(attributes, sent.time_ns, time_ns, total - sent.total)] if total != sent.total else []


def number_point(attributes: Sequence[KeyValue], start_ns: int, time_ns: int, value: float) -> Any:
    """Return a point with an int if ``value`` is one of at most 64 bits, otherwise with a double."""
    point = NumberDataPoint(start_time_unix_nano=start_ns, time_unix_nano=time_ns, attributes=attributes)
    if isinstance(value, int) and value <= INT64_MAX:  # the sum of several counters may have more bits
        point.as_int = value
    else:
        point.as_double = value
    return point
