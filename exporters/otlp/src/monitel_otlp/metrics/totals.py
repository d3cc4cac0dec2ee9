"""The running totals of series, and what a request changes in them.

A request changes a draft of the totals, which become it when the request is settled, in one step with the journal: a
request that is sent again has the same values. What the journal drops enters at its place.
"""

from __future__ import annotations

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
from monitel.stats.window import decode_closed
from monitel_otlp.messages.attributes import key_values

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

_ANY = monitel.StatDefinition("any", (), "", "", {}, monotonic=False)  # the total has the real one


class WindowMapping(NamedTuple):
    """The settings with which windows become points; a record keeps them."""

    delta: bool  # temporality of sums that only rise; else they are cumulative
    start_ns: int  # start of the totals, Unix ns; a series whose first window began earlier has an earlier start
    distributions: str  # the form of HISTOGRAM: "percentiles", "histogram" or "both"
    after_ns: int = 0  # no point is earlier, Unix ns


class Described:
    """A definition, as the points of its series need it. Several definitions may be one series: they have one key."""

    __slots__ = ("attributes", "definition", "key")

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.key: Hashable = definition.kind, definition.metric, typed_items(definition.attributes)
        self.attributes: tuple[KeyValue, ...] = tuple(key_values(definition.attributes))


class Measurement(NamedTuple):
    """A window, or a logged number as a window of one sample, or several that were merged."""

    window: monitel.Window  # its end is the time of the points
    suffixes: tuple[str, ...]  # of the requested aggregations
    sum: float | None  # as it counts in the total; None if it is left out

    @property
    def is_number(self) -> bool:
        """True for logged numbers, whose metric has its bare name."""
        return self.suffixes == ("",)

    def at(self, end_ns: int) -> Measurement:
        return self._replace(window=self.window._replace(end_ns=end_ns))

    def merge(self, later: Measurement) -> Measurement:
        """Return both as one, with the aggregations of both.

        Numbers keep the time of the first one, so that many in a row do not become one.
        """
        both, histogram = self.window.merge(later.window), later.window.histogram or self.window.histogram
        end_ns = (self if later.is_number else later).window.end_ns
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
        self.has_moved = False  # times depend on what else is in the request
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
            window, found = decode_closed(content, _ANY), described(number)
            total = self.of(found)
            part = part_of_total(window.sum, monotonic=total.described.definition.monotonic)
            return [(total, Measurement(window, found.definition.suffixes, part))]
        return [
            (self.of(described(number)), Measurement(_window_of(time_ns, float(value)), ("",), None))
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
