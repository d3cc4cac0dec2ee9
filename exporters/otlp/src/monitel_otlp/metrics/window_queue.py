"""Queue of closed windows, and the running totals of each series."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.attributes import typed_items
from monitel.bounded_queue import BoundedQueue
from monitel_otel import MetricNames
from monitel_otlp.messages.attributes import key_values

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    import monitel

_log = logging.getLogger("monitel.otlp")

SERIES_LIMIT = 2000  # as in OpenTelemetry's SDK
_OVERFLOW = "otel.metric.overflow"
_WINDOW_BYTES, _BUCKET_BYTES = 512, 8


@dataclass(slots=True, eq=False)
class Series:
    """The windows with one name and one set of attributes, of any number of Stats.

    Attributes:
        name: The metric name.
        definition: Definition of the first Stat with the name, which decides the metric's unit and monotonicity.
        attributes: Attributes of every point.
        count: Number of samples so far.
        sum: Sum of the samples so far, without windows whose sum is not finite.
        signed: A sample was negative.
        end_ns: Time of the latest point; set by the encoder.
        histogram: Distribution of the samples so far; set by the encoder, because merging takes too long for the
            training loop.
        dropped: Distributions of windows that were dropped from the queue and are not in ``histogram`` yet.
    """

    name: str
    definition: monitel.StatDefinition
    attributes: tuple[KeyValue, ...]
    count: int = 0
    sum: float = 0.0
    signed: bool = False
    end_ns: int = 0
    histogram: monitel.Histogram | None = None
    dropped: deque[monitel.Histogram] = field(default_factory=deque)

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


class Entry(NamedTuple):
    """A window in the queue.

    Attributes:
        window: The window.
        series: The series of the window.
        finite_sum: The window's sum if it is finite.
        total_count: Number of the series' samples up to this window.
        total_sum: Sum of the series' samples up to this window.
    """

    window: monitel.Window
    series: Series
    finite_sum: float | None
    total_count: int
    total_sum: float


class WindowQueue:
    """Receives windows in the thread that closes them, and keeps them for the encoder.

    When the queue is full, the oldest window is dropped and counted. Totals are computed when a window is put into the
    queue, so that cumulative counts and sums are correct even if windows are dropped, and outlive the Stats.
    ``nonfinite`` counts windows whose sum is not finite and therefore not in the total, ``discarded`` the samples that
    ``max_samples`` kept out.

    A name has at most ``series_limit`` sets of attributes. Windows with further sets go into one series with the
    attribute ``otel.metric.overflow``, as in OpenTelemetry's SDK; this is logged once.

    Args:
        limit: The most windows in the queue.
        limit_bytes: The most estimated bytes in the queue.
        attributes: Attributes for every point that does not have them, e.g. the rank.
        series_limit: The most sets of attributes of one name.
        wake: Called when the queue becomes half full.
    """

    def __init__(
        self,
        limit: int,
        limit_bytes: int = 64 << 20,
        attributes: Mapping[str, str | int] | None = None,
        *,
        series_limit: int = SERIES_LIMIT,
        wake: Callable[[], object] | None = None,
    ) -> None:
        self.nonfinite = 0
        self.discarded = 0
        self.queue: BoundedQueue[Entry] = BoundedQueue(limit, limit_bytes, wake=wake, evicted=_keep_distribution)
        self._lock = RLock()  # a garbage collection inside may destruct a Stat, which logs its last window
        self._attributes = dict(attributes or {})
        self._series_limit = series_limit
        self._names = MetricNames()
        self._definitions: dict[str, monitel.StatDefinition] = {}
        self._different: set[str] = set()
        self._series: dict[Hashable, Series] = {}
        self._series_of_name: Counter[str] = Counter()
        self._overflowing: set[str] = set()

    def __len__(self) -> int:
        return len(self.queue)

    def put(self, window: monitel.Window) -> None:
        """Append a window, and update the totals of its series."""
        series = self._series_of(window.definition)
        finite_sum = window.sum if math.isfinite(window.sum) else None
        histogram = window.histogram
        size = _WINDOW_BYTES
        if histogram is not None:
            size += _BUCKET_BYTES * (len(histogram.positive) + len(histogram.negative))
        with self._lock:
            self.discarded += window.discarded
            series.count += window.count
            if finite_sum is None:
                self.nonfinite += 1
            else:
                series.sum += finite_sum
            if window.min < 0:
                series.signed = True
            self.queue.put(Entry(window, series, finite_sum, series.count, series.sum), size)

    def _series_of(self, definition: monitel.StatDefinition) -> Series:
        name = self._names.of(definition.name)
        first = self._definitions.setdefault(name, definition)
        if first is not definition and (first.unit, first.monotonic) != (definition.unit, definition.monotonic):
            self._warn_of_difference(first, definition)
        attributes = definition.attributes
        if not attributes and not self._attributes:
            return self._series.get(name) or self._new_series(name, name, first, {})
        attributes = {**self._attributes, **attributes}
        key = _identity(name, attributes)
        return self._series.get(key) or self._new_series(key, name, first, attributes)

    def _new_series(
        self, key: Hashable, name: str, definition: monitel.StatDefinition, attributes: Mapping[str, Any]
    ) -> Series:
        overflows = False
        with self._lock:
            if key not in self._series and self._series_of_name[name] >= self._series_limit:
                attributes = {**self._attributes, _OVERFLOW: True}
                key = _identity(name, attributes)
                overflows = name not in self._overflowing
                self._overflowing.add(name)
            series = self._series.get(key)
            if series is None:
                series = self._series[key] = Series(name, definition, tuple(key_values(attributes)))
                self._series_of_name[name] += 1
        if overflows:
            _log.warning(
                "%r has more than %d sets of attributes: further sets are sent as one series with %s=true",
                *(definition.name, self._series_limit, _OVERFLOW),
            )
        return series

    def _warn_of_difference(self, first: monitel.StatDefinition, other: monitel.StatDefinition) -> None:
        if first.name not in self._different:
            self._different.add(first.name)
            _log.warning(
                "Stats of one metric differ: %r has unit %r and monotonic=%s, %r has unit %r and monotonic=%s; "
                "using those of the first",
                *(first.name, first.unit, first.monotonic),
                *(other.name, other.unit, other.monotonic),
            )


def _identity(name: str, attributes: Mapping[str, Any]) -> Hashable:
    """Return the key of a series; values of different types differ in it, as in the protocol."""
    return name, typed_items(attributes)


def _keep_distribution(dropped: Entry) -> None:
    if dropped.window.histogram is not None:
        dropped.series.drop(dropped.window.histogram)
