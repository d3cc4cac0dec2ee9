"""Conversion of windows, logged numbers, counters, waits, step and goodput to instruments of the OpenTelemetry API."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from opentelemetry.metrics import Observation

import monitel
from monitel.counter import first_of_names
from monitel.process.failures import warn_once
from monitel.training.counters import COUNTERS, GOODPUT, NAME, goodput
from monitel.wait_counter import foreign_waits, wait_keys
from monitel_otel._compat import real, shuts_down
from monitel_otel.names import NAMES, describe, unit_of_number, wait_metrics, with_sent_names
from monitel_otel.scope import SCOPE

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider

_log = logging.getLogger("monitel.otel")

_CUMULATIVE = {monitel.COUNT, monitel.SUM}

NAMES.reserve("monitel.windows", "monitel.stat.nonfinite")
NAMES.reserve("monitel.log.left_out", "monitel.otel.failed", kind="counter")


class Instruments:
    """Writes each window into the instruments of its Stat in the thread that closed it, and logged numbers into gauges.

    COUNT and SUM are cumulative. The other aggregations are gauges, which keep only the last window before a reader
    collects; a warning is logged when this loses a window for the first time. Values that are not finite, and negative
    sums of a monotonic Stat, are left out and counted. Counters and wait counters are observed from the next window,
    number or other event on.
    """

    def __init__(self, meter_provider: MeterProvider) -> None:
        self._provider = meter_provider
        self._meter = meter_provider.get_meter(*SCOPE)
        self._writers: dict[monitel.StatDefinition, tuple[bool, dict[str, Callable[..., None]]]] = {}
        self._instruments: dict[str, Callable[..., None]] = {}
        self._since_collect: set[tuple[str, frozenset[tuple[str, Any]]]] | None = None  # None until a reader collects
        self._maxima = monitel.WaitMaxima()
        self._longest: dict[str, float] = {}  # waits since the last collection, by key
        self._counters: set[str] = set()  # names
        self._wait_keys: set[str] = set()
        self._collecting = False
        self._active = True
        self._nonfinite = self._meter.create_counter(
            "monitel.stat.nonfinite", unit="{value}", description="Values left out because they were not finite"
        )
        self._windows = self._meter.create_counter("monitel.windows", "{window}", "Windows written to instruments")
        steps: list[Any] = [self._collect, partial(_observe, monitel.get_step)]
        self._meter.create_observable_gauge("training.step", steps, "{step}", "Step of the process")
        name, unit, description = GOODPUT
        self._meter.create_observable_gauge(name, [partial(_observe, goodput)], unit, description)
        self.refresh()
        # A job that only sets steps and enters activities logs no event after which the instrument could be created.
        if NAME not in self._counters:
            self._create_counter(NAME, *COUNTERS[NAME])

    def write(self, window: monitel.Window) -> None:
        self.refresh()
        definition = window.definition
        attributes = with_sent_names(definition.attributes) or None  # no dict is faster
        values = window.values()
        known = self._writers.get(definition)
        if known is None:
            metric, first = NAMES.of_stat(definition)
            made = {each: self._instrument(metric, first, each) for each in values}
            known = self._writers[definition] = first.monotonic, made
        monotonic, writers = known
        for suffix, value in values.items():
            falling = monotonic and suffix == "sum" and value < 0
            if falling or not math.isfinite(value):
                self._nonfinite.add(1, {"stat": definition.name, "aggregation": suffix})
            else:
                writers[suffix](window.count if suffix == "count" else value, attributes)
        self._windows.add(1)
        if not self._collecting and shuts_down(self._provider):
            warn_once(
                _log,
                "a window of %r is lost because the MeterProvider has shut down: call monitel.flush() before that, and "
                "record nothing afterwards",
                definition.name,
            )
        self._watch_for_loss(definition)

    def write_numbers(self, numbers: monitel.LoggedNumbers) -> None:
        attributes = with_sent_names(numbers.attributes) or None
        for name, value in numbers.data.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                metric = NAMES.of("logged number", name)
                made = self._made("gauge", metric, unit_of_number(name), describe("logged number", name, metric))
                made(value, attributes)
            else:
                self._nonfinite.add(1, {"stat": name, "aggregation": "logged"})

    def refresh(self) -> None:
        """Create instruments of new counters and waits. Not while a reader collects: the SDK holds its lock then."""
        if self._collecting:
            return
        if not first_of_names().keys() <= self._counters:
            for counter, *_ in monitel.counters():
                if counter.name not in self._counters:
                    self._create_counter(counter.name, counter.unit, counter.description)
        for key in (wait_keys() | foreign_waits().keys()) - self._wait_keys:
            self._create_wait(key)

    def _create_counter(self, name: str, unit: str, description: str) -> None:
        def observe(_options: CallbackOptions) -> list[Observation]:
            readings = [each for each in monitel.counters() if each.counter.name == name]
            return [Observation(each.total, with_sent_names(each.counter.attributes)) for each in readings]

        self._counters.add(name)
        metric = NAMES.of("counter", name)
        described = describe("counter", name, metric, description)
        self._meter.create_observable_counter(metric, [observe], unit, described)

    def _create_wait(self, key: str) -> None:
        def read(field: str) -> Any:
            return getattr(monitel.wait_counters().get(key), field, None)

        self._wait_keys.add(key)
        reads = *(partial(read, field) for field in ("total", "count", "active")), partial(self._take_longest, key)
        kinds = "counter", "counter", "up_down_counter", "gauge"
        for kind, observed, (name, unit, description) in zip(kinds, reads, wait_metrics(key), strict=True):
            create = getattr(self._meter, f"create_observable_{kind}")
            create(name, [partial(_observe, observed)], unit, description)

    def _take_longest(self, key: str) -> float | None:
        for each, seconds in self._maxima.read().items():
            self._longest[each] = max(seconds, self._longest.get(each, 0.0))
        return self._longest.pop(key, None)

    def stop(self) -> None:
        """Close no windows any more before a reader collects. What is observed goes on: the API cannot remove it."""
        self._active = False

    def _instrument(self, metric: str, first: monitel.StatDefinition, suffix: str) -> Callable[..., None]:
        kind = "gauge"
        if suffix in {"count", "sum"}:
            kind = "counter" if first.monotonic or suffix == "count" else "up_down_counter"
        unit = "{sample}" if suffix == "count" else first.unit
        return self._made(kind, f"{metric}.{suffix}", unit, describe("Stat", first.name, metric, first.description))

    def _made(self, kind: str, name: str, *arguments: str) -> Callable[..., None]:
        """Return the function that writes an instrument; one that does nothing if the provider refuses it."""
        if (known := self._instruments.get(name)) is not None:
            return known
        write: Callable[..., None] = lambda *_: None  # noqa: E731  its type is that of the others
        try:
            made = getattr(self._meter, f"create_{kind}")(name, *arguments)
            write = made.set if kind == "gauge" else made.add
        except Exception:
            message = "the MeterProvider refuses %r (further instruments are not logged)"
            warn_once(_log, message, name, exc_info=True)
        return self._instruments.setdefault(name, write)

    def _watch_for_loss(self, definition: monitel.StatDefinition) -> None:
        if self._since_collect is None or _CUMULATIVE.issuperset(definition.aggregations):
            return
        series = definition.name, frozenset(definition.attributes.items())
        if series in self._since_collect:
            warn_once(
                _log,
                "Stat %r closes windows faster than the metric reader collects: gauges keep only the last window, "
                "count and sum are complete. Set OTEL_METRIC_EXPORT_INTERVAL to the window size (milliseconds), "
                "or use monitel_otlp, which delivers every window.",
                definition.name,
            )
        self._since_collect.add(series)

    def _collect(self, _options: CallbackOptions) -> list[Observation]:
        """Close windows before a reader reads their instruments."""
        if not self._active:
            return []
        self._collecting = True
        try:
            if shuts_down(self._provider):
                monitel.flush()
            else:
                monitel.close_expired_windows()
        except Exception:
            _log.exception("an event handler raised while windows were closed for a metric reader")
        finally:
            self._collecting = False
        self._since_collect = set()
        return []


_all: WeakSet[Instruments] = WeakSet()


def instruments_of(provider: MeterProvider) -> Instruments:
    """Return the instruments of a provider, again for a later installation: it would ignore the callbacks of others."""
    known = (each for each in _all if real(each._provider) is real(provider))
    found = next(known, None) or Instruments(provider)
    found._active = True
    _all.add(found)
    return found


def _observe(read: Callable[[], float | None], _options: CallbackOptions) -> list[Observation]:
    value = read()
    return [] if value is None else [Observation(value)]
