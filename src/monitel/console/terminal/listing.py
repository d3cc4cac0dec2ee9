"""The list of ranks: its order, its filter, the row under the cursor, and its lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.console.process import State
from monitel.console.table.columns import GAP, by_name, fitting, matches, sorted_ranks
from monitel.console.table.headings import heading, remark
from monitel.console.terminal.line import BAD, BAR, FAINT, GOOD, PLAIN, STRONG, WARNING, Line, plain
from monitel.console.text import cut, pad, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from monitel.console.live import Look
    from monitel.console.process import Process
    from monitel.console.table.columns import Column
    from monitel.console.text import Screen
    from monitel.console.verdict import Verdict

_STATES = {State.ALIVE: GOOD, State.SILENT: WARNING, State.DEAD: BAD, State.ENDED: FAINT}
_VERDICTS = {
    "healthy": GOOD,
    **dict.fromkeys(("dead", "failed", "silent", "stuck", "no-steps"), BAD),
    **dict.fromkeys(("starting", "unknown"), PLAIN),
}  # the others are warnings
_INDENT = "  "


class Listing:
    """The order, the filter and the cursor. They stay when the ranks change.

    Attributes:
        screen: The terminal.
        column: Name of the column to sort by.
        descending: The largest value comes first.
        filter: The text that rows must contain; empty for all rows.
        cursor: The black box of the row under the cursor; None if there is no row.
    """

    def __init__(self, screen: Screen, column: str = "rank", filter_text: str = "") -> None:
        self.screen = screen
        self.filter = filter_text
        self.cursor: Path | None = None
        self.sort_by(column)
        self._rows: list[Process] = []  # in the order of the screen

    def sort_by(self, column: str) -> None:
        """Sort by a column, in its usual direction.

        Raises:
            ValueError: There is no such column.
        """
        self.descending = by_name(column).descending
        self.column = column

    def sort_by_neighbour(self, distance: int, width: int) -> None:
        """Sort by another column of a screen: 1 is the next one to the right, -1 the one to the left."""
        names = [column.name for column, _ in fitting(width, rows=self._rows)]
        here = names.index(self.column) if self.column in names else -1
        self.sort_by(names[(here + distance) % len(names)])

    @property
    def order(self) -> str:
        """The order in words."""
        return f"by {self.column}, {'descending' if self.descending else 'ascending'}"

    @property
    def chosen(self) -> Process | None:
        """The row under the cursor."""
        return next((rank for rank in self._rows if rank.box == self.cursor), None)

    def update(self, look: Look) -> None:
        """Take the rows of a look. If the row under the cursor is gone, the one in its place is chosen."""
        before = [rank.box for rank in self._rows]
        self._rows = [
            rank
            for job in look.jobs
            for rank in sorted_ranks(job.processes, self.column, self.descending)
            if matches(rank, self.filter)
        ]
        boxes = [rank.box for rank in self._rows]
        if self.cursor not in boxes:
            place = before.index(self.cursor) if self.cursor in before else 0
            self.cursor = boxes[min(place, len(boxes) - 1)] if boxes else None

    def move(self, distance: int) -> None:
        """Move the cursor by a number of rows; it stops at the first and the last one."""
        boxes = [rank.box for rank in self._rows]
        if self.cursor in boxes:
            self.cursor = boxes[min(max(boxes.index(self.cursor) + distance, 0), len(boxes) - 1)]

    def search(self, text: str, *, again: bool = False) -> bool:
        """Move the cursor to the next row that contains a text, and return True if there is one.

        Args:
            text: The text.
            again: Leave the row under the cursor, even if it contains the text.
        """
        boxes = [rank.box for rank in self._rows]
        here = boxes.index(self.cursor) if self.cursor in boxes else 0
        start = here + again
        for rank in (*self._rows[start:], *self._rows[:start]):
            if matches(rank, text):
                self.cursor = rank.box
                return True
        return False

    def title(self, width: int, value_name: str) -> Line:
        """Return the line with the titles of the columns; the one that the rows are sorted by stands out."""
        parts = []
        for column, columns in fitting(width, self.screen.printable(value_name), self._rows):
            sorted_by = column.name == self.column
            parts += [(column.cell(column.title, columns), STRONG if sorted_by else BAR), (" " * GAP, BAR)]
        return Line((*parts, ("", BAR)))

    def lines(self, look: Look, width: int) -> list[Line]:
        """Return the lines of all jobs that have rows.

        Args:
            look: The look that was handed to ``update()`` last.
            width: Columns of the terminal.
        """
        columns = fitting(width, rows=self._rows)
        shown = {rank.box for rank in self._rows}
        rows = iter(self._rows)
        found: list[Line] = []
        for job in look.jobs:
            number = sum(rank.box in shown for rank in job.processes)
            if not number:
                continue
            found += [plain("")] if found else []
            found += [plain(cut(heading(job, self.screen), width), STRONG)]
            found += self._verdict(job.verdict, width)
            for _ in range(number):
                found += self._row(next(rows), columns, look.time_ns, width)
        for problem in look.problems:
            found += [plain(text, WARNING) for text in wrapped(self.screen.printable(problem), width)]
        return found or [plain(self._nothing(look))]

    def _verdict(self, verdict: Verdict, width: int) -> list[Line]:
        style = _VERDICTS.get(verdict.kind, WARNING)
        texts = wrapped(self.screen.printable(verdict.text), max(width - len(_INDENT), 1))
        return [plain(f"{_INDENT}{text}", style) for text in texts]

    def _row(self, rank: Process, columns: Sequence[tuple[Column, int]], now_ns: int, width: int) -> list[Line]:
        cells = [
            (column.cell(column.text(rank, self.screen, now_ns), columns_), _style(column, rank))
            for column, columns_ in columns
        ]
        parts = [part for cell in cells for part in (cell, (" " * GAP, PLAIN))]
        line = Line(tuple(_joined(parts[:-1])), rank.box)
        end = remark(rank, self.screen, now_ns)
        return [line, plain(pad(f"{_INDENT}{end}", width), BAD if not rank.problem else WARNING)] if end else [line]

    def _nothing(self, look: Look) -> str:
        if look.processes:
            return f"no row contains {self.screen.printable(self.filter)!r}: F4 changes the filter, Esc removes it"
        return "no process of this user with a black box runs here: waiting for one"


def _style(column: Column, rank: Process) -> str:
    if column.name == "state":
        return WARNING if rank.problem else _STATES[rank.state]
    return FAINT if rank.state in {State.DEAD, State.ENDED} else PLAIN


def _joined(parts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the parts; neighbours of one style are one part."""
    found: list[tuple[str, str]] = []
    for text, style in parts:
        if found and found[-1][1] == style:
            found[-1] = (found[-1][0] + text, style)
        else:
            found.append((text, style))
    return found
