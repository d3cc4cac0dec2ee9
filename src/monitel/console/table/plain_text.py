"""The table as lines of text, for ``--once``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from monitel.console.process import State
from monitel.console.table.columns import GAP, fitting, matches, sorted_ranks
from monitel.console.table.headings import heading, remark, summary
from monitel.console.text import UNLIMITED, Screen, columns_of, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.console.job import Job
    from monitel.console.live import Look
    from monitel.console.process import Process
    from monitel.console.table.columns import Column

NO_BOXES = (
    "no black boxes of this user on this machine, of running or dead processes; monitel run -- COMMAND records a job"
)
_WIDE = 160  # columns of the terminal
_COLOURS = {State.ALIVE: "green", State.SILENT: "yellow", State.DEAD: "red", State.ENDED: ""}


def width_of(stream: TextIO | None) -> int:
    """Return the columns of the terminal that lines of a table may have; without a terminal 160. Variable: COLUMNS."""
    columns = Screen.of(stream).columns
    return _WIDE if columns == UNLIMITED else columns


def table_lines(
    look: Look, screen: Screen, width: int, *, sort: str = "rank", descending: bool = False, filter_text: str = ""
) -> Iterator[str]:
    """Yield the summary, and for each job its names, its verdict and its rows.

    Args:
        look: The rows.
        screen: The stream that the lines are printed to.
        width: Columns of the terminal that a line may have.
        sort: The name of the column by which the rows of each job are sorted.
        descending: The largest value comes first.
        filter_text: Only rows that match it are shown, and jobs with such rows; empty for all.
    """
    if not look.jobs:
        yield from wrapped(NO_BOXES, width)
        return
    yield from wrapped(summary(look), width)
    jobs = [
        (job, [rank for rank in job.processes if not filter_text or matches(rank, filter_text)]) for job in look.jobs
    ]
    columns = fitting(width, _value_name(look, screen), look.processes)
    for job, ranks in jobs:
        if ranks:
            yield ""
            yield from _job(job, sorted_ranks(ranks, sort, descending), columns, screen, width, look.time_ns)
    if not any(ranks for _, ranks in jobs):
        yield from ("", *wrapped(f"no row contains '{screen.printable(filter_text)}'", width))


def _job(  # noqa: PLR0917  the parts of one section
    job: Job, ranks: list[Process], columns: list[tuple[Column, int]], screen: Screen, width: int, now_ns: int
) -> Iterator[str]:
    yield from wrapped(heading(job, screen), width)
    yield from wrapped(screen.printable(job.verdict.text), width)
    yield _line([column.cell(column.title, size) for column, size in columns])
    for rank in ranks:
        cells = []
        for column, size in columns:
            cell = column.cell(column.text(rank, screen, now_ns), size)
            cells.append(screen.paint(cell, _COLOURS[rank.state]) if column.name == "state" else cell)
        yield _line(cells)
        if more := remark(rank, screen, now_ns):
            yield from (f"  {line}" for line in wrapped(more, width - 2))


def _line(cells: list[str]) -> str:
    return (" " * GAP).join(cells).rstrip()


def _value_name(look: Look, screen: Screen) -> str:
    """Return the printable name of the shown number, if it is the same in all rows; otherwise an empty one."""
    names = {rank.value_name for rank in look.processes if rank.value_name}
    name = screen.printable(names.pop()) if len(names) == 1 else ""
    return name if columns_of(name) <= columns_of(name.upper()) else ""
