"""Which windows of the ranks belong together, and when a cell is over."""

from __future__ import annotations

import random
from types import MappingProxyType

import pytest

import monitel
from monitel_otlp.cells import Cells, Closed, Row
from monitel_otlp.digest import Share

SECOND = 10**9
MINUTE = 60 * SECOND
BEGIN = 1_767_225_600 * SECOND
PATIENCE = 15.0
DEFINITION = monitel.StatDefinition("loss", (monitel.MEAN,), "", "", MappingProxyType({}), False)


def row(rank: int, end_s: float, length_s: float = 60.0, value: float = 1.0) -> Row:
    """A window of one sample that ends so many seconds after the beginning."""
    end_ns = BEGIN + round(end_s * SECOND)
    start_ns = end_ns - round(length_s * SECOND)
    return Row(DEFINITION, Share(rank, start_ns, end_ns, 1, value, value, value, value, 0, None))


def ranks_of(closed: list[Closed]) -> list[list[int]]:
    """Which ranks are in which cell."""
    return [sorted(each.shares) for each in closed]


def feed(cells: Cells, *rows: Row, now: float = 0.0, gone: frozenset[int] = frozenset()) -> list[Closed]:
    """Add these, and take what is over then."""
    for each in rows:
        cells.add(each, now)
    return list(cells.close(now, gone))


def test_a_cell_is_over_when_all_have_reported() -> None:
    """No sooner, and at once."""
    cells = Cells(PATIENCE, frozenset(range(3)))
    assert [] == feed(cells, row(0, 60), row(2, 60))
    (closed,) = feed(cells, row(1, 60))
    assert (3, BEGIN + MINUTE, BEGIN) == (closed.digest.ranks, closed.digest.end_ns, closed.digest.start_ns)


def test_a_dead_rank_is_not_waited_for() -> None:
    """It is gone: the others' cell is over without it."""
    cells = Cells(PATIENCE, frozenset(range(3)))
    assert [] == feed(cells, row(0, 60), row(1, 60))
    assert [[0, 1]] == ranks_of(feed(cells, gone=frozenset([2])))


def test_a_silent_rank_is_waited_for_once() -> None:
    """For a window's length and the patience; in the next cell it is not expected, until it is heard again."""
    cells = Cells(PATIENCE, frozenset(range(3)))
    assert [] == feed(cells, row(0, 60), row(1, 60), now=100.0)
    assert [] == feed(cells, now=100.0 + 60 + PATIENCE - 0.1)
    assert [[0, 1]] == ranks_of(feed(cells, now=100.0 + 60 + PATIENCE))
    assert [[0, 1]] == ranks_of(feed(cells, row(0, 120), row(1, 120), now=200.0))
    assert 0 == cells.late


def test_a_late_window_loses_nothing() -> None:
    """It counts in the next cell, in which its rank is waited for; and it is counted as late."""
    cells = Cells(PATIENCE, frozenset(range(2)))
    assert [[0]] == ranks_of([*feed(cells, row(0, 60)), *feed(cells, now=60 + PATIENCE)])
    assert [] == feed(cells, row(1, 60, value=3.0))
    assert [] == feed(cells, row(0, 120))
    (closed,) = feed(cells, row(1, 120))
    assert 1 == cells.late
    assert (3, 5.0, [0, 1]) == (closed.digest.count, closed.digest.sum, sorted(closed.shares))


def test_a_late_window_alone_is_not_its_ranks_report() -> None:
    """The rank's own window of that cell is still to come."""
    cells = Cells(PATIENCE, frozenset(range(2)))
    feed(cells, row(0, 60), now=0.0)
    feed(cells, now=60 + PATIENCE)
    assert [] == feed(cells, row(0, 120), row(1, 60))
    assert [3] == [closed.digest.count for closed in feed(cells, row(1, 120))]


def test_nor_are_two_of_them() -> None:
    """Together they are as long as a window and more, and still of a time that is over."""
    cells = Cells(PATIENCE, frozenset(range(2)))
    feed(cells, row(0, 60), now=0.0)
    feed(cells, now=60 + PATIENCE)
    assert [[0]] == ranks_of(feed(cells, row(0, 120)))
    assert [] == feed(cells, row(1, 60), row(1, 120), row(0, 180))
    assert [4] == [closed.digest.count for closed in feed(cells, row(1, 180))]
    assert 2 == cells.late


