"""Conversion of counters, of step and goodput, and of wait counters to observable OpenTelemetry instruments."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.metrics import Observation

import monitel
from monitel.readings import counter_names
from monitel.training_time import DESCRIPTION, GOODPUT, NAME, UNIT, goodput
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
            >>> from monitel_otel.observed import WaitMetrics
            >>> [metric.name for metric in WaitMetrics.of("data.loading")]
            ['data.loading.wait.time', 'data.loading.wait.count', 'data.loading.wait.active', 'data.loading.wait.max']
        """
        name = NAMES.of("wait counter", key)
        described = zip(WAITS.items(), _DESCRIPTIONS, strict=True)
        return cls(
            *(
                WaitMetric(f"{name}{suffix}", unit, describe("wait counter", key, name, text))
                for (suffix, (unit, _)), text in described
            )
        )


_DESCRIPTIONS = (
    "Time spent waiting",
    "Waits that have ended",
    "Waits in progress",
    "The longest wait that ended since the last export",
)


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
