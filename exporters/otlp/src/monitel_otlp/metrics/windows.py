"""Windows and logged numbers as points, with the running totals of their series.

Each requested aggregation becomes one metric, e.g. ``train.loss.mean``: COUNT and SUM become sums, HISTOGRAM a
histogram or percentiles, others gauges. A logged number becomes a gauge with its name.

With delta temporality monotonic sums and histograms have the samples of one window, else all since the start of the
series. A cumulative sum begins with a point of value zero at the start of the series' first window.

A request changes a draft of the totals, which become it when the request is settled, in one step with the journal: a
request that is sent again has the same values. What the journal drops enters at its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import monitel
from monitel.attributes import typed_items
from monitel.blackbox.forms import Definition
from monitel.blackbox.record import WINDOW, Item
from monitel.blackbox.recorder import part_of_total
from monitel.process.worker import Pace
from monitel.stats.window import decode
from monitel_otlp.messages.attributes import key_values
from monitel_otlp.messages.request import write_scope
from monitel_otlp.metrics.points import CUMULATIVE, DELTA, MILLISECOND_NS, UNSPECIFIED, Points, fill, start_point_ns

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

_ANY = monitel.StatDefinition("any", (), "", "", {}, monotonic=False)  # the total has the real one
_NUMBER = ("",)  # suffixes of a logged number, whose metric has its bare name


class WindowMapping(NamedTuple):
    """The settings with which windows become points; a record keeps them."""

    temporality: str  # "cumulative", "delta", or "lowmemory", which is delta, as with synchronous instruments
    start_ns: int  # start of the totals, Unix ns; a series whose first window began earlier has an earlier start
    distributions: str  # the form of HISTOGRAM: "percentiles", "histogram" or "both"
    after_ns: int = 0  # no point is earlier, Unix ns

    @property
    def delta(self) -> bool:
        return self.temporality != "cumulative"


class Described:
    """A definition, as the points of its series need it. Several definitions may be one series: they have one key."""

    __slots__ = ("attributes", "definition", "key")

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.key: Hashable = definition.metric, typed_items(definition.attributes)
        self.attributes: tuple[KeyValue, ...] = tuple(key_values(definition.attributes))


class Measurement(NamedTuple):
    """A window, or a logged number as a window of one sample, or several that were merged."""

    window: monitel.Window  # its end is the time of the points
    suffixes: tuple[str, ...]  # of the requested aggregations
    sum: float | None  # as it counts in the total; None if it is left out

    def at(self, end_ns: int) -> Measurement:
        return self._replace(window=self.window._replace(end_ns=end_ns))

    def merge(self, later: Measurement) -> Measurement:
        """Return both as one, with the aggregations of both.

        Numbers keep the time of the first one, so that many in a row do not become one.
        """
        both, histogram = self.window.merge(later.window), later.window.histogram or self.window.histogram
        end_ns = (self if later.suffixes == _NUMBER else later).window.end_ns
        window = both._replace(end_ns=end_ns, histogram=both.histogram or histogram)
        sums = [each for each in (self.sum, later.sum) if each is not None]
        suffixes = tuple(dict.fromkeys(self.suffixes + later.suffixes))
        return Measurement(window, suffixes, sum(sums) if sums else None)


@dataclass(slots=True, eq=False)
class Total:
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
    def of(plain: Sequence[Any]) -> Total:
        definition, count, added, histogram, begin_ns, start_ns, begun, end_ns = plain
        made = None if histogram is None else monitel.Histogram(*histogram)
        return Total(
            Described(Definition(*definition)), count, added, made, begin_ns, start_ns, frozenset(begun), end_ns
        )

    def plain(self) -> tuple[Any, ...]:
        found = self.histogram
        histogram = None if found is None else tuple(getattr(found, name) for name in found.__slots__)
        times = self.begin_ns, self.start_ns, sorted(self.begun), self.end_ns
        return tuple(self.described.definition), self.count, self.sum, histogram, *times

    def copy(self) -> Total:
        """Return a copy, in a sixth of the time of ``dataclasses.replace()``."""
        times = self.begin_ns, self.start_ns, self.begun, self.end_ns
        return Total(self.described, self.count, self.sum, self.histogram, *times)

    def begin(self, start_ns: int) -> None:
        if not self.begin_ns or 0 < start_ns < self.begin_ns:
            self.begin_ns = start_ns

    def add(self, count: int, added: float, histogram: monitel.Histogram | None) -> None:
        self.count += count
        self.sum += added
        if histogram is not None:
            self.histogram = histogram if self.histogram is None else self.histogram.merge(histogram)


class Draft:
    """The totals as a request changes them: copies of those in it, by the keys of their series."""

    def __init__(self, totals: Totals, base: Callable[[Hashable], Total | None], after_ns: int) -> None:
        self._totals = totals
        self._base = base
        self._after_ns = after_ns
        self.coalesced = 0
        self.series: dict[Hashable, Total] = {}

    def of(self, described: Described) -> Total:
        found = self.series.get(described.key)
        if found is None:
            base = self._base(described.key)
            found = base.copy() if base is not None else Total(described, end_ns=self._after_ns)
            self.series[described.key] = found
        return found

    def measured(self, item: Item) -> list[tuple[Total, Measurement]]:
        """Return what was measured in an item, each with its total, which stays as it is. Raises if it is senseless."""
        described = self._totals.described
        if item.kind == WINDOW:
            number, content = item.value
            window, found = decode(content).of(_ANY), described(number)
            total = self.of(found)
            part = part_of_total(window.sum, monotonic=total.described.definition.monotonic)
            return [(total, Measurement(window, found.definition.suffixes, part))]
        return [
            (self.of(described(number)), Measurement(_window_of(time_ns, float(value)), _NUMBER, None))
            for number, time_ns, value in item.value
        ]

    def add(self, total: Total, measured: Measurement) -> None:
        window = measured.window
        total.add(window.count, measured.sum or 0.0, window.histogram if self._totals.histograms else None)


def _window_of(time_ns: int, value: float) -> monitel.Window:
    return monitel.Window(_ANY, time_ns, time_ns, 1, value, value, value, value, 0, None, None)


class Totals:
    """The totals of the series of one process; the fold of the journal of its metrics.

    All methods but :meth:`draft` are called with the lock of the journal held. ``definition`` returns plain values by
    their number, ``described`` the definition; ``number`` is that of the last item that is in the totals.
    """

    def __init__(
        self, definition: Callable[[int], Any], mapping: WindowMapping, stored: tuple[int, Any] = (0, None)
    ) -> None:
        self.described: Callable[[int], Described] = cache(lambda number: Described(Definition(*definition(number))))
        self.histograms = not mapping.delta and mapping.distributions != "percentiles"
        self._after_ns = mapping.after_ns
        self.coalesced = 0
        self.number, state = stored
        series, dropped = state or ([], [])
        self._series: dict[Hashable, Total] = {each.described.key: each for each in map(Total.of, series)}
        self._dropped = {(first, end): [*map(Total.of, each)] for first, end, each in dropped}

    @property
    def newest_ns(self) -> int:
        """Time of the latest point, Unix ns; 0 without a point."""
        return max((each.end_ns for each in self._series.values()), default=0)

    def draft(self) -> Draft:
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
                for total, measured in found.measured(item):
                    total.begin(measured.window.start_ns)
                    found.add(total, measured)
        self._dropped[begin, end] = [*{**earlier, **found.series}.values()]

    def pass_dropped(self, number: int) -> None:
        """Take in what was dropped before an item."""
        for first, end in sorted(self._dropped) if self._dropped else ():
            if end > number:
                break
            draft = self.draft()
            for lost in self._dropped.pop((first, end)):
                total = draft.of(lost.described)
                total.begin(lost.begin_ns)
                total.add(lost.count, lost.sum, lost.histogram)
            self._series.update(draft.series)

    def plain(self) -> tuple[int, Any]:
        dropped = [(*place, [each.plain() for each in lost]) for place, lost in self._dropped.items()]
        return self.number, ([each.plain() for each in self._series.values()], dropped)


class WindowWriter:
    """Writes windows and logged numbers, with ascending times in each series, and a pause after each slice of work.

    The messages are filled directly: the SDK's metric classes and their encoder take four times as long.
    """

    def __init__(self, mapping: WindowMapping) -> None:
        self._start_ns = mapping.start_ns
        self._delta = mapping.delta
        self._percentiles = mapping.distributions != "histogram"
        self._histograms = mapping.distributions != "percentiles"
        self._pause = Pace().pause

    def write(self, items: Sequence[Item], resource: Any, draft: Draft) -> int:
        scope = resource.scope_metrics.add()
        write_scope(scope)
        points = Points(scope.metrics)
        found: dict[Total, list[Measurement]] = {}
        for item in items:
            for total, measured in draft.measured(item):
                found.setdefault(total, []).append(measured)
            self._pause()
        for total, of_series in found.items():
            self._write_series(draft, total, of_series, points)
            self._pause()
        return points.number

    def _write_series(self, draft: Draft, total: Total, found: list[Measurement], points: Points) -> None:
        for each in found:
            total.begin(each.window.start_ns)
        ordered = _ascending(found, total.end_ns + MILLISECOND_NS)
        if found[0].suffixes == _NUMBER:
            draft.coalesced += len(found) - len(ordered)
        if not total.start_ns:
            start_ns = min(self._start_ns, total.begin_ns, ordered[0].window.end_ns - MILLISECOND_NS)
            total.start_ns = max(start_ns, total.end_ns)
        for each in ordered:
            draft.add(total, each)
            self._write_points(total, each, points)
            total.end_ns = each.window.end_ns

    def _write_points(self, total: Total, measured: Measurement, points: Points) -> None:
        definition, window = total.described.definition, measured.window
        for suffix in measured.suffixes:
            if suffix in {"count", "sum"}:
                self._add_sum(total, measured, points, suffix)
            elif suffix == "histogram":
                self._add_distribution(total, measured, points)
            else:
                name = f"{definition.metric}.{suffix}" if suffix else definition.metric
                value = window.last if suffix in {"value", ""} else getattr(window, suffix)
                if value is not None:  # a merged window may lack it
                    _add(total, window.end_ns, points, name, definition.unit).as_double = value

    def _add_sum(self, total: Total, measured: Measurement, points: Points, suffix: str) -> None:
        """Add the point of a sum of one window or up to it, after the start point if it is the first one."""
        definition, end_ns = total.described.definition, measured.window.end_ns
        name, own, value = f"{definition.metric}.{suffix}", measured.sum, total.sum
        unit, monotonic = definition.unit, definition.monotonic
        if suffix == "count":
            unit, own, value, monotonic = "{sample}", measured.window.count, total.count, True
        if self._delta and monotonic:
            if own is not None:
                point = _add(total, end_ns, points, name, unit, "sum", DELTA, True)
                point.start_time_unix_nano = _delta_start_ns(total, measured)
                fill(point, own)
            return
        found = [(end_ns, value)]
        if suffix not in total.begun:
            total.begun |= {suffix}
            found.insert(0, (start_point_ns(total.start_ns, total.begin_ns, end_ns), type(value)(0)))
        for time_ns, each in found:
            point = _add(total, time_ns, points, name, unit, "sum", CUMULATIVE, monotonic)
            point.start_time_unix_nano = total.start_ns
            fill(point, each)

    def _add_distribution(self, total: Total, measured: Measurement, points: Points) -> None:
        """Add the points of HISTOGRAM: the percentiles of the window, and a histogram, if they are enabled."""
        definition, end_ns, of_window = total.described.definition, measured.window.end_ns, measured.window.histogram
        name, unit = definition.metric, definition.unit
        if of_window is not None and self._percentiles:
            for suffix, value in of_window.percentiles().items():
                _add(total, end_ns, points, f"{name}.{suffix}", unit).as_double = value
        found = of_window if self._delta or of_window is None else total.histogram
        if self._histograms and found is not None and found.count:  # empty if no sample is finite
            temporality = DELTA if self._delta else CUMULATIVE
            point = _add(total, end_ns, points, f"{name}.histogram", unit, "exponential_histogram", temporality)
            point.start_time_unix_nano = _delta_start_ns(total, measured) if self._delta else total.start_ns
            point.count, point.scale, point.zero_count = found.count, found.scale, found.zero_count
            point.positive.offset, point.negative.offset = found.positive_offset, found.negative_offset
            point.positive.bucket_counts.extend(found.positive)
            point.negative.bucket_counts.extend(found.negative)
            point.min, point.max = found.min, found.max
            if not found.negative and math.isfinite(found.sum):  # the protocol demands it
                point.sum = found.sum


def _add(  # noqa: PLR0917  called for each point: keywords would cost a tenth of it
    total: Total,
    time_ns: int,
    points: Points,
    name: str,
    unit: str,
    shape: str = "gauge",
    temporality: int = UNSPECIFIED,
    monotonic: bool = False,
) -> Any:
    described = total.described
    description = described.definition.description
    return points.add(time_ns, described.attributes, name, unit, description, shape, temporality, monotonic)


def _delta_start_ns(total: Total, measured: Measurement) -> int:
    """Return the start of points with delta temporality: before their time, not before the series' latest point."""
    start_ns, end_ns = measured.window.start_ns, measured.window.end_ns
    return max(start_ns if start_ns < end_ns else end_ns - MILLISECOND_NS, total.end_ns)


def _ascending(found: list[Measurement], earliest_ns: int) -> list[Measurement]:
    """Return what was measured of a series, sorted by time, all at ``earliest_ns`` or later, and at least 1 ms apart.

    What is closer is merged. Two threads may have closed two windows of a series in the wrong order.
    """
    if len(found) == 1 and found[0].window.end_ns >= earliest_ns:
        return found
    merged: list[Measurement] = []
    for each in sorted(found, key=lambda each: each.window.end_ns):
        at = each.at(max(each.window.end_ns, earliest_ns))
        if merged and at.window.end_ns < merged[-1].window.end_ns + MILLISECOND_NS:
            at = merged.pop().merge(at)
        merged.append(at)
    return merged
