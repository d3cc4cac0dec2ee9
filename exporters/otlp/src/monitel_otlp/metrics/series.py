"""Series of metrics: one name and one set of attributes, with the running totals, and the limit of their number."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import monitel
from monitel.attributes import typed_items
from monitel_otel.names import NAMES, describe, unit_of_number
from monitel_otlp.messages.attributes import key_values

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.os_threads import RLock
    from monitel_otlp.metrics.mapping import WindowMapping

MILLISECOND_NS = 1_000_000  #: Prometheus keeps the first of two points that are closer.
_EARLIEST_NS = 30 * 60 * 10**9  # Prometheus refuses samples that are an hour older than its latest one


def start_point_ns(start_ns: int, begin_ns: int, first_ns: int) -> int:
    """Return the time of the start point of a sum.

    It is at least 1 ms, and at most 30 minutes, before the first point, and not before the start time.

    Args:
        start_ns: Start time that the points carry, Unix ns; at least 1 ms before the first point.
        begin_ns: Time at which the sum was still zero, Unix ns.
        first_ns: Time of the first point, Unix ns.
    """
    return max(start_ns, min(begin_ns, first_ns - MILLISECOND_NS), first_ns - _EARLIEST_NS)


_latest: dict[Hashable, WindowMapping] = {}  # the last pipeline of each resource in this process


def end_of_earlier_pipelines_ns(resource: Hashable, mapping: WindowMapping) -> int:
    """Return the time before which no point of a new pipeline starts; 0 if it is the first one of the resource.

    An earlier pipeline has exported the same series up to a millisecond before.
    """
    earlier, _latest[resource] = _latest.get(resource), mapping
    return 0 if earlier is None or not earlier.newest_ns else earlier.newest_ns + MILLISECOND_NS


class LoggedNumber:
    """A number of ``monitel.log()`` in the queue. Later values of the same millisecond replace its value.

    Args:
        series: The series of the number.
        value: The number.
        time_ns: Time of the call, Unix ns.
        lock: Held while the value is replaced or taken.
    """

    __slots__ = ("_lock", "_taken", "_value", "series", "time_ns")

    def __init__(self, series: Series, value: Any, time_ns: int, lock: RLock) -> None:
        self.series = series
        self.time_ns = time_ns
        self._value = value
        self._lock = lock
        self._taken = False

    @property
    def value(self) -> Any:
        """The value so far."""
        return self._value

    def replace(self, value: Any, time_ns: int) -> bool:
        """Replace the value by one of the next millisecond, and return True, unless the value is taken already.

        The time stays, so that queued numbers of a series are at least a millisecond apart. Hold the lock.
        """
        if self._taken or not 0 <= time_ns - self.time_ns < MILLISECOND_NS:
            return False
        self._value = value
        return True

    def take(self) -> Any:
        """Return the value, which is final from now on."""
        with self._lock:
            self._taken = True
        return self._value


_log = logging.getLogger("monitel.otlp")

SERIES_LIMIT = 2000  # as in OpenTelemetry's SDK
_OVERFLOW = "otel.metric.overflow"


@dataclass(slots=True, eq=False)
class Series:
    """One name and one set of attributes: the windows of any number of Stats, logged numbers, or a counter.

    Attributes:
        name: The metric name.
        definition: Definition of the first Stat with the name, which decides the metric's unit and monotonicity.
        attributes: Attributes of every point.
        count: Number of samples so far.
        sum: Sum of the samples so far, without windows whose sum is not finite. It is also without windows whose sum is
            negative, if the series is monotonic.
        begin_ns: Earliest start of a window, even if the window was dropped from the queue; 0 before. Unix ns.
        start_ns: Start of cumulative points, Unix ns; set by the encoder, constant from the first point on.
        begun: Suffixes of the cumulative sums that have a point; set by the encoder.
        end_ns: Time of the latest point, at first that of earlier pipelines; set by the encoder.
        histogram: Distribution of the samples so far; set by the encoder, because merging takes too long for the
            training loop.
        dropped: Distributions of windows that were dropped from the queue and are not in ``histogram`` yet.
        latest: The last window that a Stat has closed; None before, and for numbers and counters.
        windows: Number of windows in ``largest``.
        largest: Sum of the largest samples of the windows in ``sum``.
    """

    name: str
    definition: monitel.StatDefinition
    attributes: tuple[KeyValue, ...]
    count: int = 0
    sum: float = 0.0
    begin_ns: int = 0
    start_ns: int = 0
    begun: frozenset[str] = frozenset()
    end_ns: int = 0
    histogram: monitel.Histogram | None = None
    dropped: deque[monitel.Histogram] = field(default_factory=deque)
    latest: monitel.Window | None = None
    windows: int = 0
    largest: float = 0.0

    def finite(self, window_sum: float) -> float | None:
        """Return the sum of a window as it counts in the total; None if it is left out of it, see :attr:`sum`."""
        falls = self.definition.monotonic and window_sum < 0
        return window_sum if math.isfinite(window_sum) and not falls else None

    def drop(self, histogram: monitel.Histogram) -> None:
        """Add the distribution of a dropped window to the total."""
        with suppress(IndexError):
            histogram = self.dropped.pop().merge(histogram)
        self.dropped.append(histogram)

    def total(self, histogram: monitel.Histogram) -> monitel.Histogram:
        """Add the distribution of the next window to the total, and return the total."""
        with suppress(IndexError):
            while True:
                histogram = self.dropped.popleft().merge(histogram)
        if self.histogram is not None:
            histogram = self.histogram.merge(histogram)
        self.histogram = histogram
        return histogram


class SeriesTable:
    """The series of windows, logged numbers and counters, and the attributes of wait counters and of the step.

    No two of them have the same metric name, see :class:`monitel_otel.names.MetricNames`.

    A name has at most ``limit`` sets of attributes. Further sets share one series with the attribute
    ``otel.metric.overflow``, as in OpenTelemetry's SDK; this is logged once.

    Args:
        limit: The most sets of attributes of one name.
        attributes: Attributes for every point that does not have them, e.g. the rank.
        lock: Held while a series is added.
        after_ns: No point starts, or is, earlier, Unix ns.
    """

    def __init__(self, limit: int, attributes: Mapping[str, str | int] | None, lock: RLock, after_ns: int = 0) -> None:
        self._after_ns = after_ns
        self._limit = limit
        self._attributes = dict(attributes or {})
        self._identity = typed_items(self._attributes)
        self._lock = lock
        self._counter_definitions: dict[str, monitel.StatDefinition] = {}
        self._series: dict[Hashable, Series] = {}
        self._series_of_name: Counter[Hashable] = Counter()
        self._overflowing: set[Hashable] = set()

    def of_stat(self, definition: monitel.StatDefinition) -> Series:
        """Return the series of a Stat's windows."""
        name, first = NAMES.of_stat(definition)
        attributes = definition.attributes
        if not attributes and not self._attributes:
            return self._series.get(name) or self._new(name, name, name, first, {})
        attributes = {**self._attributes, **attributes}
        key = name, typed_items(attributes)
        return self._series.get(key) or self._new(key, name, name, first, attributes)

    def of_number(self, name: str, attributes: Mapping[str, Any], identity: Hashable) -> Series:
        """Return the series of a logged number.

        Args:
            name: The number's name.
            attributes: The attributes of the call.
            identity: Result of :meth:`identity` for these attributes.
        """
        metric = NAMES.of("logged number", name)
        key = "number", metric, identity
        return self._series.get(key) or self._new_of_number(key, name, metric, attributes)

    def of_counter(self, counter: monitel.Counter) -> Series:
        """Return the series of a counter."""
        metric = NAMES.of("counter", counter.name)
        key = "counter", metric, self.identity(counter.attributes)
        return self._series.get(key) or self._new_of_counter(key, metric, counter)

    def all(self) -> list[Series]:
        """Return all series so far. Takes no lock."""
        return list(self._series.values())

    def attributes(self) -> tuple[KeyValue, ...]:
        """Return the attributes that every point has."""
        return tuple(key_values(self._attributes))

    def identity(self, attributes: Mapping[str, Any]) -> Hashable:
        """Return a key that identifies the attributes of the points of a ``monitel.log()`` call or a counter."""
        return typed_items({**self._attributes, **attributes}) if attributes else self._identity

    def _new_of_number(self, key: Hashable, name: str, metric: str, attributes: Mapping[str, Any]) -> Series:
        description = describe("logged number", name, metric)
        definition = monitel.StatDefinition(metric, (), unit_of_number(name), description, {}, monotonic=False)
        return self._new(key, ("number", metric), metric, definition, {**self._attributes, **attributes})

    def _new_of_counter(self, key: Hashable, metric: str, counter: monitel.Counter) -> Series:
        description = describe("counter", counter.name, metric, counter.description)
        definition = monitel.StatDefinition(metric, (), counter.unit, description, {}, monotonic=True)
        definition = self._counter_definitions.setdefault(metric, definition)
        return self._new(key, ("counter", metric), metric, definition, {**self._attributes, **counter.attributes})

    def _new(
        self,
        key: Hashable,
        owner: Hashable,
        name: str,
        definition: monitel.StatDefinition,
        attributes: Mapping[str, Any],
    ) -> Series:
        overflows = False
        with self._lock:
            if key not in self._series and self._series_of_name[owner] >= self._limit:
                attributes = {**self._attributes, _OVERFLOW: True}
                key = owner, typed_items(attributes)
                overflows = owner not in self._overflowing
                self._overflowing.add(owner)
            # May destruct a Stat with the same key.
            created = Series(name, definition, tuple(key_values(attributes)), end_ns=self._after_ns)
            series = self._series.setdefault(key, created)
            if series is created:
                self._series_of_name[owner] += 1
        if overflows:
            _log.warning(
                "%r has more than %d sets of attributes: further sets are sent as one series with %s=true",
                *(definition.name, self._limit, _OVERFLOW),
            )
        return series
