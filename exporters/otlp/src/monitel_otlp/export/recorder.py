"""Values of the application become items of the journals, in the thread that records them.

A system call is made only for the first item, which makes the box, and for a new series, which is defined in ``names``.
"""

from __future__ import annotations

import logging
import marshal
import sys
import time
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

from opentelemetry.context import get_current
from opentelemetry.trace import get_current_span

import monitel
from monitel.attributes import escape_surrogates, recordable, text_of
from monitel.blackbox.forms import NUMBER, STAT, Definition, LogRecord
from monitel.blackbox.record import EVENT, NUMBERS, RANGES, SPANS, WINDOW
from monitel.open_windows import forget, live_stats, open_windows
from monitel.os_threads import RLock
from monitel.window_bytes import decode, key, split
from monitel_otel.names import describe
from monitel_otlp.logs.mapping import Timestamps, plain_record
from monitel_otlp.metrics.series import part_of_total
from monitel_otlp.traces.mapping import RangeMapping
from monitel_otlp.values.latest import flat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from monitel.blackbox.box import Box
    from monitel.blackbox.journal import Journal
    from monitel_otlp.metrics.series import Series, SeriesTable
    from monitel_otlp.traces.span_queue import QueuedSpans

_log = logging.getLogger("monitel.otlp")

_RANGES_PER_RECORD = 200
_SHORT = 4096  # bytes of an event in the snapshot
_MOST_ENDED = 1000  # Stats
_taken: set[tuple[int, int]] = set()  # keys of windows that were recorded before they arrived


