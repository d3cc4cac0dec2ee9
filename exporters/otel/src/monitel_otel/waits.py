"""Wait counters as OpenTelemetry instruments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

import monitel
from monitel_otel.names import MetricNames

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import CallbackOptions, Meter


class WaitInstruments:
    """Observes every wait counter of the process: ``<key>.time``, ``.count``, ``.active`` and ``.max``.

    ``.max`` is the longest wait that has ended since the last collect; there is no point when none has.

    Args:
        meter: Makes the instruments.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._names = MetricNames()
        self._maxima = monitel.WaitMaxima()
        self._longest: dict[str, float] = {}
        self._known: set[str] = set()

    def refresh(self) -> None:
        """Make the instruments of keys that are new. Not while a reader collects: the SDK locks both."""
        for key in monitel.wait_counters().keys() - self._known:
            self._known.add(key)
            self._make(key)

    def _make(self, key: str) -> None:
        name = self._names.of(key)

        def observe(read: Callable[[monitel.WaitReading], float]) -> Callable[[CallbackOptions], list[Observation]]:
            return lambda _options: [Observation(read(monitel.wait_counters()[key]))]

        meter = self._meter
        meter.create_observable_counter(f"{name}.time", [observe(lambda waits: waits.total)], "s", "Time spent waiting")
        meter.create_observable_counter(f"{name}.count", [observe(lambda waits: waits.count)], "{wait}", "Waits ended")
        meter.create_observable_up_down_counter(
            f"{name}.active", [observe(lambda waits: waits.active)], "{wait}", "Waits in flight"
        )
        meter.create_observable_gauge(
            f"{name}.max", [lambda _options: self._observe_max(key)], "s", "The longest wait since the last collect"
        )

    def _observe_max(self, key: str) -> list[Observation]:
        self._longest.update(self._maxima.read())
        longest = self._longest.pop(key, None)
        return [] if longest is None else [Observation(longest)]
