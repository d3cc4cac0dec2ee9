"""Closed windows on their way out: a bounded queue, and the running totals of each series."""

from __future__ import annotations

import logging
import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

from monitel_otel import MetricNames
from monitel_otlp.attributes import key_values

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    import monitel

_log = logging.getLogger("monitel.otlp")


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


class WindowQueue:
    """Takes windows in the thread that closes them, and gives them to the delivery thread.

    When it is full the oldest window is dropped and counted. Totals are fixed when a window comes in,
    so cumulative counts and sums are right whatever is dropped, and outlive the Stats. A window whose sum is not finite
    is left out of the total and counted in ``nonfinite``; samples that ``max_samples`` kept out, in ``discarded``.

    Args:
        limit: Windows that it holds.
        attributes: Put on every point that has none of that name, e.g. the rank.
    """

    def __init__(self, limit: int, attributes: Mapping[str, str | int] | None = None) -> None:
        self._dropped = 0
        self.nonfinite = 0
        self.discarded = 0
        self._limit = limit
        self._lock = RLock()  # a garbage collection inside may destruct a Stat, which logs its last window
        self._entries: deque[Entry] = deque()
        self._attributes = dict(attributes or {})
        self._names = MetricNames()
        self._definitions: dict[str, monitel.StatDefinition] = {}
        self._different: set[str] = set()
        self._series: dict[Hashable, Series] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, window: monitel.Window) -> None:
        """Take one window."""
        series = self._series_of(window.definition)
        finite_sum = window.sum if math.isfinite(window.sum) else None
        with self._lock:
            self.discarded += window.discarded
            series.count += window.count
            if finite_sum is None:
                self.nonfinite += 1
            else:
                series.sum += finite_sum
            if window.min < 0:
                series.signed = True
            self._entries.append(Entry(window, series, finite_sum, series.count, series.sum))
            if len(self._entries) > self._limit:
                oldest = self._entries.popleft()
                self._dropped += 1
                if oldest.window.histogram is not None:
                    oldest.series.drop(oldest.window.histogram)

    def _series_of(self, definition: monitel.StatDefinition) -> Series:
        name = self._names.of(definition.name)
        first = self._definitions.setdefault(name, definition)
        if first is not definition and (first.unit, first.monotonic) != (definition.unit, definition.monotonic):
            self._say_different(first, definition)
        key: Hashable = name
        attributes = definition.attributes
        if attributes or self._attributes:
            attributes = {**self._attributes, **attributes}
            # True and 1 are apart, as in the protocol.
            key = name, frozenset((attribute, type(value), value) for attribute, value in attributes.items())
        series = self._series.get(key)
        if series is None:
            encoded = tuple(key_values(attributes))
            series = self._series.setdefault(key, Series(name, first, encoded))
        return series

    def _say_different(self, first: monitel.StatDefinition, other: monitel.StatDefinition) -> None:
        if first.name not in self._different:
            self._different.add(first.name)
            _log.warning(
                "Stats of one metric differ: %r has unit %r and monotonic=%s, %r has %r and %s; the first's are sent",
                *(first.name, first.unit, first.monotonic),
                *(other.name, other.unit, other.monotonic),
            )

    def take_dropped(self) -> int:
        """Windows dropped since this was last asked."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def take(self, limit: int) -> list[Entry]:
        """Up to ``limit`` windows, oldest first; they are in the queue no more."""
        with self._lock:
            return [self._entries.popleft() for _ in range(min(limit, len(self._entries)))]
