"""Screens of lines: the help, and the menu of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from monitel_otlp.ledger.screen import cut
from monitel_otlp.table.columns import COLUMNS
from monitel_otlp.terminal.key_screen import KeyScreen
from monitel_otlp.terminal.keys import HELP_KEYS, MENU_KEYS, bar, help_lines
from monitel_otlp.terminal.line import STRONG, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel_otlp.ledger.screen import Screen as Terminal
    from monitel_otlp.terminal.line import Line


class ScrolledScreen(KeyScreen):
    """A screen whose lines the user scrolls."""

    def action_scroll(self, lines: int) -> None:
        """Scroll by a number of lines."""
        self.body.scroll_to(y=max(self.body.scroll_offset.y + lines, 0), animate=False)

    def action_page(self, direction: int) -> None:
        """Scroll by a page."""
        self.action_scroll(direction * max(self.body.size.height - 1, 1))


class HelpScreen(ScrolledScreen):
    """The keys and the columns."""

    KEYS = HELP_KEYS

    def head(self) -> Line:
        """Return the title."""
        return plain("monitel top: keys and columns", STRONG)

    def lines(self, width: int) -> Sequence[Line]:
        """Return the descriptions."""
        return [*help_lines(width)]


class ColumnMenu(KeyScreen):
    """A menu of the columns to sort by.

    Args:
        terminal: The terminal.
        column: Name of the column under the cursor.
        choose: Receives the name of the chosen column.
    """

    KEYS: ClassVar = MENU_KEYS

    def __init__(self, terminal: Terminal, column: str, choose: Callable[[str], object]) -> None:
        super().__init__(terminal)
        self._names = [each.name for each in COLUMNS]
        self._number, self._choose = self._names.index(column), choose

    def head(self) -> Line:
        """Return the question."""
        return plain("monitel top: sort by", STRONG)

    def lines(self, width: int) -> Sequence[Line]:
        """Return a line for each column."""
        return [plain(cut(f"{column.title:<11} {column.meaning}", width)) for column in COLUMNS]

    def draw(self) -> None:
        """Draw the menu, with the cursor."""
        self.draw_head()
        self.last.show([bar(self.KEYS)])
        self.body.show([*self.lines(self.line_width)], self._number)

    def action_move(self, distance: int) -> None:
        """Move the cursor."""
        self._number = min(max(self._number + distance, 0), len(self._names) - 1)
        self.draw()

    async def action_choose(self) -> None:
        """Sort by the column, and close the menu."""
        self._choose(self._names[self._number])
        await self.run_action("app.back")
