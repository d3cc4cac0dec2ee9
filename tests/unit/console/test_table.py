"""The list of ranks: its order, its filter, its cursor and its lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.console.made_ranks import NOW, dead_rank, look_at, rank_of, waiting_rank

from monitel.console.process import JobName, PastEvent
from monitel.console.table.columns import COLUMNS, fitting
from monitel.console.table.plain_text import table_lines
from monitel.console.terminal.listing import Listing
from monitel.console.text import Screen, columns_of
from monitel.console.verdict import Verdict

if TYPE_CHECKING:
    from monitel.console.live import Look

TERMINAL = Screen(200, terminal=True, colours=True)
ASCII = Screen(200, terminal=True, colours=True, encoding="ascii")


def shown(look: Look, width: int = 200, listing: Listing | None = None) -> list[str]:
    """Return the lines of a look without spaces at their ends."""
    listing = listing or Listing(TERMINAL)
    listing.update(look)
    return [line.text.rstrip() for line in listing.lines(look, width)]


def order(look: Look, listing: Listing) -> list[int | None]:
    """Return the ranks from top to bottom."""
    listing.update(look)
    boxes = [line.box for line in listing.lines(look, 200) if line.box]
    return [next(rank.rank for rank in look.processes if rank.box == box) for box in boxes]


def test_order_follows_a_column() -> None:
    """A column has a usual direction, which can be reversed; unknown values come last in both."""
    look = look_at(rank_of(0, rate=2.0), rank_of(1, rate=None), rank_of(2, rate=9.0), rank_of(3, rate=5.0))
    listing = Listing(TERMINAL, "rate")
    assert [2, 3, 0, 1] == order(look, listing)
    assert "by rate, descending" == listing.order
    listing.descending = False
    assert [0, 3, 2, 1] == order(look, listing)
    listing.sort_by("rank")
    assert [0, 1, 2, 3] == order(look, listing)
    with pytest.raises(ValueError, match="there is no column 'speed'; the columns are rank, pid, state,"):
        listing.sort_by("speed")


def test_filter_leaves_rows_that_contain_its_text() -> None:
    """The filter applies to names, states, waits and events; a job without rows is left out."""
    other = rank_of(9, job=JobName("", "vision", ""))
    look = look_at(rank_of(0), dead_rank(1), waiting_rank(2, 3, "Barrier"), other)
    for text, ranks in {"KILLED": [1], "barr": [2], "vision": [9], "rank 2": [2], "n04": [0, 1, 2, 9]}.items():
        assert ranks == order(look, Listing(TERMINAL, filter_text=text)), text
    nothing = shown(look, listing=Listing(TERMINAL, filter_text="\x1b"))
    assert [r"no row contains '\\x1b': F4 changes the filter, Esc removes it"] == nothing
    assert ["", r"no row contains '\x1b'"] == [*table_lines(look, TERMINAL, 80, filter_text="\x1b")][1:]


def test_narrow_screens_leave_out_the_less_important_columns() -> None:
    """The rank, its state and its step are the last to go."""
    assert [column.name for column in COLUMNS] == [column.name for column, _ in fitting(200)]
    assert ["rank", "state", "step", "rate", "waiting"] == [column.name for column, _ in fitting(50)]
    assert ["rank", "state"] == [column.name for column, _ in fitting(12)]
    assert ["rank"] == [column.name for column, _ in fitting(1)]
    lost: list[str] = []
    for width in range(200, 0, -1):
        names = {column.name for column, _ in fitting(width)}
        lost += sorted({column.name for column in COLUMNS} - names - {*lost})
    assert [column.name for column in sorted(COLUMNS, key=lambda each: each.importance)][:-1] == lost


TEXTS = st.text(max_size=30)


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, TEXTS, st.integers(20, 220), st.sampled_from([TERMINAL, ASCII]))
def test_lines_fit_into_the_screen(key: str, name: str, death: str, width: int, screen: Screen) -> None:
    """Names of any characters, wide ones included, are escaped, and take no more columns than there are."""
    row = waiting_rank(1, 5, key, activity=name, event=PastEvent(NOW, 9, name, {}), host=name)
    verdict = Verdict("stuck", f"stuck: {key} {death}")
    look = look_at(row, dead_rank(0, job=JobName("", name, "")), verdict=verdict, problems=[death])
    listing = Listing(screen)
    listing.update(look)
    for line in (listing.title(width, name), *listing.lines(look, width)):
        assert columns_of(line.text.rstrip()) <= width
        assert line.text.isprintable()
        if screen is ASCII:
            assert line.text.isascii()


def test_long_ranks_and_steps_are_not_cut() -> None:
    """Ranks of 16,384 differ in their last digits, and a number of tokens is not only its first digits."""
    rows = [rank_of(rank, step=step) for rank, step in ((16376, 999_999_999), (16377, 15_234_000_000), (3, 2**62))]
    cells = {
        column.name: [column.cell(column.text(row, TERMINAL, NOW), width).strip() for row in rows]
        for column, width in fitting(100, rows=rows)
    }
    assert ["16376", "16377", "3"] == cells["rank"]
    assert ["999999999", "1.523e+10", "4.612e+18"] == cells["step"]
