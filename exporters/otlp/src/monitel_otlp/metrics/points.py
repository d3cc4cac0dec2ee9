"""Points of metrics: where a number gets a place in a request, its time, and as a sum its start."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from monitel.attributes import INT64_MAX

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    Metric = tuple[str, str, str]  # name, unit and description

MILLISECOND_NS = 1_000_000  #: Prometheus keeps the first of two points that are closer.
UNSPECIFIED = AggregationTemporality.AGGREGATION_TEMPORALITY_UNSPECIFIED
DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE

_EARLIEST_NS = 30 * 60 * 10**9  # Prometheus refuses samples that are an hour older than its latest one


class Points:
    """The points of one request in its list of metrics: all points with the same name are in one of them."""

    def __init__(self, metrics: Any) -> None:
        self.number = 0
        self._metrics = metrics
        self._of_name: dict[str, Any] = {}

    def add(  # noqa: PLR0917  called for each point: keywords would cost a tenth of it
        self,
        time_ns: int,
        attributes: Iterable[KeyValue],
        name: str,
        unit: str,
        description: str,
        shape: str = "gauge",
        temporality: int = UNSPECIFIED,
        monotonic: bool = False,
    ) -> Any:
        """Return a new, empty point; ``shape`` is a field of ``Metric``."""
        key = f"{shape} {name}"
        points = self._of_name.get(key)
        if points is None:
            metric = self._metrics.add()
            metric.name = name
            metric.unit = unit
            metric.description = description
            data = getattr(metric, shape)
            if temporality:
                data.aggregation_temporality = temporality
            if monotonic:
                data.is_monotonic = True
            points = self._of_name[key] = data.data_points
        point = points.add()
        self.number += 1
        point.time_unix_nano = time_ns
        if attributes:
            point.attributes.extend(attributes)
        return point

    def add_gauge(self, time_ns: int, attributes: Iterable[KeyValue], metric: Metric, value: float) -> None:
        """Add a number that is what it is at this time."""
        fill(self.add(time_ns, attributes, *metric), value)

    def add_level(
        self, time_ns: int, attributes: Iterable[KeyValue], metric: Metric, value: float, start_ns: int
    ) -> None:
        """Add a sum that rises and falls. It is cumulative with delta temporality, too."""
        point = self.add(time_ns, attributes, *metric, "sum", CUMULATIVE)
        point.start_time_unix_nano = min(start_ns, time_ns)  # if the clock was set back
        fill(point, value)


def fill(point: Any, value: float) -> None:
    """Set the value of a point: an int if it is one of at most 64 bits, else a double."""
    if isinstance(value, int) and value <= INT64_MAX:  # the sum of several counters may have more bits
        point.as_int = value
    else:
        point.as_double = value


def start_point_ns(start_ns: int, begin_ns: int, first_ns: int) -> int:
    """Return the time of the start point of a sum: at most 30 minutes before its first point, at least 1 ms.

    The sum was still zero at ``begin_ns``; all its points carry ``start_ns``, and none is earlier.
    """
    return max(start_ns, min(begin_ns, first_ns - MILLISECOND_NS), first_ns - _EARLIEST_NS)


class Sent(NamedTuple):
    """The last point of a sum: its start and time, and the total up to it."""

    start_ns: int
    time_ns: int
    total: float


#: The last point of each sum of this process, by key and start: a later pipeline continues from there.
SENT: dict[tuple[Hashable, int], Sent] = {}


class RisingSums:
    """Makes the points of sums that only rise, from their totals. Use it in one thread at a time.

    With cumulative temporality each total is a point, and a series begins with a point of value zero at the start of
    the sum, or later if the series did not exist in the previous round. With delta temporality a point is the
    difference from the previous one, and there is no point without a difference. A total that has fallen begins at zero
    again, with another start. It continues from the last points ``sent``, by default those of this process.

    Attributes:
        points: Those of the current message.
        now_ns: The time of its points.
        unseen_ns: A series without a point did not exist then; 0 if that is not known. All times are Unix ns.
    """

    def __init__(self, *, delta: bool, sent: MutableMapping[tuple[Hashable, int], Sent] | None = None) -> None:
        self._delta = delta
        self._sent = SENT if sent is None else sent
        self.points: Any = None
        self.now_ns = self.unseen_ns = 0

    def write(
        self,
        metric: Metric,
        attributes: Sequence[KeyValue],
        key: Hashable,
        total: float,
        start_ns: int,
        *,
        restarted: bool = False,
    ) -> bool:
        """Add the points of a sum, and return True if its total differs from that of the last point.

        ``key`` identifies the sum, which was zero at ``start_ns``; if it is ``restarted``, also since the last point.
        """
        now_ns = self.now_ns
        sent = self._sent.get((key, start_ns))
        has_fallen = sent is not None and (restarted or total < sent.total)
        if sent is None:
            found = self._first(total, min(start_ns, now_ns - MILLISECOND_NS), now_ns, self.unseen_ns)
        elif has_fallen:
            found = self._first(total, sent.time_ns + MILLISECOND_NS, now_ns, 0)
        else:
            found = self._next(total, sent, now_ns)
        temporality = DELTA if self._delta else CUMULATIVE
        for begin_ns, time_ns, value in found:
            point = self.points.add(time_ns, attributes, *metric, "sum", temporality, True)
            point.start_time_unix_nano = begin_ns
            fill(point, value)
        if found:
            self._sent[key, start_ns] = Sent(*found[-1][:2], total)
        elif sent is not None and has_fallen:  # to zero: the next delta is the whole total
            self._sent[key, start_ns] = sent._replace(total=total)
        else:
            return False
        return sent is None or total != sent.total  # a zero is needed as well: the increase begins there

    def _first(self, total: float, start_ns: int, now_ns: int, zero_ns: int) -> list[tuple[int, int, float]]:
        """Return start, time and value of the first point of a series, after its start point unless it is zero."""
        time_ns = max(now_ns, start_ns + MILLISECOND_NS)
        zero_ns = min(max(start_ns, zero_ns), time_ns - MILLISECOND_NS)
        if self._delta:
            return [(zero_ns, time_ns, total)] if total else []
        at_ns = start_point_ns(start_ns, zero_ns, time_ns)
        return [*[(start_ns, at_ns, type(total)(0))] * bool(total), (start_ns, time_ns, total)]

    def _next(self, total: float, sent: Sent, now_ns: int) -> list[tuple[int, int, float]]:
        """Return start, time and value of the next point of a series, if there is one."""
        time_ns = max(now_ns, sent.time_ns + MILLISECOND_NS)
        if not self._delta:  # another start would look like a reset
            return [(sent.start_ns, time_ns, total)]
        return [(sent.time_ns, time_ns, total - sent.total)] if total != sent.total else []
