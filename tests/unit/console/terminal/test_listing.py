"""The list of ranks: its order, its filter, its cursor and its lines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.console.terminal.made_ranks import NOW, SECOND, dead_rank, look_at, rank_of, waiting_rank

from monitel_otlp.autopsy.findings import PastEvent
from monitel_otlp.black_box.activity import Stage
from monitel_otlp.ledger.screen import Screen, columns_of
from monitel_otlp.summary.report import JobName
from monitel_otlp.table.columns import COLUMNS, fitting
from monitel_otlp.table.plain_text import table_lines
from monitel_otlp.terminal.line import BAD, GOOD, WARNING
from monitel_otlp.terminal.listing import Listing
from monitel_otlp.top.rank import RankState
from monitel_otlp.verdict.rules import Verdict

if TYPE_CHECKING:
    from monitel_otlp.top.rank import Look

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
    return [next(rank.rank for rank in look.ranks if rank.box == box) for box in boxes]


def test_row_has_a_cell_for_each_column() -> None:
    """One row shows all numbers of a rank, in the order of the titles."""
    listing = Listing(TERMINAL)
    row = rank_of(2, waiting=0.25, value=float("nan"))
    (line,) = shown(look_at(row), listing=listing)[2:]
    title = listing.title(200, "train.loss").text
    cells = line.split()
    assert ["2", "4002", "alive", "1200", "8.25", "█▄█", "120", "ms", "155", "ms"] == cells[:10]
    assert ["5", "%", "25", "%", "nan", "91", "%", "-", "step", "2", "min", "checkpoint.saved"] == cells[10:]
    assert title.index("WAITING") == line.index("-")
    assert title.index("LAST EVENT") == line.index("2 min")
    assert "TRAIN.LOSS" in title


def test_rank_without_a_wait_shows_the_stage_of_a_long_step() -> None:
    """A stage that others wait for, and one in which the rank waits for others; not the stages of usual steps."""
    stages = [
        Stage("forward", False, 90 * SECOND),
        Stage("backward", True, 89 * SECOND),
        Stage("data", False, SECOND - 1),
    ]
    rows = [rank_of(number, stage=stage) for number, stage in enumerate(stages)]
    counted = waiting_rank(3, 12.0, stage=stages[1])
    listing = Listing(TERMINAL)
    lines = shown(look_at(*rows, counted), listing=listing)[2:]
    begin = listing.title(200, "train.loss").text.index("WAITING")
    expected = ["1 min 30 s in forward", "1 min 29 s other ranks", "-", "12 s all_reduce"]
    assert expected == [line[begin:].split("  ")[0] for line in lines]
    listing.sort_by("waiting")
    assert [0, 1, 3, 2] == order(look_at(*rows, counted), listing)


def test_heading_and_verdict_stand_above_the_rows_of_each_job() -> None:
    """Rows are grouped by job."""
    other = rank_of(0, job=JobName("team", "vision", ""), world_size=None)
    look = look_at(rank_of(0), rank_of(1), other, verdict=Verdict("input-bound", "input-bound: 40 % waits for data"))
    lines = shown(look)
    assert "llm, run run-7, 2 of 4 ranks, on n04" == lines[0]
    assert "  input-bound: 40 % waits for data" == lines[1]
    assert "team/vision, 1 process, on n04" == lines[5]
    assert "" == lines[4]


@pytest.mark.parametrize(("kind", "style"), [("healthy", GOOD), ("stuck", BAD), ("dead", BAD), ("late-rank", WARNING)])
def test_verdict_has_a_colour(kind: str, style: str) -> None:
    """Colours distinguish verdicts, and the words say the same."""
    look = look_at(rank_of(0), verdict=Verdict(kind, "text"))  # type: ignore[arg-type]
    listing = Listing(TERMINAL)
    listing.update(look)
    assert (("  text", style),) == listing.lines(look, 80)[1].parts


def test_dead_rank_shows_how_it_died() -> None:
    """The line below the row of a dead rank has the cause and the time of its last sign of life."""
    lines = shown(look_at(dead_rank(1), rank_of(2, state=RankState.DEAD, seen_ns=0)))
    assert lines[3].startswith("  killed by SIGKILL; last sign of life 4.0 s ago, at 2026-01-02 ")
    assert "  cause unknown, as after SIGKILL or by the OOM killer" == lines[5]


def test_unreadable_box_shows_the_reason() -> None:
    """A rank whose box cannot be read keeps its row, with a question mark as its state."""
    lines = shown(look_at(rank_of(1, problem="its header is \x1b[31mdamaged")))
    assert "?" in lines[2].split()
    assert r"  cannot be read: its header is \x1b[31mdamaged" == lines[3]


def test_problems_stand_at_the_end() -> None:
    """Folders that cannot be read are shown below the jobs."""
    look = look_at(rank_of(0), problems=["'/boxes' belongs to \a another user"])
    assert r"'/boxes' belongs to \x07 another user" == shown(look)[-1]


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


def test_nan_comes_first() -> None:
    """A loss that is not a number stands above all others."""
    look = look_at(rank_of(0, value=9e99), rank_of(1, value=math.nan), rank_of(2, value=-math.inf))
    assert [1, 0, 2] == order(look, Listing(TERMINAL, "value"))


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_every_column_sorts_rows_with_and_without_values(column: object) -> None:
    """Rows of which nothing is known can be sorted by each column, and shown."""
    empty = rank_of(
        None,
        **dict.fromkeys(("pid", "step", "rate", "step_p50", "step_p99", "data", "waiting", "goodput", "value")),
        event=None,
        rates=(),
        activity="",
    )
    look = look_at(empty, waiting_rank(1, 2), dead_rank(2))
    listing = Listing(TERMINAL, column.name)  # type: ignore[attr-defined]
    assert {None, 1, 2} == {*order(look, listing)}
    listing.descending = not listing.descending
    assert {None, 1, 2} == {*order(look, listing)}


def test_neighbouring_columns_are_those_of_the_screen() -> None:
    """The order moves to the next column that is shown, and from the last one to the first."""
    names = [column.name for column, _ in fitting(60)]
    listing = Listing(TERMINAL)
    seen = []
    for _ in names:
        listing.sort_by_neighbour(1, 60)
        seen.append(listing.column)
    assert [*names[1:], names[0]] == seen
    listing.sort_by_neighbour(-1, 60)
    assert names[-1] == listing.column


def test_filter_leaves_rows_that_contain_its_text() -> None:
    """The filter applies to names, states, waits and events; a job without rows is left out."""
    other = rank_of(9, job=JobName("", "vision", ""))
    look = look_at(rank_of(0), dead_rank(1), waiting_rank(2, 3, "Barrier"), other)
    for text, ranks in {"KILLED": [1], "barr": [2], "vision": [9], "rank 2": [2], "n04": [0, 1, 2, 9]}.items():
        assert ranks == order(look, Listing(TERMINAL, filter_text=text)), text
    nothing = shown(look, listing=Listing(TERMINAL, filter_text="\x1b"))
    assert [r"no row contains '\\x1b': F4 changes the filter, Esc removes it"] == nothing
    assert ["", r"no row contains '\x1b'"] == [*table_lines(look, TERMINAL, 80, filter_text="\x1b")][1:]


def test_cursor_stays_on_its_process() -> None:
    """New values that change the order do not move the cursor to another process."""
    listing = Listing(TERMINAL, "rate")
    listing.update(look_at(rank_of(0, rate=3.0), rank_of(1, rate=2.0), rank_of(2, rate=1.0)))
    listing.move(1)
    assert listing.chosen is not None
    assert 1 == listing.chosen.rank
    listing.update(look_at(rank_of(0, rate=1.0), rank_of(1, rate=9.0), rank_of(2, rate=5.0)))
    assert 1 == listing.chosen.rank
    listing.update(look_at(rank_of(0, rate=1.0), rank_of(2, rate=5.0)))
    assert 2 == listing.chosen.rank
    listing.update(look_at())
    assert listing.chosen is None


def test_cursor_stops_at_the_ends() -> None:
    """Moving beyond the first or the last row goes to that row."""
    listing = Listing(TERMINAL)
    listing.update(look_at(*map(rank_of, range(5))))
    for distance, rank in ((99, 4), (-2, 2), (-99, 0)):
        listing.move(distance)
        assert listing.chosen is not None
        assert rank == listing.chosen.rank


def test_search_goes_to_the_next_row_and_around() -> None:
    """A search begins at the cursor, continues after it, and wraps around."""
    listing = Listing(TERMINAL)
    listing.update(look_at(dead_rank(0), rank_of(1), dead_rank(2), rank_of(3)))
    found = [listing.search("killed"), listing.chosen and listing.chosen.rank]
    found += [listing.search("killed", again=True), listing.chosen and listing.chosen.rank]
    found += [listing.search("killed", again=True), listing.chosen and listing.chosen.rank]
    assert [True, 0, True, 2, True, 0] == found
    assert not listing.search("no such text")
    assert listing.chosen is not None
    assert 0 == listing.chosen.rank


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


def test_wide_characters_do_not_move_the_columns() -> None:
    """A name of wide characters takes its columns, and no more."""
    for name in ("data", "数据加载", "🚀🚀"):
        look = look_at(waiting_rank(0, 5, name), rank_of(1))
        listing = Listing(TERMINAL)
        listing.update(look)
        assert {160} == {columns_of(line.text) for line in listing.lines(look, 160) if line.box}


def test_age_of_an_event_is_that_of_the_look() -> None:
    """Ages count from the moment of the look, even if it is shown later, and are never negative."""
    past, future = PastEvent(NOW - 90 * SECOND, 9, "a", {}), PastEvent(NOW + SECOND, 9, "b", {})
    lines = shown(look_at(rank_of(0, event=past), rank_of(1, event=future)))
    assert lines[2].endswith("1 min 30 s a")
    assert lines[3].endswith("0 ms b")
