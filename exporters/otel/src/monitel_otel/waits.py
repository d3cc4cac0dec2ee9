"""Conversion of wait counters to OpenTelemetry instruments."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.metrics import Observation

import monitel
from monitel_otel.names import NAMES, WAITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import CallbackOptions, Meter


_DESCRIPTIONS = (
    "Time spent waiting",
    "Waits that have ended",
    "Waits in progress",
    "The longest wait that ended since the last export",
)


class WaitMetric(NamedTuple):
    """Name, unit and description of a metric of a wait counter."""

    name: str
    unit: str
    description: str


class WaitMetrics(NamedTuple):
    """The metrics of a wait counter.

    Attributes:
        time: ``<key>.wait.time``, the duration of the waits that have ended.
        ended: ``<key>.wait.count``, their number.
        active: ``<key>.wait.active``, the number of waits in progress.
        longest: ``<key>.wait.max``, the duration of the longest wait that has ended since the last export.
    """

    time: WaitMetric
    ended: WaitMetric
    active: WaitMetric
    longest: WaitMetric

    @classmethod
    def of(cls, key: str) -> WaitMetrics:
        """Return the metrics of a key.

        Example:
            >>> from monitel_otel import WaitMetrics
            >>> [metric.name for metric in WaitMetrics.of("data.loading")]
            ['data.loading.wait.time', 'data.loading.wait.count', 'data.loading.wait.active', 'data.loading.wait.max']
        """
        name = NAMES.of_wait_counter(key)
        note = "" if name == key else f" (WaitCounter {key!r})"
        described = zip(WAITS.items(), _DESCRIPTIONS, strict=True)
        return cls(*(WaitMetric(f"{name}{suffix}", unit, f"{text}{note}") for (suffix, (unit, _)), text in described))


class WaitInstruments:
    """Observes every wait counter of the process, with the names of :class:`WaitMetrics`.

    ``.wait.max`` is the longest wait that has ended since the last collection, and has no point without such a wait.

    Args:
        meter: Creates the instruments.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._maxima = monitel.WaitMaxima()
        self._longest: dict[str, float] = {}
        self._readings: dict[str, dict[str, monitel.WaitReading]] = {}
        self._asked: dict[str, set[str]] = defaultdict(set)
        self._known: set[str] = set()

    def refresh(self) -> None:
        """Create the instruments of new keys. Not while a reader collects, because the SDK holds its lock then."""
        for key in monitel.wait_counters():
            if key not in self._known:
                self._known.add(key)
                self._make(key)

    def _make(self, key: str) -> None:
        def observe(
            what: str, read: Callable[[monitel.WaitReading], float]
        ) -> Callable[[CallbackOptions], list[Observation]]:
            return lambda _options: [Observation(read(reading)) for reading in self._reading(what, key)]

        meter, metrics = self._meter, WaitMetrics.of(key)
        for create, metric, callback in (
            (meter.create_observable_counter, metrics.time, observe("time", lambda waits: waits.total)),
            (meter.create_observable_counter, metrics.ended, observe("count", lambda waits: waits.count)),
            (meter.create_observable_up_down_counter, metrics.active, observe("active", lambda waits: waits.active)),
            (meter.create_observable_gauge, metrics.longest, lambda _options: self._observe_max(key)),
        ):
            create(metric.name, [callback], metric.unit, metric.description)

    def _reading(self, what: str, key: str) -> list[monitel.WaitReading]:
        """Return the reading of a key in a list, which is empty if its source has removed the key."""
        if self._begins(what, key):
            self._readings[what] = monitel.wait_counters()
        reading = self._readings[what].get(key)
        return [] if reading is None else [reading]

    def _observe_max(self, key: str) -> list[Observation]:
        if self._begins("max", key):
            self._longest.update(self._maxima.read())
        longest = self._longest.pop(key, None)
        return [] if longest is None else [Observation(longest)]

    def _begins(self, what: str, key: str) -> bool:
        """Return True for the first key of a collection, when all keys are read: it is when a key comes again."""
        asked = self._asked[what]
        begins = not asked or key in asked
        if begins:
            asked.clear()
        asked.add(key)
        return begins
