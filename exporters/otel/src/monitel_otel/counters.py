"""Conversion of counters, and of the process's step, to OpenTelemetry instruments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

import monitel
from monitel_otel.names import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import CallbackOptions, Meter


class CounterInstruments:
    """Observes every counter of the process, with its bare name, and its step as ``training.step``.

    Args:
        meter: Creates the instruments.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._known: set[str] = set()  # names of counters
        meter.create_observable_gauge("training.step", [_observe_step], "{step}", "Step of the process")
        self.refresh()

    def refresh(self) -> None:
        """Create the instruments of new names. Not while a reader collects, because the SDK holds its lock then."""
        for counter, *_ in monitel.counters():
            if counter.name not in self._known:
                self._known.add(counter.name)
                metric = NAMES.of_counter(counter.name)
                description = counter_description(counter, metric)
                self._meter.create_observable_counter(metric, [_observe(counter.name)], counter.unit, description)


def _observe(name: str) -> Callable[[CallbackOptions], list[Observation]]:
    """Return a callback that observes all counters of a name."""

    def observe(_options: CallbackOptions) -> list[Observation]:
        return [
            Observation(total, dict(counter.attributes))
            for counter, total, _ in monitel.counters()
            if counter.name == name
        ]

    return observe


def _observe_step(_options: CallbackOptions) -> list[Observation]:
    step = monitel.get_step()
    return [] if step is None else [Observation(step)]


def counter_description(counter: monitel.Counter, metric: str) -> str:
    """Return a metric's description: that of the counter, and the counter's name if the metric has another one."""
    if metric == counter.name:
        return counter.description
    note = f"Counted as {counter.name!r}"
    return f"{counter.description} ({note})" if counter.description else note