class Recorder:
    """Appends windows, numbers, events and ranges to the journals of a box. Thread-safe; nothing raises.

    Args:
        box: The box.
        table: The series of the pipeline.
        ranges: The ranges that become spans; None without them.

    Attributes:
        nonfinite: Number of windows whose sum was left out of the total of their series.
        discarded: Number of samples that ``max_samples`` kept out.
        definitions: The definitions by their numbers.
        lost: Number of items of each signal that could not be recorded.
        numbers: The last number of each series of ``monitel.log()``, as in a record: number of the definition, time in
            Unix ns, value.
        config: The configuration of the process, by dotted name.
        folded: Number of ranges that are part of a complete folded span.
        is_idle: Nothing is recorded yet.
        begun: Called when the box was made.
        last_event: The last event other than logged numbers, in marshal format; without its data if that is long.
    """

    def __init__(self, box: Box, table: SeriesTable, ranges: QueuedSpans | None = None) -> None:
        self._box = box
        self._table = table
        self._metrics, self._logs = box.journals["metrics"], box.journals["logs"]
        self._traces, self._steps = box.journals["traces"], box.journals["steps"]
        self._ranges = ranges
        self._range_mapping = RangeMapping()
        self._stats: dict[int, tuple[int, Series]] = {}  # by serial number: number of the definition, series
        self._most = _MOST_ENDED  # number of known Stats, beyond which those that have ended are forgotten
        self._numbers: dict[tuple[Series, tuple[monitel.Aggregation, ...]], int] = {}  # of definitions of Stats
        self._closing: dict[tuple[int, int], int] = {}  # windows being appended: the next item before
        self._ns = Timestamps().ns
        self._failed = False
        self.definitions: dict[int, Definition] = {}
        self.lost: Counter[str] = Counter()
        self.nonfinite = self.discarded = self.folded = 0
        self.numbers: dict[Series, tuple[int, int, Any]] = {}
        self.config: dict[str, Any] = {}
        self.last_event = b""
        self.is_idle = True
        self.begun: Callable[[], object] = lambda: None
        self._beginning, self._defining = RLock(), RLock()

    def begin(self) -> None:
        """Make the box, before the first item. Another thread with its first item waits."""
        with self._beginning:
            if self.is_idle:
                self._box.open()
                self.is_idle = False
                self.begun()

    def window(self, definition: monitel.StatDefinition, window: monitel.Window, content: bytes) -> None:
        """Append a window that closes; a sink of windows."""
        if self.is_idle:
            self.begin()
        serial, key_number = key(content)
        if (found := self._stats.get(serial)) is None:
            found = self._new_stats({serial: definition})[serial]
            self._table.warn()
        number, series = found
        payload = marshal.dumps((number, content), 2)
        finite = part_of_total(window.sum, monotonic=series.definition.monotonic)
        with self._metrics.lock:  # a snapshot has it as an open window, or in the journal
            if (serial, key_number) in _taken:
                return
            self._closing[serial, key_number] = self._metrics.next
            try:
                self._metrics.append(WINDOW, payload)
                forget(serial, key_number)
            except BaseException:  # of a signal handler, before the window is in the journal or afterwards
                self._metrics._finish()
                if self._has_appended((serial, key_number)):
                    forget(serial, key_number)
                raise
            finally:
                del self._closing[serial, key_number]
            series.latest = window
            series.count += window.count
            self.discarded += window.discarded
            if finite is None:
                self.nonfinite += 1
            else:
                series.sum += finite
                series.windows += 1
                series.largest += window.max

    def define_stats(self) -> None:
        """Define the Stats with open windows, so that :meth:`open_windows` has few to define, with the lock held."""
        self._define_stats(open_windows()[1])
        self._table.warn()

    def open_windows(self) -> tuple[bytes, tuple[int, ...]]:
        """Return the open windows, and the numbers of their definitions; with the lock of the journal held."""
        content, serials = open_windows()
        self._define_stats(serials)
        known = self._stats
        return content, tuple(known[serial][0] if serial in known else -1 for serial in serials)

    def take_rest(self) -> None:
        """Append the closed windows that are not recorded yet, or wait for values on a device: their known samples.

        Call it at the end, when windows that close are not recorded any more. These are not recorded again later.
        """
        with self._metrics.lock:
            content, numbers = self.open_windows()
            self._metrics._finish()  # a signal handler that calls this may have interrupted it
            for number, (found, window) in zip(numbers, split(content), strict=True):
                described = next(decode(window))
                if not described.closed:  # samples that other threads add now
                    continue
                _taken.add(found)
                if described.snapshot.count and not self._has_appended(found):
                    if number >= 0:
                        self._metrics.append(WINDOW, self._dumps((number, window)))
                    else:  # its Stat is gone before it was defined
                        self.lose("metrics", 1)
                forget(*found)

    def _has_appended(self, found: tuple[int, int]) -> bool:
        """Return True if a call of :meth:`window` that a signal has interrupted has appended its window."""
        first = self._closing.get(found, sys.maxsize)
        segments = [each for each in self._metrics.segments if each.next > first]
        items = chain.from_iterable(self._metrics.items(each, first) for each in segments)
        return any(item.kind == WINDOW and key(item.value[1]) == found for item in items)

    def event(self, event: monitel.Event) -> None:
        """Append an event other than that of a window; with that of ``monitel.log()`` its numbers, too."""
        if self.is_idle:
            self.begin()
        attributes: dict[str, Any] = event.data
        body: Any = None
        if is_numbers := isinstance(event, monitel.LoggedNumbers):
            self._append_numbers(event)
            attributes, body = dict(event.attributes), event.data
        elif isinstance(event, monitel.RunConfig):
            self.config = {**self.config, **dict(flat(event.config))}
            attributes, body = {}, plain_record(event.config)
        times = event.unix_ns(self._ns), time.time_ns()
        record = *times, int(event.severity), event.name, event.step, attributes, body, *self._ids()
        try:
            payload = marshal.dumps(record, 2)
        except ValueError:  # the data was changed after its check
            payload = self._cleaned(record)
        self._logs.append(EVENT, payload)
        if not is_numbers:
            is_short = len(payload) <= _SHORT
            self.last_event = payload if is_short else marshal.dumps((*record[:5], {"...": "too long"}), 2)

    def record(self, record: LogRecord) -> None:
        """Append a record of Python's logging."""
        if self.is_idle:
            self.begin()
        trace_id, span_id, flags = self._ids() or (b"", b"", 0)
        complete = record._replace(trace_id=trace_id, span_id=span_id, flags=flags)
        try:
            payload = marshal.dumps(tuple(complete), 2)
        except ValueError:
            self.lose("logs", 1)
        else:
            self._logs.append(EVENT, payload)

    def flush_ranges(self, *, last: bool = False) -> None:
        """Append the ranges that have ended, and the spans of ended steps; in one thread at a time.

        Args:
            last: Treat all ranges and steps as ended.
        """
        ranges = self._ranges
        if ranges is None:
            return
        ranges.prepare(last=last)
        if self.is_idle and ranges.queued:
            self.begin()
        for _ in range(0, ranges.queued, _RANGES_PER_RECORD):  # a thread may end ranges as fast as they are taken
            with self._traces.lock:  # a range is queued, or in the journal
                taken = ranges.take(_RANGES_PER_RECORD)
                if not taken:
                    break
                lost = self._append_spans(self._traces, RANGES, [(each, None) for each in taken])
                self.lost["traces"] += lost
        with self._traces.lock:
            finished = ranges.finish(last=last)
            self.folded += sum(attributes.get("monitel.folded.count", 0) for _, attributes in finished)
        for begin in range(0, len(finished), _RANGES_PER_RECORD):
            self._append_spans(self._steps, SPANS, finished[begin : begin + _RANGES_PER_RECORD])

    def _append_spans(self, journal: Journal, kind: int, ended: Sequence[tuple[Any, Any]]) -> int:
        """Append spans, and return the number of those that cannot be recorded; the first one is logged."""
        spans = list[Any]()
        for each in ended:
            try:
                spans.append(self._range_mapping.plain(*each))
            except Exception:
                if not self._failed:
                    self._failed = True
                    _log.warning("a range cannot be recorded (further ones are only counted)", exc_info=True)
        try:
            payload = self._dumps(spans)
        except ValueError:
            spans = [each for each in spans if _is_plain(each)]
            payload = self._dumps(spans)
        if spans:
            journal.append(kind, payload, len(spans))
        return len(ended) - len(spans)

    def lose(self, signal: str, items: int) -> None:
        """Count items that cannot be recorded, with the reason ``encoding``."""
        with self._box.journals[signal].lock:
            self.lost[signal] += items

    def reported(self, names: frozenset[str]) -> list[tuple[int, int, float, int, float]]:
        """Return the number of a definition, and the totals, of each series of some Stats."""
        numbers = self._numbers.copy().items()
        found = {series: number for (series, _), number in numbers if series.definition.name in names}
        return [(number, each.count, each.sum, each.windows, each.largest) for each, number in found.items()]

    def last_numbers(self) -> list[tuple[int, int, Any]]:
        """Return the last number of each series of ``monitel.log()``, as in a record of numbers."""
        return [each for each in self.numbers.copy().values() if type(each[2]) in {int, float}]  # as in the journal

    def _append_numbers(self, logged: monitel.LoggedNumbers) -> None:
        attributes, time_ns = logged.attributes, logged.time_ns
        identity = self._table.identity(attributes)
        found: list[tuple[int, int, Any]] = []
        for name, value in logged.data.items():
            series = self._table.of_number(name, attributes, identity)
            last = self.numbers[series] = series.number or self._new_number(series), time_ns, value
            found.append(last)
        try:
            payload = marshal.dumps(found, 2)
        except ValueError:  # an earlier handler has changed the values
            sound = [each for each in found if type(each[2]) in {int, float}]
            self.lose("metrics", len(found) - len(sound))
            found, payload = sound, marshal.dumps(sound, 2)
        if found:
            self._metrics.append(NUMBERS, payload, len(found))

    def _define_stats(self, serials: tuple[int, ...]) -> None:
        """Define the Stats with some serial numbers, and forget those that have ended."""
        with self._defining:  # at the exit, the writer may do the same at this moment
            known = self._stats
            unknown = set(serials) - known.keys()
            if unknown or len(known) > self._most:
                live = {stat._serial: stat.definition for stat in live_stats()}
                self._new_stats({serial: live[serial] for serial in serials if serial in unknown and serial in live})
                if len(known) > self._most:
                    self._stats = {serial: known[serial] for serial in (*serials, *live) if serial in known}
                    self._most = _MOST_ENDED + 2 * len(self._stats)

    def _new_stats(self, stats: dict[int, monitel.StatDefinition]) -> dict[int, tuple[int, Series]]:
        """Add the Stats with some serial numbers."""
        keys = {serial: (self._table.of_stat(stat), stat.aggregations) for serial, stat in stats.items()}
        if new := [key for key in keys.values() if key not in self._numbers]:
            pairs = [(series, tuple(each.suffix for each in aggregations)) for series, aggregations in new]
            self._numbers.update(zip(new, self._define(STAT, "Stat", pairs), strict=True))
        found = {serial: (self._numbers[key], key[0]) for serial, key in keys.items()}
        self._stats.update(found)
        return found

    def _new_number(self, series: Series) -> int:
        (series.number,) = self._define(NUMBER, "logged number", [(series, ())])
        return series.number

    def _define(self, kind: str, noun: str, series: Iterable[tuple[Series, tuple[str, ...]]]) -> list[int]:
        """Define series with their aggregations, with one write, and return the numbers of the definitions."""
        pairs = [((kind, *each), self._definition(kind, noun, *each)) for each in series]
        numbers = self._box.names.define_all((key, tuple(definition)) for key, definition in pairs)
        self.definitions.update(zip(numbers, (definition for _, definition in pairs), strict=True))
        return numbers

    @staticmethod
    def _definition(kind: str, noun: str, series: Series, suffixes: tuple[str, ...]) -> Definition:
        first = series.definition
        return Definition(
            kind,
            series.name,
            escape_surrogates(first.name),
            first.unit,
            first.description if kind == NUMBER else describe(noun, first.name, series.name, first.description),
            bool(first.monotonic),
            series.plain_attributes,
            suffixes,
        )

    def _ids(self) -> tuple[()] | tuple[bytes, bytes, int]:
        """Return trace id, span id and flags of the innermost open range or span; nothing without one."""
        inside = None if self._ranges is None else self._ranges.innermost()
        if inside is not None:
            return inside.trace_id, inside.span_id, 1
        if not get_current():  # an empty context, as usual
            return ()
        context = get_current_span().get_span_context()
        if not context.trace_id:
            return ()
        return context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"), int(context.trace_flags)

    def _cleaned(self, record: tuple[Any, ...]) -> bytes:
        """Return a record without the values that the protocol cannot hold; the first one is logged."""

        def clean(values: Any) -> dict[str, Any]:
            return recordable(values, lambda key, _value: self._warn(record[3], text_of(key)))

        attributes, numbers = clean(record[5]), record[6] and clean(record[6])
        return self._dumps((*record[:5], attributes, numbers, *record[7:]))

    def _warn(self, name: str, key: str) -> None:
        if not self._failed:
            self._failed = True
            _log.warning("event %r: %r cannot be an attribute and is left out (others are not logged)", name, key)

    @staticmethod
    def _dumps(value: Any) -> bytes:
        return marshal.dumps(value, 2)


def _is_plain(value: Any) -> bool:
    try:
        marshal.dumps(value, 2)
    except ValueError:
        return False
    return True
