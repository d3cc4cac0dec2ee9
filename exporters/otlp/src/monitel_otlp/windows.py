"""Closed windows on their way out: a bounded queue, and the running totals of each series."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from monitel_otel import MetricNames, describe

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    import monitel


@dataclass(slots=True, eq=False)
class Series:
    """What all windows of one name and of the same attributes share, whichever Stats they come from.

    Attributes:
        name: The metric's.
        description: The metric's.
        attributes: Of every point.
        count: Samples so far.
        sum: The samples' sum so far, of windows whose sum is finite.
        end_ns: Time of its latest point; written where windows are encoded.
        signed: A sample was negative; written there too.
    """

    name: str
    description: str
    attributes: tuple[KeyValue, ...]
    count: int = 0
    sum: float = 0.0
    end_ns: int = 0
    signed: bool = False


class Entry(NamedTuple):
    """A window, and its series' totals with it counted in."""

    window: monitel.Window
    series: Series
    total_count: int
    total_sum: float


class WindowQueue:
    """Takes windows in the thread that closes them, and gives them to the delivery thread.

    When it is full the oldest window is dropped and counted. Totals are fixed when a window comes in,
    so cumulative counts and sums are right whatever is dropped, and outlive the Stats. A window whose sum is not finite
    is left out of the total and counted in ``nonfinite``; samples that ``max_samples`` kept out, in ``discarded``.

    Args:
        limit: Windows that it holds.
        attributes: Put on every point, beside the Stat's own, e.g. the rank.
    """

    def __init__(self, limit: int, attributes: Mapping[str, str | int] | None = None) -> None:
        self._dropped = 0
        self.nonfinite = 0
        self.discarded = 0
        self._limit = limit
        self._lock = RLock()  # a garbage collection inside may destruct a Stat, which logs its last window
        self._entries: deque[Entry] = deque()
        self._attributes = attributes or {}
        self._names = MetricNames()
        self._series: dict[Hashable, Series] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, window: monitel.Window) -> None:
        """Take one window."""
        definition = window.definition
        name = self._names.of(definition.name)
        key = name if not definition.attributes else (name, _attribute_set(definition))
        with self._lock:
            series = self._series.get(key)
            if series is None:
                series = self._series[key] = self._new_series(name, definition)
            self.discarded += window.discarded
            series.count += window.count
            if math.isfinite(window.sum):
                series.sum += window.sum
            else:
                self.nonfinite += 1
            self._entries.append(Entry(window, series, series.count, series.sum))
            if len(self._entries) > self._limit:
                self._entries.popleft()
                self._dropped += 1

    def _new_series(self, name: str, definition: monitel.StatDefinition) -> Series:
        attributes = {**definition.attributes, **self._attributes}
        encoded = tuple(_key_value(key, value) for key, value in attributes.items())
        return Series(name, describe(definition.name, definition.description), encoded)

    def take_dropped(self) -> int:
        """Windows dropped since this was last asked."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def take(self, limit: int) -> list[Entry]:
        """Up to ``limit`` windows, oldest first; they are in the queue no more."""
        with self._lock:
            return [self._entries.popleft() for _ in range(min(limit, len(self._entries)))]


def _attribute_set(definition: monitel.StatDefinition) -> Hashable:
    """Attributes as a key: ``True`` and ``1`` are apart, as in the protocol."""
    return frozenset((key, type(value), value) for key, value in definition.attributes.items())


def _key_value(key: str, value: str | float) -> KeyValue:
    message = KeyValue(key=key)
    if isinstance(value, bool):
        message.value.bool_value = value
    elif isinstance(value, str):
        message.value.string_value = value
    elif isinstance(value, int):
        message.value.int_value = value
    else:
        message.value.double_value = value
    return message
