"""Conversion of counters, and of the process's step and goodput, to OpenTelemetry instruments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

import monitel
from monitel.readings import counter_names
from monitel.training_time import DESCRIPTION, GOODPUT, NAME, UNIT, goodput
from monitel_otel.names import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import CallbackOptions, Meter


class CounterInstruments:
    """Observes every counter of the process, with its bare name, and its step and goodput.

    Args:
        meter: Creates the instruments.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._known: set[str] = set()  # names of counters
        meter.create_observable_gauge("training.step", [_gauge(monitel.get_step)], "{step}", "Step of the process")
        name, unit, description = GOODPUT
        meter.create_observable_gauge(name, [_gauge(goodput)], unit, description)
        self.refresh()
        # A job that only sets steps and enters activities logs no event after which the instrument could be created.
        if NAME not in self._known:
            self._create(NAME, UNIT, DESCRIPTION)

    def refresh(self) -> None:
        """Create the instruments of new names. Not while a reader collects, because the SDK holds its lock then."""
        if counter_names() <= self._known:
            return
        for counter, *_ in monitel.counters():
            if counter.name not in self._known:
                description = counter_description(counter, NAMES.of_counter(counter.name))
                self._create(counter.name, counter.unit, description)

    def _create(self, name: str, unit: str, description: str) -> None:
        self._known.add(name)
        self._meter.create_observable_counter(NAMES.of_counter(name), [_observe(name)], unit, description)


def _observe(name: str) -> Callable[[CallbackOptions], list[Observation]]:
    """Return a callback that observes all counters of a name."""

    def observe(_options: CallbackOptions) -> list[Observation]:
        return [
            Observation(total, dict(counter.attributes))
            for counter, total, _ in monitel.counters()
            if counter.name == name
        ]

    return observe


def _gauge(read: Callable[[], float | None]) -> Callable[[CallbackOptions], list[Observation]]:
    """Return a callback that observes a value, if it is known."""

    def observe(_options: CallbackOptions) -> list[Observation]:
        value = read()
        return [] if value is None else [Observation(value)]

    return observe


def counter_description(counter: monitel.Counter, metric: str) -> str:
    """Return a metric's description: that of the counter, and the counter's name if the metric has another one."""
    if metric == counter.name:
        return counter.description
    note = f"Counted as {counter.name!r}"
    return f"{counter.description} ({note})" if counter.description else note
