"""Points of the process's wait counters."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

import monitel
from monitel.readings import began_ns, own_waits, source_waits, wait_keys, waits_in_flight
from monitel_otel.observed import wait_metrics
from monitel_otlp.metrics.rising_sums import Total, number_point
from monitel_otlp.metrics.series import MILLISECOND_NS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel_otlp.metrics.rising_sums import RisingSums

_log = logging.getLogger("monitel.otlp")

_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


class _State:
    """A key: its metrics, the reading of its last points, and their start and time, Unix ns."""

    __slots__ = ("metrics", "seen", "start_ns", "time_ns")

    def __init__(self, metrics: list[tuple[str, str, str]]) -> None:
        self.metrics = metrics
        self.seen: monitel.WaitReading | None = None
        self.start_ns = self.time_ns = 0


class WaitReadings:
    """Writes the wait counters of the process. Use it in one thread at a time, except for the two ``refresh`` methods.

    Time and number of waits are monotonic sums. The number of active waits is a sum that is cumulative with delta
    temporality, too. The longest wait is a gauge, with a point if a wait has ended since the last request.

    Keys that the process counts itself are read without a lock. The others, and the longest waits, are read by the
    ``refresh`` methods, which may hang and therefore run in the application's thread.

    Args:
        sums: Makes the points of sums.
        attributes: Attributes of every point.
    """

    def __init__(self, sums: RisingSums, attributes: Sequence[KeyValue]) -> None:
        self._sums = sums
        self._attributes = attributes
        self._maxima = monitel.WaitMaxima()
        self._of_sources: dict[str, monitel.WaitReading] = {}
        self._in_flight: dict[str, int] = {}  # by key of a source: waits that had ended, if another one was active
        self._found: deque[dict[str, float]] = deque()  # longest waits that were read
        self._longest: dict[str, float] = {}
        self._states: dict[str, _State] = {}
        self._failed = False

    def any(self) -> bool:
        """Return True if there is a wait counter."""
        return bool(wait_keys() or self._of_sources)

    def lasting(self, since_ns: int) -> frozenset[Hashable]:
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

    def refresh_own(self) -> None:
        """Read the longest waits of the keys that the process counts itself."""
        self._found.append(self._maxima.read_own())

    def refresh_sources(self) -> None:
        """Call the sources."""
        self._of_sources = source_waits()
        self._found.append(self._maxima.read_sources())

    def readings(self) -> Iterator[tuple[str, monitel.WaitReading]]:
        """Yield the current reading of each key."""
        while self._found:
            for key, seconds in self._found.popleft().items():
                self._longest[key] = max(seconds, self._longest.get(key, 0.0))
        own = set()
        for key, reading in own_waits():
            own.add(key)
            yield key, reading
        yield from ((key, reading) for key, reading in self._of_sources.items() if key not in own)

    def write(self, metrics: Any, key: str, reading: monitel.WaitReading, now_ns: int) -> bool:
        """Add the metrics of a key to a list of metrics. Never raises.

        Returns:
            True if the reading differs from that of the last call.
        """
        try:
            return self._write(metrics, key, reading, now_ns)
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception("wait counter %r cannot be encoded and is left out (others are not logged)", key)
            return False

    def _write(self, metrics: Any, key: str, reading: monitel.WaitReading, now_ns: int) -> bool:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State(wait_metrics(key))
        seen = state.seen
        restarted = seen is not None and (reading.count < seen.count or reading.total < seen.total)
        changed = seen is None or reading.active != seen.active
        start_ns = reading.start_ns or began_ns()
        time, ended, active, longest = state.metrics
        for metric, value in ((time, float(reading.total)), (ended, reading.count)):
            changed |= self._sums.write(
                metric,
                self._attributes,
                [Total(metric, value, start_ns)],
                now_ns,
                partial(self._sums.add_metric, metrics, *metric),
                restarted=restarted,
            )
        if seen is None:  # the number of active waits has the same start after a restart of the sums
            state.start_ns = min(start_ns, now_ns - MILLISECOND_NS)
        state.time_ns = max(now_ns, state.time_ns + MILLISECOND_NS)
        made = _added(metrics, active)
        made.sum.aggregation_temporality = _CUMULATIVE
        made.sum.data_points.append(number_point(self._attributes, state.start_ns, state.time_ns, reading.active))
        seconds = self._longest.pop(key, None)
        if seconds is not None:
            points = _added(metrics, longest).gauge.data_points
            points.append(number_point(self._attributes, 0, state.time_ns, seconds))
        state.seen = reading
        return changed or seconds is not None


def _added(metrics: Any, metric: tuple[str, str, str]) -> Any:
    name, unit, description = metric
    return metrics.add(name=name, unit=unit, description=description)
