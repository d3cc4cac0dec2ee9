"""Windows and logged numbers as points, with the running totals of their series.

Each requested aggregation becomes one metric, e.g. ``train.loss.mean``: COUNT and SUM become sums, HISTOGRAM a
histogram or percentiles, others gauges. A logged number becomes a gauge with its name.

The temporality decides only the value and the start time of monotonic sums and of histograms: all samples since the
start of the series, or those of one window. Sums that are not monotonic are always cumulative. A cumulative sum begins
with a point of value zero at the start of the series' first window.

A request changes a draft of the totals. They change themselves when the request is settled, in one step with the
journal, so that a request that is sent again has the same values. What the journal drops enters at its place.

The messages are filled directly: the SDK's metric classes and their encoder take four times as long.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import monitel
from monitel.attributes import typed_items
from monitel.blackbox.forms import Definition
from monitel.blackbox.record import NUMBERS, WINDOW
from monitel.blackbox.recorder import part_of_total
from monitel.stats.window import decode_one
from monitel_otlp.messages.attributes import key_values
from monitel_otlp.messages.request import Encoder, write_scope
from monitel_otlp.metrics.points import CUMULATIVE, DELTA, MILLISECOND_NS, UNSPECIFIED, Points, fill, start_point_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.blackbox.record import Item

_ANY = monitel.StatDefinition("any", (), "", "", {}, monotonic=False)  # the series has the real one
_NUMBER = ("logged",)  # instead of suffixes


class Mapping(NamedTuple):
    """The settings with which windows become points; a record keeps them.

    Attributes:
        temporality: ``"cumulative"``, ``"delta"`` or ``"lowmemory"``, which is delta: windows are handed over as they
            close, as samples to a synchronous instrument.
        start_ns: Start of the totals, Unix ns. A series whose first window began earlier has an earlier start.
        distributions: The form of HISTOGRAM: ``"percentiles"``, ``"histogram"`` or ``"both"``.
        after_ns: No point is earlier, Unix ns.
    """

    temporality: str
    start_ns: int
    distributions: str
    after_ns: int = 0

    @property
    def delta(self) -> bool:
        """True for delta temporality."""
        return self.temporality != "cumulative"


class Described:
    """A definition, as the points of its series need it. Several definitions may be one series: they have one key."""

    __slots__ = ("attributes", "definition", "key")

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.key: Hashable = definition.metric, typed_items(definition.attributes)
        self.attributes: tuple[KeyValue, ...] = tuple(key_values(definition.attributes))


class Row(NamedTuple):
    """A window or a logged number, or several that were merged. The end of the window is the time of the points."""

    window: monitel.Window
    suffixes: tuple[str, ...]  # of the requested aggregations
    sum: float | None = None  # as it counts in the total of the series; None if it is left out
    items: int = 1

    def at(self, end_ns: int) -> Row:
        """Return the row with another time."""
        return self._replace(window=self.window._replace(end_ns=end_ns))

    def merge(self, later: Row) -> Row:
        """Return both as one, with the aggregations of both; of two numbers, the later one.

        Numbers keep the time of the first one, so that a row of them does not become one number.
        """
        items = self.items + later.items
        if later.suffixes == _NUMBER:
            return later.at(self.window.end_ns)._replace(items=items)
        both = self.window.merge(later.window)
        histogram = both.histogram or later.window.histogram or self.window.histogram
        window = both._replace(end_ns=later.window.end_ns, histogram=histogram)
        sums = [each for each in (self.sum, later.sum) if each is not None]
        suffixes = tuple(dict.fromkeys(self.suffixes + later.suffixes))
        return Row(window, suffixes, sum(sums) if sums else None, items)


@dataclass(slots=True, eq=False)
class Series:
    """The running totals of a series. Its first definition decides unit and monotonicity."""

    described: Described
    count: int = 0
    sum: float = 0.0
    histogram: monitel.Histogram | None = None
    begin_ns: int = 0  # earliest start of a window
    start_ns: int = 0  # of cumulative points; constant from the first one on
    begun: frozenset[str] = frozenset()  # suffixes of the sums that have a point
    end_ns: int = 0  # time of the latest point

    @staticmethod
    def of(plain: Sequence[Any]) -> Series:
        """Return the series with a result of :meth:`plain`."""
        definition, count, total, histogram, begin_ns, start_ns, begun, end_ns = plain
        made = None if histogram is None else monitel.Histogram(*histogram)
        return Series(
            Described(Definition(*definition)), count, total, made, begin_ns, start_ns, frozenset(begun), end_ns
        )

    def plain(self) -> tuple[Any, ...]:
        """Return the series as plain values."""
        found = self.histogram
        histogram = None if found is None else tuple(getattr(found, name) for name in found.__slots__)
        totals = self.count, self.sum, histogram, self.begin_ns, self.start_ns, sorted(self.begun), self.end_ns
        return tuple(self.described.definition), *totals

    def copy(self) -> Series:
        """Return a copy, in a sixth of the time of ``dataclasses.replace()``."""
        totals = self.count, self.sum, self.histogram, self.begin_ns, self.start_ns, self.begun, self.end_ns
        return Series(self.described, *totals)

    def begin(self, start_ns: int) -> None:
        """Take in the start of a window."""
        if not self.begin_ns or 0 < start_ns < self.begin_ns:
            self.begin_ns = start_ns

    def add(self, count: int, total: float, histogram: monitel.Histogram | None) -> None:
        """Take in samples."""
        self.count += count
        self.sum += total
        if histogram is not None:
            self.histogram = histogram if self.histogram is None else self.histogram.merge(histogram)


class Draft:
    """The totals as a request changes them: copies of the series in it, by their keys in ``series``."""

    def __init__(self, totals: Totals, base: Callable[[Hashable], Series | None], after_ns: int) -> None:
        self._totals = totals
        self._base = base
        self._after_ns = after_ns
        self.coalesced = 0
        self.series: dict[Hashable, Series] = {}

    def of(self, described: Described) -> Series:
        """Return the copy of a series."""
        found = self.series.get(described.key)
        if found is None:
            base = self._base(described.key)
            found = base.copy() if base is not None else Series(described, end_ns=self._after_ns)
            self.series[described.key] = found
        return found

    def rows(self, item: Item) -> list[tuple[Series, Row]]:
        """Return the rows of an item, each with its series, which stays as it is. Raises for senseless items."""
        described = self._totals.described
        if item.kind == WINDOW:
            number, content = item.value
            window, found = decode_one(content).of(_ANY), described(number)
            series = self.of(found)
            part = part_of_total(window.sum, monotonic=series.described.definition.monotonic)
            return [(series, Row(window, found.definition.suffixes, part))]
        if item.kind != NUMBERS:
            raise ValueError(f"expected a window or numbers, got a record of the kind {item.kind}")
        logged = [(described(number), time_ns, float(value)) for number, time_ns, value in item.value]
        return [
            (self.of(found), Row(monitel.Window(_ANY, at, at, 1, value, value, value, value, 0, None, None), _NUMBER))
            for found, at, value in logged
        ]

    def begin(self, series: Series, rows: Iterable[Row]) -> None:
        """Take in the starts of windows, before the first of them is written."""
        for row in rows:
            if row.suffixes != _NUMBER:
                series.begin(row.window.start_ns)

    def add(self, series: Series, row: Row) -> None:
        """Take in the samples of a row."""
        if row.suffixes != _NUMBER:
            series.add(row.window.count, row.sum or 0.0, row.window.histogram if self._totals.histograms else None)


class Totals:
    """The totals of the series of one process; the fold of the journal of its metrics.

    All methods but :meth:`draft` are called with the lock of the journal held. ``definition`` returns plain values by
    their number, ``described`` the definition; ``number`` is that of the last item that is in the totals.
    """

    def __init__(self, definition: Callable[[int], Any], mapping: Mapping, stored: tuple[int, Any] = (0, None)) -> None:
        self.described: Callable[[int], Described] = cache(lambda number: Described(Definition(*definition(number))))
        self.histograms = not mapping.delta and mapping.distributions != "percentiles"
        self._after_ns = mapping.after_ns
        self.coalesced = 0
        self.number, state = stored
        series, dropped = state or ([], [])
        self._series: dict[Hashable, Series] = {each.described.key: each for each in map(Series.of, series)}
        self._dropped = {(first, end): [*map(Series.of, each)] for first, end, each in dropped}

    @property
    def newest_ns(self) -> int:
        """Time of the latest point, Unix ns; 0 without a point."""
        return max((each.end_ns for each in self._series.values()), default=0)

    def draft(self) -> Draft:
        """Return the totals for the next request."""
        return Draft(self, self._series.get, self._after_ns)

    def commit(self, number: int, draft: Draft) -> None:
        """Take in the series of a request that is settled, whose last item has this number."""
        self._series.update(draft.series)
        self.coalesced += draft.coalesced
        self.number = number

    def drop(self, first: int, end: int, items: Iterable[Item]) -> None:
        """Keep what the journal drops until its place is reached."""
        begin = next((each for each, until in self._dropped if until == first), first)
        earlier = {each.described.key: each for each in self._dropped.pop((begin, first), ())}
        found = Draft(self, earlier.get, 0)
        for item in items:
            with suppress(Exception):  # it would be lost if it was sent
                for series, row in found.rows(item):
                    found.begin(series, [row])
                    found.add(series, row)
        self._dropped[begin, end] = [*{**earlier, **found.series}.values()]

    def pass_dropped(self, number: int) -> None:
        """Take in what was dropped before an item."""
        for first, end in sorted(self._dropped) if self._dropped else ():
            if end > number:
                break
            draft = self.draft()
            for lost in self._dropped.pop((first, end)):
                series = draft.of(lost.described)
                series.begin(lost.begin_ns)
                series.add(lost.count, lost.sum, lost.histogram)
            self._series.update(draft.series)

    def plain(self) -> tuple[int, Any]:
        """Return the number and the totals as plain values."""
        dropped = [(*place, [each.plain() for each in lost]) for place, lost in self._dropped.items()]
        return self.number, ([each.plain() for each in self._series.values()], dropped)


class WindowsEncoder(Encoder):
    """Writes windows and logged numbers. The times of a series ascend over all requests.

    ``pause`` is called between slices of work.
    """

    def __init__(
        self,
        resource: bytes,
        mapping: Mapping,
        totals: Totals,
        write_queue_size: Callable[[Any], object] | None = None,
        pause: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__("metrics", resource, totals, write_queue_size)
        self._start_ns = mapping.start_ns
        self._delta = mapping.delta
        self._percentiles = mapping.distributions != "histogram"
        self._histograms = mapping.distributions != "percentiles"
        self._pause = pause

    def _write(self, items: Sequence[Item], resource: Any, draft: Draft) -> int:
        scope = resource.scope_metrics.add()
        write_scope(scope)
        points = Points(scope.metrics)
        rows: dict[Series, list[Row]] = {}
        for item in items:
            for series, row in draft.rows(item):
                rows.setdefault(series, []).append(row)
            self._pause()
        for series, of_series in rows.items():
            self._write_series(draft, series, of_series, points)
            self._pause()
        return points.number

    def _write_series(self, draft: Draft, series: Series, rows: list[Row], points: Points) -> None:
        draft.begin(series, rows)
        ordered = _ascending(rows, series.end_ns + MILLISECOND_NS)
        if not series.start_ns:
            first = ordered[0].window
            start_ns = min(self._start_ns, series.begin_ns or first.start_ns, first.end_ns - MILLISECOND_NS)
            series.start_ns = max(start_ns, series.end_ns)
        for row in ordered:
            draft.add(series, row)
            self._write_row(draft, series, row, points)
            series.end_ns = row.window.end_ns

    def _write_row(self, draft: Draft, series: Series, row: Row, points: Points) -> None:
        definition, window, suffixes = series.described.definition, row.window, row.suffixes
        name, unit = definition.metric, definition.unit
        if suffixes == _NUMBER:
            _add(series, window.end_ns, points, name, unit).as_double = window.last
            draft.coalesced += row.items - 1
            return
        for suffix in suffixes:
            if suffix == "count":
                self._add_sum(series, row, points, suffix, "{sample}", window.count, series.count, True)
            elif suffix == "sum":
                self._add_sum(series, row, points, suffix, unit, row.sum, series.sum, definition.monotonic)
            elif suffix == "histogram":
                self._add_distribution(series, row, points)
            else:
                value = window.last if suffix == "value" else getattr(window, suffix)
                if value is not None:  # a merged window may lack it
                    _add(series, window.end_ns, points, f"{name}.{suffix}", unit).as_double = value

    def _add_sum(  # noqa: PLR0917  called for each point
        self,
        series: Series,
        row: Row,
        points: Points,
        suffix: str,
        unit: str,
        own: float | None,
        total: float,
        monotonic: bool,
    ) -> None:
        """Add the point of a sum of one window or up to it, after the start point if it is the first one."""
        name, end_ns = f"{series.described.definition.metric}.{suffix}", row.window.end_ns
        if self._delta and monotonic:
            if own is not None:
                point = _add(series, end_ns, points, name, unit, "sum", DELTA, True)
                point.start_time_unix_nano = _delta_start_ns(series, row)
                fill(point, own)
            return
        found = [(end_ns, total)]
        if suffix not in series.begun:
            series.begun |= {suffix}
            found.insert(0, (start_point_ns(series.start_ns, series.begin_ns, end_ns), type(total)(0)))
        for time_ns, value in found:
            point = _add(series, time_ns, points, name, unit, "sum", CUMULATIVE, monotonic)
            point.start_time_unix_nano = series.start_ns
            fill(point, value)

    def _add_distribution(self, series: Series, row: Row, points: Points) -> None:
        """Add the points of HISTOGRAM: the percentiles of the window, and a histogram, if they are enabled."""
        definition, end_ns, of_window = series.described.definition, row.window.end_ns, row.window.histogram
        name, unit = definition.metric, definition.unit
        if of_window is not None and self._percentiles:
            for suffix, value in of_window.percentiles().items():
                _add(series, end_ns, points, f"{name}.{suffix}", unit).as_double = value
        found = of_window if self._delta or of_window is None else series.histogram
        if self._histograms and found is not None and found.count:  # empty if no sample is finite
            temporality = DELTA if self._delta else CUMULATIVE
            point = _add(series, end_ns, points, f"{name}.histogram", unit, "exponential_histogram", temporality)
            point.start_time_unix_nano = _delta_start_ns(series, row) if self._delta else series.start_ns
            point.count, point.scale, point.zero_count = found.count, found.scale, found.zero_count
            point.positive.offset, point.negative.offset = found.positive_offset, found.negative_offset
            point.positive.bucket_counts.extend(found.positive)
            point.negative.bucket_counts.extend(found.negative)
            point.min, point.max = found.min, found.max
            if not found.negative and math.isfinite(found.sum):  # the protocol demands it
                point.sum = found.sum


def _add(  # noqa: PLR0917  called for each point: keywords would cost a tenth of it
    series: Series,
    time_ns: int,
    points: Points,
    name: str,
    unit: str,
    shape: str = "gauge",
    temporality: int = UNSPECIFIED,
    monotonic: bool = False,
) -> Any:
    described = series.described
    description = described.definition.description
    return points.add(time_ns, described.attributes, name, unit, description, shape, temporality, monotonic)


def _delta_start_ns(series: Series, row: Row) -> int:
    """Return the start of points with delta temporality: before their time, not before the series' latest point."""
    start_ns, end_ns = row.window.start_ns, row.window.end_ns
    return max(start_ns if start_ns < end_ns else end_ns - MILLISECOND_NS, series.end_ns)


def _ascending(rows: list[Row], earliest_ns: int) -> list[Row]:
    """Return rows of one series sorted by end, all of them at ``earliest_ns`` or later, and at least 1 ms apart.

    Rows that are closer are merged. Two threads may have closed two windows of a series in the wrong order.
    """
    if len(rows) == 1 and rows[0].window.end_ns >= earliest_ns:
        return rows
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: row.window.end_ns):
        at = row.at(max(row.window.end_ns, earliest_ns))
        if found and at.window.end_ns < found[-1].window.end_ns + MILLISECOND_NS:
            at = found.pop().merge(at)
        found.append(at)
    return found
