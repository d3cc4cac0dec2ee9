"""The screen with the list of ranks, and the line in which a text for search or filter is typed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from monitel.console.table.headings import summary
from monitel.console.terminal.key_screen import ColumnMenu, KeyScreen
from monitel.console.terminal.keys import LIST_KEYS, bar
from monitel.console.terminal.line import BAD, BAR, FAINT, PLAIN, STRONG, WARNING, Line, plain
from monitel.console.terminal.widgets import Lines

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import Key as KeyEvent
    from textual.events import Paste

    from monitel.console.live import Look
    from monitel.console.terminal.listing import Listing

_SEARCH, _FILTER = "search", "filter"
_ASKED = {
    _SEARCH: ("Search: ", "   F3 next match, Enter or Esc closes"),
    _FILTER: ("Filter: ", "   Enter keeps it, Esc removes it"),
}


class ListScreen(KeyScreen):
    """The list of ranks.

    Args:
        listing: The order, the filter and the cursor.
    """

    KEYS: ClassVar = LIST_KEYS

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing.screen)
        self._listing = listing
        self._asked = ""  # the text is typed for it
        self._typed = ""
        self._titles = Lines(colours=listing.screen.colours, bar=True)
        self._look: Look | None = None
        self.paused = False
        self.slow_seconds = 0.0

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield self.first
        yield self._titles
        yield self.body
        yield self.last

    def on_screen_resume(self) -> None:
        """Draw the looks that came while another screen was shown."""
        self.draw()

    def take(self, look: Look) -> None:
        """Show a look."""
        self._look = look
        self._listing.update(look)
        if self.is_current:
            self.draw()

    def draw(self) -> None:
        """Draw everything that has changed."""
        if not self.size.width:
            return  # it is not laid out yet
        width = self.line_width
        self.draw_head()
        self.last.show([self._input_line() if self._asked else bar(self.KEYS)])
        if self._look is None:
            self.body.show([plain("reading the black boxes of this machine")])
            return
        named = next((rank.value_name for rank in self._look.processes if rank.value_name), "")
        self._titles.show([self._listing.title(width, named)])
        lines = self._listing.lines(self._look, width)
        chosen = (number for number, line in enumerate(lines) if line.box and line.box == self._listing.cursor)
        self.body.show(lines, next(chosen, -1))

    def head(self) -> Line:
        """Return the summary, the filter and the order."""
        parts = [("monitel top", STRONG)]
        if self.paused:
            parts.append(("  PAUSED, p continues", WARNING))
        elif self.slow_seconds:
            parts.append((f"  reading the black boxes has taken {self.slow_seconds:.0f} s so far", BAD))
        elif self._look is not None:
            parts.append((time.strftime("  %H:%M:%S", time.localtime(self._look.time_ns / 1e9)), PLAIN))
        if self._look is not None:
            parts.append((f"  {summary(self._look)}", PLAIN))
        if self._listing.filter:
            parts.append((f"  filter {self._listing.screen.printable(self._listing.filter)!r}", WARNING))
        parts.append((f"  {self._listing.order}", FAINT))
        return Line(tuple(parts))

    def _input_line(self) -> Line:
        before, after = _ASKED[self._asked]
        return Line(((before, STRONG), (self.terminal.printable(self._typed), PLAIN), (" ", BAR), (after, FAINT)))

    def _changed(self) -> None:
        if self._look is not None:
            self._listing.update(self._look)
        self.draw()

    def action_move(self, distance: int) -> None:
        """Move the cursor."""
        self._listing.move(distance)
        self.draw()

    def action_page(self, direction: int) -> None:
        """Move the cursor by a page."""
        self.action_move(direction * max(self.body.size.height - 1, 1))

    def action_neighbour(self, distance: int) -> None:
        """Sort by the next column."""
        self._listing.sort_by_neighbour(distance, self.line_width)
        self._changed()

    def action_sort_by(self, column: str) -> None:
        """Sort by a column."""
        self._listing.sort_by(column)
        self._changed()

    def action_sort(self) -> None:
        """Open the menu of columns."""
        self.app.push_screen(ColumnMenu(self.terminal, self._listing.column, self.action_sort_by))

    def action_invert(self) -> None:
        """Reverse the order."""
        self._listing.descending = not self._listing.descending
        self._changed()

    def action_search(self) -> None:
        """Ask for a text to search."""
        self._ask(_SEARCH, "")

    def action_filter(self) -> None:
        """Ask for the text of the filter."""
        self._ask(_FILTER, self._listing.filter)

    def action_clear(self) -> None:
        """Remove the filter."""
        self._listing.filter = ""
        self._changed()

    def action_of(self, event: KeyEvent) -> str:
        """Return the action of a key. While a text is typed, most keys are its characters."""
        if not self._asked or event.key in {"ctrl+c", "ctrl+z"}:
            return super().action_of(event)
        if event.key in {"enter", "escape"}:
            if event.key == "escape" and self._asked == _FILTER:
                self._listing.filter = ""
            self._ask("", "")
        elif event.key in {"f3", "down"} and self._asked == _SEARCH:
            self._listing.search(self._typed, again=True)
            self.draw()
        elif event.key in {"backspace", "ctrl+u"}:
            self._type(self._typed[:-1] if event.key == "backspace" else "")
        elif event.is_printable and event.character:
            self._type(self._typed + event.character)
        return ""

    def on_paste(self, event: Paste) -> None:
        """Take the printable characters of a pasted text."""
        if self._asked:
            self._type(self._typed + "".join(filter(str.isprintable, event.text)))

    def _type(self, text: str) -> None:
        """Search or filter while the text is typed."""
        self._typed = text
        if self._asked == _SEARCH:
            self._listing.search(text)
        else:
            self._listing.filter = text
        self._changed()

    def _ask(self, asked: str, text: str) -> None:
        self._asked, self._typed = asked, text
        self._changed()
