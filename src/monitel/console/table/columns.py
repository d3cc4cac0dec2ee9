"""The columns of the table: titles, widths, cells, columns for narrow screens; the order and the filter of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from monitel.console.text import columns_of, cut, duration, number, pad, per_second, percent, sparkline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monitel.blackbox.activity import Stage
    from monitel.console.process import Process
    from monitel.console.text import Screen

    Key: TypeAlias = float | str | None
    Text: TypeAlias = Callable[[Process, Screen, int], str]

GAP = 1  # columns of the terminal between two cells
_LONG_NS = 10**9  # shorter activities are usual in a step
_MISSING = "-"
_TREND = 30  # rates of a row at most
_STEP, _LONGEST_RANK = 9, 7  # digits


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        name: The name in arguments.
        title: The heading.
        width: Columns of the terminal that it takes at least.
        importance: Narrow screens leave out the columns with the smallest numbers first.
        meaning: The meaning in a few words.
        text: Returns the printable text of a cell, which may be longer than the column. Arguments: the row, the screen,
            and the time of the look, Unix ns.
        key: Returns the value to sort by; None if it is unknown.
        right: The cells are aligned on the right.
        descending: The largest values are of the most interest.
        growth: Its share of the columns of the terminal that remain.
        most: Columns of the terminal that it takes at most.
        end: The end of a longer text is shown, not its beginning.
    """

    name: str
    title: str
    width: int
    importance: int
    meaning: str
    text: Text
    key: Callable[[Process], Key]
    right: bool = True
    descending: bool = True
    growth: int = 0
    most: int = 1 << 10
    end: bool = False

    def cell(self, text: str, width: int) -> str:
        """Return a printable text in exactly ``width`` columns of the terminal."""
        if self.end:
            text = text[-width:]
        if not self.right:
            return pad(text, width)
        text = cut(text, width)
        return " " * (width - columns_of(text)) + text


