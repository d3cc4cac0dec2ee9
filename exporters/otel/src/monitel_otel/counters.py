"""Conversion of counters, and of the process's step, to OpenTelemetry instruments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import Observation

import monitel
from monitel_otel.names import MetricNames

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import CallbackOptions, Meter


class CounterInstruments:
    """Observes every counter of the process, with its bare name, and its step as ``training.step``.

    Counters with the same metric name and the same attributes are observed as their sum.

    Args:
        meter: Creates the instruments.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._names = MetricNames("counters")
        self._metrics: dict[str, str] = {}  # by the counter's name
        meter.create_observable_gauge("training.step", [_observe_step], "{step}", "Step of the process")
        self.refresh()

    def refresh(self) -> None:
        """Create the instruments of new names. Not while a reader collects, because the SDK holds its lock then."""
        for counter, *_ in monitel.counters():
            if counter.name not in self._metrics:
                metric = self._names.of(counter.name)
                is_new = metric not in self._metrics.values()
                self._metrics[counter.name] = metric
                if is_new:
                    description = counter_description(counter, metric)
                    self._meter.create_observable_counter(metric, [self._observe(metric)], counter.unit, description)

    def _observe(self, metric: str) -> Callable[[CallbackOptions], list[Observation]]:
        def observe(_options: CallbackOptions) -> list[Observation]:
            found: dict[frozenset[tuple[str, Any]], Observation] = {}
            for counter, total, _ in monitel.counters():
                if self._metrics.get(counter.name) == metric:
                    key = frozenset(counter.attributes.items())
                    before = found[key].value if key in found else 0
                    found[key] = Observation(before + total, dict(counter.attributes))
            return list(found.values())

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
