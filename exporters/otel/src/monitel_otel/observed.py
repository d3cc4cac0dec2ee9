"""Conversion of counters, of step and goodput, and of wait counters to observable OpenTelemetry instruments."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

import monitel
from monitel.readings import counter_names
from monitel.training.training_time import DESCRIPTION, GOODPUT, NAME, UNIT, goodput
from monitel_otel.names import NAMES, WAITS, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions, Meter

    Callback = Callable[[CallbackOptions], Iterable[Observation]]


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
                self._create(counter.name, counter.unit, counter.description)

    def _create(self, name: str, unit: str, description: str) -> None:
        def observe(_options: CallbackOptions) -> list[Observation]:
            readings = [each for each in monitel.counters() if each.counter.name == name]
            return [Observation(each.total, dict(each.counter.attributes)) for each in readings]

        self._known.add(name)
        metric = NAMES.of("counter", name)
        self._meter.create_observable_counter(metric, [observe], unit, describe("counter", name, metric, description))


def _gauge(read: Callable[[], float | None]) -> Callback:
    """Return a callback that observes a value, if it is known."""

    def observe(_options: CallbackOptions) -> list[Observation]:
        value = read()
        return [] if value is None else [Observation(value)]

    return observe


_DESCRIPTIONS = (
    "Time spent waiting",
    "Waits that have ended",
    "Waits in progress",
    "The longest wait that ended since the last export",
)


def wait_metrics(key: str) -> list[tuple[str, str, str]]:
    """Return name, unit and description of each metric of a wait counter, in the order of :data:`WAITS`.

    Example:
        >>> from monitel_otel.observed import wait_metrics
        >>> [name for name, *_ in wait_metrics("data.loading")]
        ['data.loading.wait.time', 'data.loading.wait.count', 'data.loading.wait.active', 'data.loading.wait.max']
    """
    name = NAMES.of("wait counter", key)
    described = zip(WAITS.items(), _DESCRIPTIONS, strict=True)
    return [
        (f"{name}{suffix}", unit, describe("wait counter", key, name, text)) for (suffix, (unit, _)), text in described
    ]


class WaitInstruments:
    """Observes every wait counter of the process, with the names of :func:`wait_metrics`.

    ``.wait.max`` is the longest wait that has ended since the last collection, and has no point without such a wait.

    Args:
        meter: Creates the instruments.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._maxima = monitel.WaitMaxima()
        self._longest: dict[str, float] = {}  # since the last collection, by key
        self._known: set[str] = set()

    def refresh(self) -> None:
        """Create the instruments of new keys. Not while a reader collects, because the SDK holds its lock then."""
        for key in monitel.wait_counters():
            if key not in self._known:
                self._known.add(key)
                self._make(key)

    def _make(self, key: str) -> None:
        meter, (time, ended, active, longest) = self._meter, wait_metrics(key)
        for create, (name, unit, description), field in (
            (meter.create_observable_counter, time, "total"),
            (meter.create_observable_counter, ended, "count"),
            (meter.create_observable_up_down_counter, active, "active"),
            (meter.create_observable_gauge, longest, "max"),
        ):
            create(name, [partial(self._observe, field, key)], unit, description)

    def _observe(self, field: str, key: str, _options: CallbackOptions) -> list[Observation]:
        if field == "max":
            for each, seconds in self._maxima.read().items():
                self._longest[each] = max(seconds, self._longest.get(each, 0.0))
            value = self._longest.pop(key, None)
        else:
            value = getattr(monitel.wait_counters().get(key), field, None)
        return [] if value is None else [Observation(value)]
