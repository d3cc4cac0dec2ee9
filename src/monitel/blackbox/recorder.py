"""Values of the application become items of the journals, in the thread that records them, and parts of the snapshot.

A system call is made only for the first item, which makes the box, and for a new series, which is defined in ``names``.
"""

from __future__ import annotations

import json
import marshal
import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import monitel
from monitel.attributes import escape_surrogates, recordable, typed_items
from monitel.blackbox.activity import describe
from monitel.blackbox.forms import DEVICE_STAGE_TIME, NUMBER, REPORTED, STAGE_TIME, STAT, Definition
from monitel.blackbox.record import EVENT, NUMBERS, WINDOW
from monitel.counter import leave_out, plain_counters
from monitel.process.os_threads import RLock
from monitel.run_config import flat
from monitel.run_events import last_exception, watch_exceptions
from monitel.stats._window import live
from monitel.stats.window import OpenWindow, decode, key
from monitel.stats.window_sinks import forget, live_stats, open_windows
from monitel.training.counters import before
from monitel.wait_counter import wait_keys

if TYPE_CHECKING:
    from monitel.blackbox.box import Box

_SHORT = 4096  # bytes of an event in the snapshot
_MOST_ENDED = 1000  # Stats
_taken: set[tuple[int, int]] = set()  # keys of windows that were recorded before they arrived


@dataclass(slots=True, eq=False)
class Series:
    """One name and one set of attributes: the windows of any number of Stats, logged numbers, or a counter."""

    name: str  # of the metric
    definition: monitel.StatDefinition  # of the first Stat with the name: it decides the metric's unit and monotonicity
    plain_attributes: dict[str, Any]  # of every point, as exact built-in values
    number: int = 0  # in the names of the box; 0 before, and for Stats, which each have one
    count: int = 0  # of samples so far
    sum: float = 0.0  # of the samples so far, see `part_of_total`
    latest: monitel.Window | None = None  # that a Stat has closed; None before, and for numbers and counters
    windows: int = 0  # whose samples are in the sum
    largest: float = 0.0  # sum of the largest samples of these windows

    @property
    def title(self) -> str:
        """The name for people: that of the metric, unless it spells out letters beyond ASCII."""
        own = self.definition.name
        return self.name if own.isascii() else escape_surrogates(own)


class SeriesTable:
    """The series of windows and logged numbers, each with the name that the application gave it."""

    def __init__(self) -> None:
        self.series: dict[Hashable, Series] = {}

    def of_stat(self, definition: monitel.StatDefinition) -> Series:
        key = "Stat", definition.name, self.identity(definition.attributes)
        return self.series.get(key) or self._add(key, definition, definition.attributes)

    def of_number(self, name: str, attributes: Mapping[str, Any], identity: Hashable) -> Series:
        """Return the series of a logged number; ``identity`` is that of the attributes of the call."""
        key = "number", name, identity
        return self.series.get(key) or self._new_of_number(key, name, attributes)

    def identity(self, attributes: Mapping[str, Any]) -> Hashable:
        """Return a key that identifies the attributes of a series."""
        return typed_items(attributes)

    def warn(self) -> None:
        """Log what is wrong with new series."""

    def _new_of_number(self, key: Hashable, name: str, attributes: Mapping[str, Any]) -> Series:
        return self._add(key, monitel.StatDefinition(name, (), "", "", {}, monotonic=False), attributes)

    def _add(self, key: Hashable, definition: monitel.StatDefinition, attributes: Mapping[str, Any]) -> Series:
        name = escape_surrogates(definition.name)
        return self.series.setdefault(key, Series(name, definition, dict(attributes)))


def part_of_total(window_sum: float, *, monotonic: bool) -> float | None:
    """Return the sum of a window as it counts in the total of its series; None if it is left out.

    That is so for a sum that is not finite, and for a negative one of a monotonic series, whose fall would look like a
    restart.
    """
    falls = monotonic and window_sum < 0
    return window_sum if math.isfinite(window_sum) and not falls else None


