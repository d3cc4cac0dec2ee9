"""Series of metrics: one name and one set of attributes, with the running totals, and the limit of their number."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import monitel
from monitel.attributes import typed_items
from monitel.blackbox.recorder import Series
from monitel.blackbox.recorder import SeriesTable as PlainTable
from monitel.process.os_threads import RLock
from monitel_otel.names import NAMES, describe, unit_of_number
from monitel_otlp.messages.attributes import key_values, plain_attributes

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

_log = logging.getLogger("monitel.otlp")

SERIES_LIMIT = 2000  # as in OpenTelemetry's SDK
_OVERFLOW = "otel.metric.overflow"


class SeriesTable(PlainTable):
    """The series of windows, logged numbers and counters, and the attributes of wait counters and of the step.

    No two of them have the same metric name, see :class:`monitel_otel.names.MetricNames`.

    A name has at most ``limit`` sets of attributes. Further sets share one series with the attribute
    ``otel.metric.overflow``, as in OpenTelemetry's SDK; this is logged once.

    Args:
        limit: The most sets of attributes of one name.
        attributes: Attributes for every point that does not have them, e.g. the rank.
    """

    def __init__(self, limit: int = SERIES_LIMIT, attributes: Mapping[str, str | int] | None = None) -> None:
        super().__init__()
        self._limit = limit
        self._attributes = dict(attributes or {})
        self._identity = typed_items(self._attributes)
        self._lock = RLock()  # a garbage collection inside may destruct a Stat, whose last window needs a series
        self._counter_definitions: dict[str, monitel.StatDefinition] = {}
        self._series_of_name: Counter[Hashable] = Counter()
        self._overflowing: set[Hashable] = set()
        self._unreported: list[str] = []  # names of series in it that are not logged yet

    def of_stat(self, definition: monitel.StatDefinition) -> Series:
        """Return the series of a Stat's windows."""
        name, first = NAMES.of_stat(definition)
        attributes = definition.attributes
        if not attributes and not self._attributes:
            return self._series.get(name) or self._new(name, name, name, first, {})
        attributes = {**self._attributes, **attributes}
        key = name, typed_items(attributes)
        return self._series.get(key) or self._new(key, name, name, first, attributes)

    def of_counter(self, counter: monitel.Counter) -> Series:
        """Return the series of a counter."""
        key = "counter", counter.name, self.identity(counter.attributes)
        return self._series.get(key) or self._new_of_counter(key, counter)

    def attributes(self) -> tuple[KeyValue, ...]:
        """Return the attributes that every point has."""
        return tuple(key_values(self._attributes))

    def identity(self, attributes: Mapping[str, Any]) -> Hashable:
        """Return a key that identifies the attributes of the points of a ``monitel.log()`` call or a counter."""
        return typed_items({**self._attributes, **attributes}) if attributes else self._identity

    def _new_of_number(self, key: Hashable, name: str, attributes: Mapping[str, Any]) -> Series:
        metric = NAMES.of("logged number", name)
        description = describe("logged number", name, metric)
        definition = monitel.StatDefinition(metric, (), unit_of_number(name), description, {}, monotonic=False)
        series = self._new(key, ("number", metric), metric, definition, {**self._attributes, **attributes})
        self.warn()
        return series

    def _new_of_counter(self, key: Hashable, counter: monitel.Counter) -> Series:
        metric = NAMES.of("counter", counter.name)
        description = describe("counter", counter.name, metric, counter.description)
        definition = monitel.StatDefinition(metric, (), counter.unit, description, {}, monotonic=True)
        definition = self._counter_definitions.setdefault(metric, definition)
        series = self._new(key, ("counter", metric), metric, definition, {**self._attributes, **counter.attributes})
        self.warn()
        return series

    def _new(
        self,
        key: Hashable,
        owner: Hashable,
        name: str,
        definition: monitel.StatDefinition,
        attributes: Mapping[str, Any],
    ) -> Series:
        with self._lock:
            if key not in self._series and self._series_of_name[owner] >= self._limit:
                attributes = {**self._attributes, _OVERFLOW: True}
                key = owner, typed_items(attributes)
                if owner not in self._overflowing:
                    self._overflowing.add(owner)
                    self._unreported.append(definition.name)
            # May destruct a Stat with the same key.
            plain: dict[str, Any] = plain_attributes(dict(attributes))
            created = Series(name, definition, plain)
            series = self._series.setdefault(key, created)
            if series is created:
                self._series_of_name[owner] += 1
        return series

    def warn(self) -> None:
        """Log the names that have reached the limit. :meth:`of_stat`, called with a lock held, leaves it to others."""
        while self._unreported:
            _log.warning(
                "%r has more than %d sets of attributes: further sets are sent as one series with %s=true",
                *(self._unreported.pop(), self._limit, _OVERFLOW),
            )
