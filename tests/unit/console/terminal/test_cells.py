"""Cells of the table: how they grow, what they show at the limits, and by what they are sorted."""

from __future__ import annotations

import pytest
from tests.unit.console.terminal.made_ranks import NOW, SECOND, rank_of

from monitel_otlp.autopsy.findings import PastEvent, Wait
from monitel_otlp.ledger.screen import Screen
from monitel_otlp.table.columns import COLUMNS, GAP, by_name, fitting
from monitel_otlp.table.figures import per_second, percent, short_time, sparkline
from monitel_otlp.table.order import sorted_ranks

SCREEN = Screen(200)
#: Columns of the terminal that all columns take at least.
ALL = sum(column.width for column in COLUMNS) + GAP * (len(COLUMNS) - 1)


def test_columns_fill_the_screen_exactly() -> None:
    """All are shown from the width that they need, and one column less leaves one out. The rest is shared."""
    assert {column.name: column.width for column in COLUMNS} == {column.name: width for column, width in fitting(ALL)}
    lost = {column.name for column in COLUMNS} - {column.name for column, _ in fitting(ALL - 1)}
    assert {"activity"} == lost
    growing = {column.name: column.growth for column in COLUMNS if column.growth}
    wider = {column.name: width - column.width for column, width in fitting(ALL + 12)}
    assert {name: 2 * share for name, share in growing.items()} == {name: more for name, more in wider.items() if more}
    for width in range(12, 400):
        widths = [size for _, size in fitting(width)]
        assert sum(widths) + GAP * (len(widths) - 1) <= width
    assert all(size <= column.most for column, size in fitting(1000))


def test_long_ranks_and_steps_are_not_cut() -> None:
    """Ranks of 16,384 differ in their last digits, and a number of tokens is not only its first digits."""
    rows = [rank_of(rank, step=step) for rank, step in ((16376, 999_999_999), (16377, 15_234_000_000), (3, 2**62))]
    cells = {
        column.name: [column.cell(column.text(row, SCREEN, NOW), width).strip() for row in rows]
        for column, width in fitting(100, rows=rows)
    }
    assert ["16376", "16377", "3"] == cells["rank"]
    assert ["999999999", "1.523e+10", "4.612e+18"] == cells["step"]


def test_activity_shows_its_age_from_one_second() -> None:
    """Shorter ones change at each look."""
    ages = (None, SECOND - 1, SECOND, 90 * SECOND)
    texts = [by_name("activity").text(rank_of(0, activity="data", activity_age_ns=age), SCREEN, NOW) for age in ages]
    assert ["data", "data", "data 1.0 s", "data 1 min 30 s"] == texts
    assert "-" == by_name("activity").text(rank_of(0, activity=""), SCREEN, NOW)


def test_longest_wait_is_shown_with_the_number_of_others() -> None:
    """The first wait of a row is the longest."""
    waits = (Wait("all_reduce", 70 * SECOND), Wait("share", 9 * SECOND), Wait("queue", SECOND))
    texts = [by_name("waiting").text(rank_of(0, waits=waits[:number]), SCREEN, NOW) for number in range(4)]
    expected = "1 min 10 s all_reduce"
    assert ["-", expected, f"{expected} and 1 more", f"{expected} and 2 more"] == texts


def test_waits_and_events_are_sorted_by_time() -> None:
    """The longest wait and the latest event come first; rows without one come last."""
    waits = [rank_of(0, waits=()), *(rank_of(each, waits=(Wait("w", each * SECOND),)) for each in (5, 9, 7))]
    assert [9, 7, 5, 0] == [row.rank for row in sorted_ranks(waits, "waiting", by_name("waiting").descending)]
    events = [rank_of(0, event=None), *(rank_of(each, event=PastEvent(each, 9, "e", {})) for each in (5, 9, 7))]
    assert [9, 7, 5, 0] == [row.rank for row in sorted_ranks(events, "event", by_name("event").descending)]
    doing = [rank_of(0, activity=""), rank_of(1, activity="step"), rank_of(2, activity="data")]
    assert [2, 1, 0] == [row.rank for row in sorted_ranks(doing, "activity", by_name("activity").descending)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 ms"),
        (0.00999, "9.99 ms"),
        (0.009996, "10.0 ms"),
        (0.0996, "99.6 ms"),
        (0.09996, "100 ms"),
        (0.9994, "999 ms"),
        (0.9995, "1.00 s"),
        (9.996, "10.0 s"),
        (99.94, "99.9 s"),
        (99.96, "100 s"),
        (100.0, "1.7 min"),
        (590.0, "9.8 min"),
        (3600.0, "1.0 h"),
    ],
)
def test_times_in_seven_characters_beside_their_limits(seconds: float, text: str) -> None:
    """Rounding does not add a digit."""
    assert text == short_time(seconds)
    assert len(text) <= 7


def test_rates_and_shares_beside_their_limits() -> None:
    """Small ones are not shown as nothing."""
    rates = (0.9994, 1.0, 9.996, 99_999.0, 100_000.0)
    assert ["0.999", "1.00", "10.0", "99999", "1e+05"] == [*map(per_second, rates)]
    assert ["0 %", "<1 %", "<1 %", "1 %", "100 %", "nan"] == [
        *map(percent, (0.0, 1e-9, 0.00499, 0.0051, 0.996, float("nan")))
    ]


def test_sparkline_shows_the_last_rates() -> None:
    """Zero is the lowest block, any other rate at least as high, and the largest one the highest."""
    assert "▁▁▅█" == sparkline([9.0, 0.0, 0.1, 5.0, 8.0], SCREEN, 4)
    assert "▁▁" == sparkline([0.0, 0.0], SCREEN, 8)
    assert "▁█▁" == sparkline([float("nan"), 1.0, -1.0], SCREEN, 8)
    assert "" == sparkline([1.0], SCREEN, 0)