@pytest.mark.parametrize("seed", range(20))
def test_nodes_with_other_grids_have_one_window_in_each_cell(seed: int) -> None:
    """Grid lines are anywhere, rank by rank; in each cell there is one window of each, and none is late."""
    rng = random.Random(seed)
    phases = [0.0, *(rng.uniform(0.0, 60.0) for _ in range(30))]
    cells = Cells(PATIENCE, frozenset(range(31)))
    rows = sorted(
        (row(rank, phase + 60 * number) for rank, phase in enumerate(phases) for number in range(1, 8)),
        key=lambda each: each.share.end_ns,
    )
    closed: list[Closed] = []
    for each in rows:
        closed += feed(cells, each, now=(each.share.end_ns - BEGIN) / SECOND)
    assert 0 == cells.late
    whole = [each for each in closed[1:] if len(each.shares) == 31]
    assert 5 <= len(whole)
    assert {31} == {each.digest.count for each in whole}
    ends = [share.end_ns for each in whole for share in each.shares.values()]
    assert max(ends) - min(ends) <= len(whole) * MINUTE


def test_jitter_moves_no_window_into_another_cell() -> None:
    """The wall clock is adjusted by some microseconds, now and then: a border is far from where windows end."""
    rng = random.Random(0)
    cells = Cells(PATIENCE, frozenset(range(4)))
    for number in range(1, 50):
        found = feed(cells, *(row(rank, 60 * number + rng.gauss(0, 1e-3)) for rank in range(4)))
        assert [[0, 1, 2, 3]] == ranks_of(found)
        assert [4] == [each.digest.count for each in found]


def test_first_windows_are_shorter() -> None:
    """Each process began at another time: they end at one grid line, and are together for all that."""
    cells = Cells(PATIENCE, frozenset(range(4)))
    rows = [row(rank, 60, length_s) for rank, length_s in enumerate([20.0, 35.0, 30.0, 50.0])]
    assert [[0, 1, 2, 3]] == ranks_of(feed(cells, *rows))
    assert [[0, 1, 2, 3]] == ranks_of(feed(cells, *(row(rank, 120) for rank in range(4))))
    assert [[0, 1, 2, 3]] == ranks_of(feed(cells, *(row(rank, 180) for rank in range(4))))
    assert 0 == cells.late


def test_windows_that_were_flushed_are_added_up() -> None:
    """A rank has reported when its next window is due in the next cell."""
    cells = Cells(PATIENCE, frozenset(range(2)))
    feed(cells, row(0, 60), row(1, 60))
    assert [] == feed(cells, row(0, 90, 30.0), row(1, 120))
    (closed,) = feed(cells, row(0, 120, 30.0))
    assert (3, 2) == (closed.digest.count, closed.digest.ranks)


def test_short_windows_are_put_together_by_tenths_of_a_second() -> None:
    """Nobody looks closer over many ranks, and clocks are not that good."""
    cells = Cells(PATIENCE, frozenset([0]))
    rows = [row(0, number / 100, 0.01) for number in range(1, 101)]
    closed = feed(cells, *rows)
    closed += cells.close(0.0, frozenset(), everything=True)
    assert 10 <= len(closed) <= 11
    assert 100 == sum(each.digest.count for each in closed)


def test_cells_of_a_stat_come_in_order() -> None:
    """One that waits does not outlive one after it that is complete."""
    cells = Cells(PATIENCE, frozenset(range(2)))
    feed(cells, row(0, 60), row(1, 60))
    assert [] == feed(cells, row(0, 120))
    assert [[0], [0, 1]] == ranks_of(feed(cells, row(0, 180), row(1, 180)))


def test_series_are_apart() -> None:
    """By name and attributes; True and 1 are two."""
    cells = Cells(PATIENCE, frozenset([0]))
    kinds: list[tuple[str, dict[str, int]]] = [("a", {}), ("b", {}), ("a", {"x": 1}), ("a", {"x": True})]
    definitions = [
        monitel.StatDefinition(name, (monitel.MEAN,), "", "", MappingProxyType(attributes), False)
        for name, attributes in kinds
    ]
    found = feed(cells, *(Row(definition, row(0, 60).share) for definition in definitions))
    assert definitions == [each.digest.definition for each in found]


def test_all_that_is_open_can_be_closed() -> None:
    """At the end, in the order of time."""
    cells = Cells(PATIENCE, frozenset(range(9)))
    feed(cells, row(0, 60), row(1, 120))
    assert [[0], [1]] == ranks_of(list(cells.close(0.0, frozenset(), everything=True)))
    assert [] == list(cells.close(0.0, frozenset(), everything=True))
