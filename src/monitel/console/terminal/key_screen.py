"""Screens whose keys are handled one after the other: the base of all, the help, and the menu of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.screen import Screen

from monitel.console.table.columns import COLUMNS
from monitel.console.terminal.keys import COMMON_KEYS, HELP_KEYS, MENU_KEYS, bar, help_lines
from monitel.console.terminal.line import STRONG, plain
from monitel.console.terminal.widgets import Lines
from monitel.console.text import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult
    from textual.events import Key as KeyEvent

    from monitel.console.terminal.keys import Key
    from monitel.console.terminal.line import Line
    from monitel.console.text import Screen as Terminal


class KeyScreen(Screen[None]):
    """A screen with a first line, lines that can be scrolled, and a last line with the keys.

    The application asks it for the action of each key, and runs the action before it looks at the next key. With
    bindings of textual, a key could overtake one that opens another screen.

    Args:
        terminal: The terminal.
    """

    KEYS: ClassVar[tuple[Key, ...]] = ()

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self.terminal = terminal
        self._actions = {name: key.action for key in (*COMMON_KEYS, *self.KEYS) for name in key.keys.split(",")}
        self.first, self.last = (Lines(colours=terminal.colours, bar=True) for _ in range(2))
        self.body = Lines(colours=terminal.colours)

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield self.first
        yield self.body
        yield self.last

    def on_mount(self) -> None:
        """Draw at once."""
        self.draw()

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.call_after_refresh(self.draw)

    @property
    def line_width(self) -> int:
        """The columns of a line; the scroll bar takes one."""
        return max(self.size.width - 1, 1)

    def action_of(self, event: KeyEvent) -> str:
        """Return the action of a key; empty if it has none, or was handled."""
        return self._actions.get(event.key, "")

    def head(self) -> Line:
        """Return the first line."""
        raise NotImplementedError

    def lines(self, width: int) -> Sequence[Line]:
        """Return the lines between the first and the last one."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw everything that has changed."""
        self.draw_head()
        self.last.show([bar(self.KEYS)])
        self.body.show([*self.lines(self.line_width)])

    def draw_head(self) -> None:
        """Draw the first line."""
        self.first.show([self.head()])


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
