"""Closed windows on their way out: a bounded queue, and the running totals of each series."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.bounded_queue import BoundedQueue
from monitel_otel import MetricNames
from monitel_otlp.attributes import key_values

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
    """What all windows of one name and of the same attributes share, whichever Stats they come from.

    Attributes:
        name: The metric's.
        definition: Of the first Stat of that name: it decides the metric's unit, and whether its sum only rises.
        attributes: Of every point.
        count: Samples so far.
        sum: The samples' sum so far, of windows whose sum is finite.
        signed: A sample was negative.
        end_ns: Time of the latest point; written where windows are encoded.
        histogram: The samples' distribution so far; written there too, for it takes longer than a training loop should
            wait.
        dropped: Distributions of windows that were dropped before that.
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
        """Keep a distribution that no point will have, for the total: one that holds all of them."""
        with suppress(IndexError):
            histogram = self.dropped.pop().merge(histogram)
        self.dropped.append(histogram)

    def total(self, histogram: monitel.Histogram) -> monitel.Histogram:
        """The distribution of all windows up to one that comes in its turn."""
        with suppress(IndexError):
            while True:
                histogram = self.dropped.popleft().merge(histogram)
        if self.histogram is not None:
            histogram = self.histogram.merge(histogram)
        self.histogram = histogram
        return histogram


class Entry(NamedTuple):
    """A window, its sum where that is finite, and its series' totals with it counted in.

    That of the distributions is settled later, where windows are encoded.
    """

    window: monitel.Window
    series: Series
    finite_sum: float | None
    total_count: int
    total_sum: float
    total_histogram: monitel.Histogram | None = None
    items: int = 1


class WindowQueue:
    """Takes windows in the thread that closes them, and gives them to the encoder.

    When it is full the oldest window is dropped and counted. Totals are fixed when a window comes in, so cumulative
    counts and sums are right whatever is dropped, and outlive the Stats. A window whose sum is not finite is left out
    of the total and counted in ``nonfinite``; samples that ``max_samples`` kept out, in ``discarded``.

    A name has at most ``series_limit`` attribute sets; the windows of further ones go into one series with the
    attribute ``otel.metric.overflow``, as in OpenTelemetry's SDK, and that is logged once.

    Args:
        limit: Windows that it holds.
        limit_bytes: Estimated bytes that it holds.
        attributes: Put on every point that has none of that name, e.g. the rank.
        series_limit: Attribute sets of one name.
        wake: Called when the queue is half full.
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
        """Take one window."""
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
                "%r has more than %d sets of attributes: further ones are sent as one series with %s=true",
                *(definition.name, self._series_limit, _OVERFLOW),
            )
        return series

    def _warn_of_difference(self, first: monitel.StatDefinition, other: monitel.StatDefinition) -> None:
        if first.name not in self._different:
            self._different.add(first.name)
            _log.warning(
                "Stats of one metric differ: %r has unit %r and monotonic=%s, %r has %r and %s; the first's are sent",
                *(first.name, first.unit, first.monotonic),
                *(other.name, other.unit, other.monotonic),
            )


def _identity(name: str, attributes: Mapping[str, Any]) -> Hashable:
    """Return the identity of a series; True and 1 differ in it, as in the protocol, and NaN equals NaN."""
    return name, frozenset(
        (attribute, type(value), value if value == value else None)  # noqa: PLR0124  NaN differs from itself
        for attribute, value in attributes.items()
    )


def _keep_distribution(dropped: Entry) -> None:
    if dropped.window.histogram is not None:
        dropped.series.drop(dropped.window.histogram)