class Recorder:
    """Appends windows, numbers and events to the journals of a box. Thread-safe; nothing raises.

    ``open_ranges`` returns name and seconds so far of each open range.
    """

    def __init__(self, box: Box, table: SeriesTable, open_ranges: Callable[[], list[tuple[str, float]]] = list) -> None:
        self._box = box
        self._table = table
        self._metrics, self._logs = box.journals["metrics"], box.journals["logs"]
        self._stats: dict[int, int] = {}  # numbers of definitions, by serial number
        self._series: dict[int, Series] = {}  # by these numbers
        self._most = _MOST_ENDED  # number of known Stats, beyond which those that have ended are forgotten
        self._totals: dict[Series, int] = {}  # the series of the totals in a snapshot, with a number of a definition
        self._closing: dict[tuple[int, int], int] = {}  # windows being appended: the next item before
        self.definitions: dict[int, Definition] = {}  # by their numbers
        self.nonfinite = 0  # number of windows whose sum was left out of the total of their series
        self.discarded = 0  # number of samples that ``max_samples`` kept out
        #: The last number of each series of `log()`, as in a record: number of the definition, time in Unix ns, value.
        self.numbers: dict[Series, tuple[int, int, Any]] = {}
        #: What the curves of the run are made of; None in processes that store none. See :class:`monitel.runs.curves`.
        self.points: deque[tuple[Series, int | None, float, str]] | None = None
        self.config: dict[str, Any] = {}  # of the process, by dotted name
        self.last_event = b""  # other than logged numbers, in marshal format; without its data if that is long
        self.is_idle = True  # nothing is recorded yet
        self._beginning, self._defining = RLock(), RLock()
        self._reported: list[tuple[int, int, float, int, float]] = []
        earlier = before().plain
        box.sources.update(
            doing=lambda: describe(open_ranges()),
            counters=lambda: plain_counters(monitel.counters()),
            before=lambda: earlier,
            totals=lambda: self._reported,
            numbers=lambda: [*self.numbers.copy().values()],
            event=lambda: self.last_event or None,
            exception=last_exception,
        )
        box.open_windows, box.numbered = self.open_windows, self._numbered
        box.flushes += [self.begin_to_count, self.define_stats]

    @property
    def series(self) -> list[Series]:
        """All series so far. Takes no lock."""
        return [*self._table.series.copy().values()]

    def begin(self) -> None:
        """Make the box, before the first item. Another thread with its first item waits."""
        with self._beginning:
            if self.is_idle:
                self._box.open()
                self.is_idle = False
                watch_exceptions()

    def begin_to_count(self) -> None:
        """Make the box if there is something to show before the first item: a step, counters, waits, open windows."""
        has_step = monitel.get_step() is not None
        if self.is_idle and (has_step or monitel.counters() or wait_keys() or open_windows()):
            self.begin()

    def window(self, definition: monitel.StatDefinition, window: monitel.Window, content: bytes) -> None:
        """Append a window that closes; a sink of windows."""
        if self.is_idle:
            self.begin()
        found = serial, _ = key(content)
        if (number := self._stats.get(serial)) is None:
            number = self._new_stats({serial: definition})[serial]
            self._table.warn()
        series = self._series[number]
        payload = marshal.dumps((number, content), 2)
        finite = part_of_total(window.sum, monotonic=series.definition.monotonic)
        with self._metrics.lock:  # a snapshot has it as an open window, or in the journal
            if found in _taken:
                return
            self._closing[found] = self._metrics.next
            try:
                self._metrics.append(WINDOW, payload)
                forget(*found)
            except BaseException:  # of a signal handler, before the window is in the journal or afterwards
                if self._has_appended(found):
                    forget(*found)
                raise
            finally:
                del self._closing[found]
            if self.points is not None and window.count and series.definition.name not in REPORTED:
                self.points.append((series, window.last_step, window.sum / window.count, ".mean"))
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
        """Define the Stats with open windows, before one of them may be gone."""
        with self._defining:
            known = self._stats
            new = {each._serial: each._definition for each in live() if each._serial not in known and each.count}
            if new:
                self._new_stats(new)
        self._table.warn()

    def open_windows(self) -> list[bytes]:
        """Return the open windows; with the lock of the journal held. The snapshot has the totals of that moment."""
        totals = self._totals.copy().items()
        self._reported = [(number, each.count, each.sum, each.windows, each.largest) for each, number in totals]
        return open_windows()

    def _numbered(self, contents: list[bytes]) -> list[tuple[int, bytes]]:
        """Return open windows as values of entries of kind WINDOW."""
        known, serials = self._stats, [serial for serial, _ in map(key, contents)]
        numbers = [*map(known.get, serials, repeat(-1))]
        if -1 in numbers or len(known) > self._most:
            self._define_stats(serials)
            numbers = [*map(known.get, serials, repeat(-1))]
        return list(zip(numbers, contents, strict=True))

    def stage_times(self) -> dict[str, int]:
        """Return the nanoseconds of each stage in closed windows: on the device, if they are measured there."""
        found: dict[str, Counter[str]] = {STAGE_TIME: Counter(), DEVICE_STAGE_TIME: Counter()}
        for each in self._totals.copy():
            if (times := found.get(each.definition.name)) is not None:
                times[str(each.plain_attributes.get("training.stage"))] += round(each.sum * 1e9)
        return dict(found[DEVICE_STAGE_TIME] or found[STAGE_TIME])

    def windows_so_far(self) -> list[tuple[Series, OpenWindow]]:
        """Return the open windows with samples, of Stats that are defined. Takes no lock."""
        known, opened = self._stats, map(decode, open_windows())
        return [
            (self._series[known[each.serial]], each)
            for each in opened
            if each.serial in known and each.count and not each.closed
        ]

    def take_rest(self) -> None:
        """Append the closed windows that are not recorded yet, or wait for values on a device: their known samples.

        Call it at the end, when windows that close are not recorded any more. These are not recorded again later.
        """
        with self._metrics.lock:
            for number, content in self._numbered(self.open_windows()):
                window, found = decode(content), key(content)
                if not window.closed:  # samples that other threads add now
                    continue
                _taken.add(found)
                if window.count and not self._has_appended(found):
                    if number >= 0:
                        self._metrics.append(WINDOW, marshal.dumps((number, content), 2))
                    else:  # its Stat is gone before it was defined
                        self._metrics.lose("encoding")
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
        record = event._fields()
        body = record[6]
        is_numbers = body is not None and isinstance(event, monitel.LoggedNumbers)
        if is_numbers:
            self._append_numbers(body, record[5], record[1], record[4])
        elif body is not None:  # a RunConfig
            plain = {name: json.dumps(each) if isinstance(each, list) else each for name, each in flat(body)}
            self.config = {**self.config, **plain}
        if ids := self._ids():
            record += ids
        try:
            payload = marshal.dumps(record, 2)
        except ValueError:  # an earlier handler has changed the data
            attributes, body = (each and recordable(each, partial(leave_out, "emit()")) for each in record[5:7])
            payload = marshal.dumps((*record[:5], attributes, body, *record[7:]), 2)
        self._logs.append(EVENT, payload)
        if not is_numbers:
            is_short = len(payload) <= _SHORT
            self.last_event = payload if is_short else marshal.dumps((*record[:5], {"...": "too long"}), 2)

    def _append_numbers(
        self, numbers: dict[str, Any], attributes: dict[str, Any], time_ns: int, step: int | None
    ) -> None:
        identity, last = self._table.identity(attributes), self.numbers
        found: list[tuple[int, int, Any]] = []
        for name, value in numbers.items():
            if type(value) is not float and type(value) is not int:  # an earlier handler has changed it
                self._metrics.lose("encoding")
                continue
            series = self._table.of_number(name, attributes, identity)
            if not series.number:
                (series.number,) = self._define(NUMBER, [(series, ())])
            last[series] = number = series.number, time_ns, value
            found.append(number)
            if self.points is not None:
                self.points.append((series, step, value, ""))
        if found:
            self._metrics.append(NUMBERS, marshal.dumps(found, 2), len(found))

    def _define_stats(self, serials: list[int]) -> None:
        """Define the Stats with some serial numbers, and forget those that have ended."""
        with self._defining:  # at the exit, the writer may do the same at this moment
            known = self._stats
            unknown = {serial for serial in serials if serial not in known}
            if unknown or len(known) > self._most:
                found = {stat._serial: stat.definition for stat in live_stats()}
                self._new_stats({serial: found[serial] for serial in serials if serial in unknown and serial in found})
                if len(known) > self._most:
                    self._stats = {serial: known[serial] for serial in (*serials, *found) if serial in known}
                    self._most = _MOST_ENDED + 2 * len(self._stats)

    def _new_stats(self, stats: dict[int, monitel.StatDefinition]) -> dict[int, int]:
        pairs = [
            (self._table.of_stat(stat), tuple(each.suffix for each in stat.aggregations)) for stat in stats.values()
        ]
        numbers = self._define(STAT, pairs)
        for number, (series, _) in zip(numbers, pairs, strict=True):
            self._series[number] = series
            if series.definition.name in REPORTED:
                self._totals[series] = number
        found = dict(zip(stats, numbers, strict=True))
        self._stats.update(found)
        return found

    def _define(self, kind: str, series: Iterable[tuple[Series, tuple[str, ...]]]) -> list[int]:
        """Define series with their aggregations, with one write, and return the numbers of the definitions."""
        pairs = []
        for each, suffixes in series:
            first = each.definition
            known = escape_surrogates(first.name), first.unit, self._describe(kind, each), bool(first.monotonic)
            definition = Definition(kind, each.name, *known, each.plain_attributes, suffixes)
            pairs.append(((kind, each, suffixes), definition))
        numbers = self._box.names.define((key, tuple(definition)) for key, definition in pairs)
        self.definitions.update(zip(numbers, (definition for _, definition in pairs), strict=True))
        return numbers

    def _describe(self, kind: str, series: Series) -> str:  # noqa: ARG002  of a subclass
        return series.definition.description

    def _ids(self) -> tuple[()] | tuple[bytes, bytes, int]:
        """Return trace id, span id and flags of the innermost open range or span; nothing without one."""
        return ()