def fitting(width: int, value_name: str = "", rows: Iterable[Process] = ()) -> list[tuple[Column, int]]:
    """Return the columns of the table that fit into a screen, and the width of each.

    Args:
        width: Columns of the terminal.
        value_name: Printable name of the chosen number, which is the title of its column.
        rows: The rows, of which ranks with many digits need a wider column.
    """
    longest = min(max((len(str(row.rank)) for row in rows), default=0), _LONGEST_RANK)
    columns = [replace(each, width=max(each.width, longest)) if each.name == "rank" else each for each in COLUMNS]
    shown = sorted(columns, key=lambda each: -each.importance)
    while len(shown) > 1 and _needed(shown) > width:
        shown.pop()
    shown.sort(key=columns.index)
    free, growth = max(width - _needed(shown), 0), sum(each.growth for each in shown)
    found = []
    for column in shown:
        grown = min(column.width + (free * column.growth // growth if growth else 0), column.most)
        title = value_name.upper() if value_name and column.name == "value" else column.title
        found.append((replace(column, title=title), grown))
    return found


def by_name(name: str) -> Column:
    """Return a column.

    Raises:
        ValueError: There is no such column.
    """
    for column in COLUMNS:
        if column.name == name:
            return column
    raise ValueError(f"there is no column {name!r}; the columns are {', '.join(each.name for each in COLUMNS)}")


def _needed(columns: list[Column]) -> int:
    return sum(each.width + GAP for each in columns) - GAP


def _or_missing(value: float | None, text: Callable[[float], str]) -> str:
    return _MISSING if value is None else text(value)


def _seconds(seconds: float) -> str:
    return duration(1e9 * seconds)


def _step(step: float) -> str:
    """Return a step, which may be a number of tokens; one that is too long is rounded: its first digits mislead."""
    return str(step) if len(str(step)) <= _STEP else f"{step:.3e}"


def _activity(rank: Process, screen: Screen, _now_ns: int) -> str:
    if not rank.activity:
        return _MISSING
    age_ns = rank.activity_age_ns or 0
    return screen.printable(rank.activity) + (f" {duration(age_ns)}" if age_ns >= _LONG_NS else "")


def _waiting(rank: Process, screen: Screen, _now_ns: int) -> str:
    if not rank.waits:
        stage = _long_stage(rank)
        if stage is None:
            return _MISSING
        return f"{duration(stage.age_ns)} {'other ranks' if stage.waits else f'in {screen.printable(stage.name)}'}"
    wait, *others = rank.waits
    more = f" and {len(others)} more" if others else ""
    return f"{duration(wait.age_ns)} {screen.printable(wait.key)}{more}"


def _waiting_ns(rank: Process) -> int | None:
    stage = _long_stage(rank)
    return rank.waits[0].age_ns if rank.waits else None if stage is None else stage.age_ns


def _long_stage(rank: Process) -> Stage | None:
    return rank.stage if rank.stage is not None and rank.stage.age_ns >= _LONG_NS else None


def _event(rank: Process, screen: Screen, now_ns: int) -> str:
    if rank.event is None:
        return _MISSING
    return f"{duration(max(now_ns - rank.event.time_ns, 0))} {screen.printable(rank.event.name)}"


def _number(value: float | None) -> Key:
    """Return a key that sorts NaN before every other number: it is the news."""
    return math.inf if value is not None and math.isnan(value) else value


#: All columns, from left to right.
COLUMNS = (
    Column(
        *("rank", "RANK", 4, 14, "rank in the job"),
        lambda rank, *_: _or_missing(rank.rank, str),
        lambda rank: rank.rank,
        descending=False,
    ),
    Column(
        *("pid", "PID", 7, 9, "process id"),
        lambda rank, *_: _or_missing(rank.pid, str),
        lambda rank: rank.pid,
        descending=False,
    ),
    Column(
        *("state", "STATE", 6, 13, "alive, silent (no heartbeat), dead or ended; ? if the box cannot be read"),
        lambda rank, *_: "?" if rank.problem else rank.state.value,
        lambda rank: rank.state.value,
        right=False,
    ),
    Column(
        *("step", "STEP", _STEP, 12, "the last training step"),
        lambda rank, *_: _or_missing(rank.step, _step),
        lambda rank: rank.step,
    ),
    Column(
        *("rate", "STEP/S", 7, 11, "steps per second over the last ten seconds"),
        lambda rank, *_: _or_missing(rank.rate, per_second),
        lambda rank: rank.rate,
    ),
    Column(
        *("trend", "TREND", 8, 2, "steps per second at the last refreshes"),
        lambda rank, screen, _: sparkline(rank.rates, screen, _TREND),
        lambda rank: rank.rate,
        right=False,
        growth=1,
        most=_TREND,
        end=True,
    ),
    Column(
        *("p50", "P50", 7, 6, "median time of a step"),
        lambda rank, *_: _or_missing(rank.step_p50, _seconds),
        lambda rank: rank.step_p50,
    ),
    Column(
        *("p99", "P99", 7, 3, "time that 99 of 100 steps do not exceed"),
        lambda rank, *_: _or_missing(rank.step_p99, _seconds),
        lambda rank: rank.step_p99,
    ),
    Column(
        *("data", "DATA", 5, 8, "share of the time that went into waiting for data"),
        lambda rank, *_: _or_missing(rank.data, percent),
        lambda rank: rank.data,
    ),
    Column(
        *("wait", "WAIT", 5, 7, "share of the time that went into waiting for other ranks"),
        lambda rank, *_: _or_missing(rank.waiting, percent),
        lambda rank: rank.waiting,
    ),
    Column(
        *("value", "LOSS", 10, 5, "last value of the loss, or of the number chosen by --show"),
        lambda rank, *_: _or_missing(rank.value, number),
        lambda rank: _number(rank.value),
    ),
    Column(
        *("goodput", "GOODPUT", 7, 4, "share of the run's time that went into steps"),
        lambda rank, *_: _or_missing(rank.goodput, percent),
        lambda rank: rank.goodput,
    ),
    Column(
        *("waiting", "WAITING", 16, 10, "age and key of the longest wait in progress, or the stage of a long step"),
        _waiting,
        _waiting_ns,
        right=False,
        growth=2,
        most=40,
    ),
    Column(
        *("activity", "ACTIVITY", 12, 0, "activity of the training thread, and its age"),
        _activity,
        lambda rank: rank.activity or None,
        right=False,
        descending=False,
        growth=1,
        most=24,
    ),
    Column(
        *("event", "LAST EVENT", 18, 1, "age and name of the last event"),
        _event,
        lambda rank: rank.event.time_ns if rank.event else None,
        right=False,
        growth=2,
    ),
)


def sorted_ranks(ranks: Iterable[Process], column_name: str, descending: bool) -> list[Process]:
    """Return rows sorted by a column, those with an unknown value last. Equal rows keep their order.

    Args:
        ranks: The rows.
        column_name: The name of the column, as in :data:`monitel.console.table.columns.COLUMNS`.
        descending: The largest value comes first.

    Raises:
        ValueError: There is no such column.
    """
    key = by_name(column_name).key
    known: list[Process] = []
    unknown: list[Process] = []
    for rank in ranks:
        (unknown if key(rank) is None else known).append(rank)
    known.sort(key=key, reverse=descending)  # type: ignore[arg-type]  # the keys of one column can be compared
    return known + unknown


def matches(rank: Process, text: str) -> bool:
    """Return True if a text is in the names, the state, or the activities of a row, in capitals or not.

    Example:
        >>> from pathlib import Path
        >>> from monitel.console.table.columns import matches
        >>> from monitel.console.process import Process
        >>> row = Process(box=Path("box"), pid=4711, host="n04", rank=3, activity="data")
        >>> matches(row, "Rank 3"), matches(row, "N04"), matches(row, "checkpoint")
        (True, True, False)
    """
    texts = (
        *(rank.job.namespace, rank.job.service, rank.job.run, rank.host),
        "" if rank.pid is None else str(rank.pid),
        "" if rank.rank is None else f"rank {rank.rank}",
        *(rank.state.value, rank.death, rank.activity, rank.problem),
        *(wait.key for wait in rank.waits),
        "" if rank.event is None else rank.event.name,
    )
    wanted = text.casefold()
    return any(wanted in each.casefold() for each in texts)
