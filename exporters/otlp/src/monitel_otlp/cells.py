"""Which windows of the ranks belong together: cells of time, and when one is complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from monitel_otlp.digest import Digest, Share, digest

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from collections.abc import Set as AbstractSet

    import monitel

_SHORTEST_NS = 100_000_000
_MILLISECOND_NS = 1_000_000
_MARGIN = 8  # a cell goes on for this part of its length after the grid line
_LONGEST_MARGIN_NS = 10_000_000_000


class Row(NamedTuple):
    """One window of one rank."""

    definition: monitel.StatDefinition
    share: Share


class Closed(NamedTuple):
    """A cell that is over: its digest, and what each rank had to say."""

    digest: Digest
    shares: dict[int, Share]


@dataclass(slots=True)
class _Cell:
    opened: float
    shares: dict[int, Share] = field(default_factory=dict)


class Cells:
    """Puts together windows of one Stat that end at about the same time, one of each rank.

    Windows lie on multiples of their length of a process' monotonic clock: those of one node end together, those of
    two nodes up to a length apart. So time is divided, for each Stat, into cells of the windows' length, by the wall
    clock; a cell goes on for an eighth of it (10 s at most) after the end of the longest window that has been seen,
    which is the first whole one. Each rank has then one window in each cell, and its ends are far from a border on
    that node; windows of one cell cover times that differ by less than a length, and by what the nodes' clocks
    differ. Windows shorter than 0.1 s, or cut short by ``flush()`` or ``max_samples``, are added up.

    A cell is over when all ranks have reported that were in the one before and are not gone (in the first: that are
    in the world), or a window's length and ``patience`` after its first one came. A window that comes later goes into
    the next cell and is counted in ``late``: means shift a little, counts and sums lose nothing.

    For one thread at a time.

    Args:
        patience: Seconds to wait for a rank beyond the windows' length.
        world: The ranks that are awaited at first.
    """

    def __init__(self, patience: float, world: AbstractSet[int]) -> None:
        self.late = 0
        self.world = world
        self._patience = patience
        self._series: dict[Hashable, _Series] = {}

    def add(self, row: Row, now: float) -> None:
        """Take a window of a rank at a time of the monotonic clock."""
        definition = row.definition
        attributes = frozenset((name, type(value), value) for name, value in definition.attributes.items())
        series = self._series.get((definition.name, attributes))
        if series is None:
            series = self._series[definition.name, attributes] = _Series(definition, self.world)
        self.late += series.add(row.share, now)

    def close(self, now: float, gone: AbstractSet[int], *, everything: bool = False) -> Iterator[Closed]:
        """The cells that are over, those of one Stat in the order of time.

        Args:
            now: By the monotonic clock.
            gone: Ranks that will not report any more.
            everything: Close all cells.
        """
        for series in self._series.values():
            yield from series.close(now, self._patience, gone, everything=everything)


class _Series:
    """The cells of one Stat.

    Attributes:
        definition: Of the window that came first.
    """

    def __init__(self, definition: monitel.StatDefinition, world: AbstractSet[int]) -> None:
        self.definition = definition
        self._awaited = set(world)
        self._length_ns = 0
        self._border_ns = 0  # the end of some cell
        self._cells: dict[int, _Cell] = {}
        self._done_ns = 0  # where the last cell ended that is over

    def add(self, share: Share, now: float) -> bool:
        """Take a rank's window; whether it is late."""
        length_ns = share.end_ns - share.start_ns
        if length_ns > self._length_ns + _MILLISECOND_NS or not self._length_ns:
            self._take_measure(share, length_ns)
        index, first = self._index(share.end_ns), self._index(self._done_ns + 1)
        late = index < first
        if late:
            self._awaited.add(share.rank)
        self._put(max(index, first), share, now)
        return late

    def close(self, now: float, patience: float, gone: AbstractSet[int], *, everything: bool) -> Iterator[Closed]:
        indices = sorted(self._cells)
        overdue = now - patience - self._length_ns / 1e9
        over = [
            index
            for index in indices
            if everything or self._cells[index].opened <= overdue or self._awaited - gone <= self._reported(index)
        ]
        for index in indices:
            if over and index <= over[-1]:
                shares = self._cells.pop(index).shares
                self._awaited = set(shares)
                self._done_ns = self._end(index)
                yield Closed(digest(self.definition, shares), shares)

    def _take_measure(self, share: Share, length_ns: int) -> None:
        """The longest window so far says where the grid is; open cells are laid out anew."""
        rounded = round(length_ns / _MILLISECOND_NS) * _MILLISECOND_NS
        self._length_ns = max(_SHORTEST_NS, rounded)
        self._border_ns = share.end_ns + min(self._length_ns // _MARGIN, _LONGEST_MARGIN_NS)
        cells, self._cells = self._cells, {}
        for cell in cells.values():
            for moved in cell.shares.values():
                self._put(self._index(moved.end_ns), moved, cell.opened)

    def _put(self, index: int, share: Share, opened: float) -> None:
        cell = self._cells.setdefault(index, _Cell(opened))
        cell.opened = min(cell.opened, opened)
        known = cell.shares.get(share.rank)
        cell.shares[share.rank] = share if known is None else known.joined(share)

    def _reported(self, index: int) -> AbstractSet[int]:
        """The ranks whose next window, as long as this one, ends in a later cell; a late one is of an earlier cell."""
        end_ns = self._end(index)
        return {
            rank
            for rank, share in self._cells[index].shares.items()
            if share.end_ns > end_ns - self._length_ns and 2 * share.end_ns - share.start_ns > end_ns
        }

    def _index(self, end_ns: int) -> int:
        return -((self._border_ns - end_ns) // self._length_ns)

    def _end(self, index: int) -> int:
        return self._border_ns + index * self._length_ns
