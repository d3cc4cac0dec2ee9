"""The view of one process: the findings of an autopsy of its black box, and the numbers of its row."""

from __future__ import annotations

import time
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from monitel.console.autopsy import process_lines, stack_lines
from monitel.console.process import State
from monitel.console.reader import read_boxes
from monitel.console.table.columns import COLUMNS
from monitel.console.table.headings import remark
from monitel.console.terminal.line import BAD, GOOD, PLAIN, STRONG, WARNING, Line, plain
from monitel.console.text import (
    Screen,
    clock_time,
    duration,
    labelled,
    number,
    per_second,
    percent,
    pieces,
    sparkline,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from monitel.console.process import Process

_STATES = {State.ALIVE: GOOD, State.SILENT: WARNING, State.DEAD: BAD, State.ENDED: BAD}
_TITLES = ("open windows", "last events", "stacks")  # first words of the sections of a report
_ALL_THREADS = "monitel autopsy --all shows them"
_NO_ANSWER = "the process has not answered: no Python code runs in it, or it is stopped or dead"


class Stacks(NamedTuple):
    """The answer of a process that was asked for its stacks.

    Attributes:
        found: The findings with the stacks; None if the box is gone.
        time_ns: The time of the answer, Unix ns.
    """

    found: Process | None
    time_ns: int


class Details(NamedTuple):
    """One look into a box.

    Attributes:
        found: The findings; None if the box is gone, or cannot be read.
        problems: Descriptions of a box that cannot be read.
        time_ns: The time of the look, Unix ns.
    """

    found: Process | None
    problems: tuple[str, ...]
    time_ns: int


def read_details(box: Path) -> Details:
    """Return what is in a box now. The process is not asked for stacks."""
    problems: list[str] = []
    found = read_boxes([box], problems, stacks=False)
    return Details(found[0] if found else None, tuple(problems), time.time_ns())


def read_stacks(box: Path) -> Stacks:
    """Ask a process for its stacks, and wait for the answer for at most three seconds."""
    found = read_boxes([box], [])
    return Stacks(found[0] if found else None, time.time_ns())


def detail_lines(rank: Process, details: Details | None, screen: Screen, width: int, now_ns: int) -> Iterator[Line]:
    """Yield the lines about one process, without its stacks.

    Args:
        rank: Its row.
        details: The last look into its box that has succeeded; None if there was none.
        screen: The terminal.
        width: Columns of the terminal.
        now_ns: The time of the look that the row is from, Unix ns.
    """
    wide = _plain_screen(screen, width)
    if details is None or details.found is None:
        for column in COLUMNS:
            yield from map(plain, labelled(column.title, column.text(rank, screen, now_ns), width))
        yield from (plain(text, BAD) for text in labelled("END", remark(rank, screen, now_ns), width))
        return
    title, *report = process_lines(details.found, wide, details.time_ns, complete=True)
    facts = [*takewhile(bool, report)]
    yield plain(title, STRONG)
    for line in facts:
        yield plain(line, _STATES[details.found.state] if line.startswith("state ") else PLAIN)
    yield from _numbers(rank, wide)
    previous = "facts"
    for line in report[len(facts) :]:
        style = PLAIN if previous or not line.startswith(_TITLES) else STRONG
        yield from (plain(piece, style) for piece in pieces(line, width))
        previous = line


def answer_lines(stacks: Stacks, screen: Screen, width: int) -> Iterator[Line]:
    """Yield the lines of the stacks of a live process, or that it has not answered."""
    yield plain("")
    yield plain(f"stacks at {clock_time(stacks.time_ns)}", STRONG)
    if stacks.found is None or not stacks.found.stacks:
        yield from (plain(text, WARNING) for text in wrapped(_NO_ANSWER, width))
        return
    _, *lines = stack_lines(stacks.found, _plain_screen(screen, width), complete=False, hint=_ALL_THREADS)
    yield from map(plain, lines)


def _numbers(rank: Process, screen: Screen) -> Iterator[Line]:
    """Yield the numbers of a row that the findings do not have."""
    trend = sparkline(rank.rates, screen, max(screen.width - 30, 0))
    times = (("p50", rank.step_p50), ("p99", rank.step_p99))
    shares = (("data", rank.data), ("waits", rank.waiting), ("goodput", rank.goodput))
    rows = (
        ("rate", "" if rank.rate is None else f"{per_second(rank.rate)} steps/s  {trend}"),
        ("step time", ", ".join(f"{name} {duration(1e9 * value)}" for name, value in times if value is not None)),
        ("shares", ", ".join(f"{name} {percent(value)}" for name, value in shares if value is not None)),
        ("value", "" if rank.value is None else f"{screen.printable(rank.value_name)} {number(rank.value)}"),
    )
    for label, text in rows:
        yield from map(plain, labelled(label, text, screen.width))


def _plain_screen(screen: Screen, width: int) -> Screen:
    return Screen(width, screen.terminal, colours=False, encoding=screen.encoding)
