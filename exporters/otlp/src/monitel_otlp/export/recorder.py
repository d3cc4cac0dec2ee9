"""The parts of the record that only a backend needs: metric names, ids of traces, and records of Python's logging."""

from __future__ import annotations

import logging
import marshal
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry.context import get_current
from opentelemetry.trace import get_current_span

import monitel
from monitel.attributes import typed_items
from monitel.blackbox.forms import STAT, LogRecord
from monitel.blackbox.record import EVENT
from monitel.blackbox.recorder import Recorder, Series, SeriesTable
from monitel.process.failures import warn_once
from monitel.process.os_threads import RLock
from monitel_otel.names import NAMES, describe, unit_of_number
from monitel_otlp.messages.attributes import plain_attributes

if TYPE_CHECKING:
    from monitel.blackbox.box import Box
    from monitel_otlp.traces.span_queue import QueuedSpans

_log = logging.getLogger("monitel.otlp")

SERIES_LIMIT = 2000  # as in OpenTelemetry's SDK
_OVERFLOW = "otel.metric.overflow"


class MetricSeries(SeriesTable):
    """The series of windows, logged numbers and counters, no two of which have the same metric name.

    A name has at most ``limit`` sets of attributes. Further sets share one series with the attribute
    ``otel.metric.overflow``, as in OpenTelemetry's SDK; this is logged once. ``attributes`` are added to every point
    that does not have them, e.g. the rank.
    """

    def __init__(self, limit: int, attributes: Mapping[str, str | int]) -> None:
        super().__init__()
        self._limit = limit
        self.attributes = dict(attributes)
        self._identity = typed_items(self.attributes)
        self._lock = RLock()  # a garbage collection inside may destruct a Stat, whose last window needs a series
        self._definitions: dict[str, monitel.StatDefinition] = {}  # of counters and numbers, by metric
        self._series_of_name: Counter[Hashable] = Counter()
        self._overflowing: set[str] = set()  # names that have reached the limit, to be logged

    def of_stat(self, definition: monitel.StatDefinition) -> Series:
        name, first = NAMES.of_stat(definition)
        key = name, self.identity(definition.attributes)
        return self.series.get(key) or self._new(key, name, first, {**self.attributes, **definition.attributes})

    def of_counter(self, counter: monitel.Counter) -> Series:
        key, name = ("counter", counter.name, self.identity(counter.attributes)), counter.name
        found = self.series.get(key)
        return found or self._named(key, "counter", name, counter.unit, counter.attributes, counter.description)

    def identity(self, attributes: Mapping[str, Any]) -> Hashable:
        return typed_items({**self.attributes, **attributes}) if attributes else self._identity

    def _new_of_number(self, key: Hashable, name: str, attributes: Mapping[str, Any]) -> Series:
        return self._named(key, "logged number", name, unit_of_number(name), attributes)

    def _named(  # noqa: PLR0917  of two callers
        self, key: Hashable, kind: str, name: str, unit: str, attributes: Mapping[str, Any], described: str = ""
    ) -> Series:
        """Add a series whose metric has the name of its source; the first source decides unit and description."""
        metric = NAMES.of(kind, name)
        description = describe(kind, name, metric, described)
        definition = monitel.StatDefinition(name, (), unit, description, {}, monotonic=kind == "counter")
        definition = self._definitions.setdefault(metric, definition)
        series = self._new(key, (kind, metric), definition, {**self.attributes, **attributes})
        self.warn()
        return series

    def _new(
        self,
        key: Hashable,
        owner: str | tuple[str, str],
        definition: monitel.StatDefinition,
        attributes: Mapping[str, Any],
    ) -> Series:
        """Add a series with a key; ``owner`` is the metric name, after the kind of its source unless that is a Stat."""
        name = owner if isinstance(owner, str) else owner[1]
        with self._lock:
            if key not in self.series and self._series_of_name[owner] >= self._limit:
                attributes = {**self.attributes, _OVERFLOW: True}
                key = owner, typed_items(attributes)
                self._overflowing.add(definition.name)
            # May destruct a Stat with the same key.
            created = Series(name, definition, plain_attributes(dict(attributes)))
            series = self.series.setdefault(key, created)
            if series is created:
                self._series_of_name[owner] += 1
        return series

    def warn(self) -> None:
        """Log the names that have reached the limit. :meth:`of_stat`, called with a lock held, leaves it to others."""
        while self._overflowing:
            name = self._overflowing.pop()
            message = "%r has more than %d sets of attributes: further sets are sent as one series with %s=true"
            warn_once(_log, message, name, self._limit, _OVERFLOW, key=name)


class ExportRecorder(Recorder):
    """Appends windows, numbers, events and records of Python's logging, with the ids of the ranges around them."""

    def __init__(self, box: Box, table: MetricSeries, ranges: QueuedSpans | None) -> None:
        super().__init__(box, table, *(() if ranges is None else (ranges.open_ranges,)))
        self._ranges = ranges

    def record(self, record: LogRecord | None) -> None:
        """Append a record of Python's logging; None for one that cannot be converted, which is counted as lost."""
        if record is None:
            self._logs.lose("encoding")
            return
        if self.is_idle:
            self.begin()
        trace_id, span_id, flags = self._ids() or (b"", b"", 0)
        complete = record._replace(trace_id=trace_id, span_id=span_id, flags=flags)
        try:
            payload = marshal.dumps(tuple(complete), 2)
        except ValueError:
            self._logs.lose("encoding")
        else:
            self._logs.append(EVENT, payload)

    def _describe(self, kind: str, series: Series) -> str:
        first = series.definition
        return describe("Stat", first.name, series.name, first.description) if kind == STAT else first.description

    def _ids(self) -> tuple[()] | tuple[bytes, bytes, int]:
        inside = None if self._ranges is None else self._ranges.innermost()
        if inside is not None:
            return inside.trace_id, inside.span_id, 1
        if not get_current():  # an empty context, as usual
            return ()
        context = get_current_span().get_span_context()
        if not context.trace_id:
            return ()
        return context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"), int(context.trace_flags)
