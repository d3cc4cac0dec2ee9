"""Conversion of wait counters to OpenTelemetry instruments."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

import monitel
from monitel_otel.names import MetricNames

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import CallbackOptions, Meter


class WaitInstruments:
    """Observes every wait counter of the process: ``<key>.time``, ``.count``, ``.active`` and ``.max``.

    ``.max`` is the longest wait that has ended since the last collection, and has no point without such a wait.

    Args:
        meter: Creates the instruments.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._names = MetricNames()
        self._maxima = monitel.WaitMaxima()
        self._longest: dict[str, float] = {}
        self._readings: dict[str, dict[str, monitel.WaitReading]] = {}
        self._asked: dict[str, set[str]] = defaultdict(set)
        self._known: set[str] = set()

    def refresh(self) -> None:
        """Create the instruments of new keys. Not while a reader collects, because the SDK holds its lock then."""
        for key in monitel.wait_counters().keys() - self._known:
            self._known.add(key)
            self._make(key)

    def _make(self, key: str) -> None:
        name = self._names.of(key)

        def observe(
            what: str, read: Callable[[monitel.WaitReading], float]
        ) -> Callable[[CallbackOptions], list[Observation]]:
            return lambda _options: [Observation(read(reading)) for reading in self._reading(what, key)]

        meter = self._meter
        meter.create_observable_counter(
            f"{name}.time", [observe("time", lambda waits: waits.total)], "s", "Time spent waiting"
        )
        meter.create_observable_counter(
            f"{name}.count", [observe("count", lambda waits: waits.count)], "{wait}", "Waits ended"
        )
        meter.create_observable_up_down_counter(
            f"{name}.active", [observe("active", lambda waits: waits.active)], "{wait}", "Waits in flight"
        )
        meter.create_observable_gauge(
            f"{name}.max", [lambda _options: self._observe_max(key)], "s", "The longest wait since the last collect"
        )

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
