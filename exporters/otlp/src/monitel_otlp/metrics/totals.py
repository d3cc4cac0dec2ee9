"""Running totals of cumulative series, as of one item of the journal.

A request changes a draft of the totals. They change themselves when the request is settled, in one step with the
journal, so that a request that is sent again has the same values. What the journal drops enters at its place.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import monitel
from monitel.attributes import typed_items
from monitel.blackbox.forms import Definition
from monitel.blackbox.record import NUMBERS, WINDOW
from monitel.blackbox.recorder import part_of_total
from monitel.stats.window_bytes import numbers
from monitel_otlp.messages.attributes import key_values

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from monitel.blackbox.record import Item


class Described:
    """A definition, as the points of its series need it.

    Attributes:
        key: Identity of the series: several definitions may be one series.
        definition: The definition.
        attributes: Its attributes as messages.
    """

    __slots__ = ("attributes", "definition", "key")

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.key: Hashable = definition.metric, typed_items(definition.attributes)
        self.attributes: tuple[KeyValue, ...] = tuple(key_values(definition.attributes))


def definitions_of(plain: Callable[[int], Any]) -> Callable[[int], Described]:
    """Return a function that returns a definition by its number, and keeps it.

    Args:
        plain: Returns the plain value with a number.
    """
    return cache(lambda number: Described(Definition(*plain(number))))


@dataclass(slots=True, eq=False)
class SeriesTotals:
    """The running totals of a series.

    Attributes:
        described: Its first definition, which decides unit and monotonicity.
        count: Number of samples so far.
        sum: Sum of the samples so far, see :func:`monitel.blackbox.recorder.part_of_total`.
        histogram: Distribution of the samples so far; None without one.
        begin_ns: Earliest start of a window, Unix ns; 0 before.
        start_ns: Start of cumulative points, Unix ns; constant from the first point on.
        begun: Suffixes of the sums that have a point.
        end_ns: Time of the latest point, Unix ns.
    """

    described: Described
    count: int = 0
    sum: float = 0.0
    histogram: monitel.Histogram | None = None
    begin_ns: int = 0
    start_ns: int = 0
    begun: frozenset[str] = frozenset()
    end_ns: int = 0

    @property
    def definition(self) -> Definition:
        """The definition."""
        return self.described.definition

    def copy(self) -> SeriesTotals:
        """Return a copy, in a sixth of the time of ``dataclasses.replace()``."""
        totals = self.count, self.sum, self.histogram, self.begin_ns, self.start_ns, self.begun, self.end_ns
        return SeriesTotals(self.described, *totals)

    def plain(self) -> tuple[Any, ...]:
        """Return the series as plain values, for :func:`_series_of`."""
        histogram = None if self.histogram is None else _plain_histogram(self.histogram)
        totals = self.count, self.sum, histogram, self.begin_ns, self.start_ns, sorted(self.begun), self.end_ns
        return tuple(self.definition), *totals


def _series_of(plain: Sequence[Any]) -> SeriesTotals:
    definition, count, total, histogram, begin_ns, start_ns, begun, end_ns = plain
    described = Described(Definition(*definition))
    made = None if histogram is None else monitel.Histogram(*histogram)
    return SeriesTotals(described, count, total, made, begin_ns, start_ns, frozenset(begun), end_ns)


def _plain_histogram(histogram: monitel.Histogram) -> tuple[Any, ...]:
    return tuple(getattr(histogram, name) for name in histogram.__slots__)


class Row(NamedTuple):
    """A window or a logged number, or several that were merged, with the totals of its series up to it.

    Attributes:
        series: The series.
        suffixes: Requested aggregations, such as ``"mean"``; :data:`NUMBER` for a logged number.
        window: The samples. The end is the time of the points.
        finite_sum: The part of ``total_sum`` that comes from this row; None if its sum is left out of it.
        total_count: Number of the series' samples up to this row.
        total_sum: Sum of the series' samples up to this row, see :func:`monitel.blackbox.recorder.part_of_total`.
        total_histogram: Distribution of the series' samples up to this row, if it is exported.
        items: Number of windows in the row.
    """

    series: SeriesTotals
    suffixes: tuple[str, ...]
    window: monitel.Window
    finite_sum: float | None = None
    total_count: int = 0
    total_sum: float = 0.0
    total_histogram: monitel.Histogram | None = None
    items: int = 1


NUMBER = ("logged",)
_ANY = monitel.StatDefinition("any", (), "", "", {}, monotonic=False)  # the series has the real one


class Draft:
    """The totals as a request changes them: copies of the series in it.

    Attributes:
        series: The changed series by their keys.
    """

    def __init__(
        self, definitions: Callable[[int], Described], base: Callable[[Hashable], SeriesTotals | None], after_ns: int
    ) -> None:
        self._definitions = definitions
        self._base = base
        self._after_ns = after_ns
        self.series: dict[Hashable, SeriesTotals] = {}

    def rows(self, item: Item, *, histograms: bool) -> list[Row]:
        """Add an item to the totals, and return its rows, each with the totals up to it.

        Args:
            item: The next item.
            histograms: Add up distributions, too.

        Raises:
            Exception: Its values are not those of a window or of numbers. The totals are as before.
        """
        if item.kind == WINDOW:
            return [self._window(*item.value, histograms=histograms)]
        if item.kind != NUMBERS:
            raise ValueError(f"expected a window or numbers, got a record of the kind {item.kind}")
        logged = [(self._definitions(number), time_ns, float(value)) for number, time_ns, value in item.value]
        return [
            Row(self._of(described), NUMBER, monitel.Window(_ANY, at, at, 1, value, value, value, value, 0, None, None))
            for described, at, value in logged
        ]

    def _window(self, number: int, content: bytes, *, histograms: bool) -> Row:
        window = monitel.Window(_ANY, *numbers(content))
        described = self._definitions(number)
        series = self._of(described)
        finite = part_of_total(window.sum, monotonic=series.definition.monotonic)
        series.count += window.count
        series.sum += finite or 0.0
        if not series.begin_ns or window.start_ns < series.begin_ns:
            series.begin_ns = window.start_ns
        total = None
        if histograms and window.histogram is not None:
            total = window.histogram if series.histogram is None else series.histogram.merge(window.histogram)
            series.histogram = total
        return Row(series, described.definition.suffixes, window, finite, series.count, series.sum, total)

    def _of(self, described: Described) -> SeriesTotals:
        found = self.series.get(described.key)
        if found is None:
            base = self._base(described.key)
            found = base.copy() if base is not None else SeriesTotals(described, end_ns=self._after_ns)
            self.series[described.key] = found
        return found


class Totals:
    """The totals of the series of one process; the fold of the journal of its metrics.

    All methods but :meth:`draft` are called with the lock of the journal held.

    Args:
        definitions: Returns a definition of the process by its number, see :func:`definitions_of`.
        histograms: Add up distributions, too.
        after_ns: No point is earlier, Unix ns: an earlier pipeline of the process has had the same series.
        stored: A number, and a result of :meth:`plain`, from which these totals continue.

    Attributes:
        number: All items up to this one are in the totals, or dropped and not passed yet.
    """

    def __init__(
        self,
        definitions: Callable[[int], Described],
        *,
        histograms: bool,
        after_ns: int = 0,
        stored: tuple[int, Any] = (0, None),
    ) -> None:
        self._definitions = definitions
        self._histograms = histograms
        self._after_ns = after_ns
        self.number, state = stored
        series, dropped = state or ([], [])
        self._series: dict[Hashable, SeriesTotals] = {each.described.key: each for each in map(_series_of, series)}
        self._dropped: dict[tuple[int, int], list[SeriesTotals]] = {
            (first, end): [*map(_series_of, each)] for first, end, each in dropped
        }

    @property
    def newest_ns(self) -> int:
        """Time of the latest point, Unix ns; 0 without a point."""
        return max((each.end_ns for each in self._series.values()), default=0)

    def draft(self) -> Draft:
        """Return the totals for the next request."""
        return Draft(self._definitions, self._series.get, self._after_ns)

    def commit(self, number: int, draft: Draft) -> None:
        """Take in the series of a request that is settled, whose last item has this number."""
        self._series.update(draft.series)
        self.number = number

    def drop(self, first: int, end: int, items: Iterable[Item]) -> None:
        """Keep what the journal drops until its place is reached."""
        begin = next((each for each, until in self._dropped if until == first), first)
        earlier = {each.described.key: each for each in self._dropped.pop((begin, first), ())}
        found = Draft(self._definitions, earlier.get, 0)
        for item in items:
            with suppress(Exception):  # it would be lost if it was sent
                found.rows(item, histograms=self._histograms)
        self._dropped[begin, end] = [*{**earlier, **found.series}.values()]

    def pass_dropped(self, number: int) -> None:
        """Take in what was dropped before an item."""
        for first, end in sorted(self._dropped) if self._dropped else ():
            if end > number:
                break
            draft = self.draft()
            for lost in self._dropped.pop((first, end)):
                series = draft._of(lost.described)
                series.count += lost.count
                series.sum += lost.sum
                series.begin_ns = min(filter(None, (series.begin_ns, lost.begin_ns)), default=0)
                if lost.histogram is not None:
                    merged = lost.histogram if series.histogram is None else series.histogram.merge(lost.histogram)
                    series.histogram = merged
            self._series.update(draft.series)

    def plain(self) -> tuple[int, Any]:
        """Return the number and the totals as plain values."""
        dropped = [(*place, [each.plain() for each in lost]) for place, lost in self._dropped.items()]
        return self.number, ([each.plain() for each in self._series.values()], dropped)
