"""Widgets that show lines, and draw only the visible ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from monitel.console.terminal.line import BAD, BAR, CHOSEN, FAINT, GOOD, PLAIN, STRONG, WARNING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monitel.console.terminal.line import Line

_COLOURS = {
    PLAIN: Style(),
    STRONG: Style(bold=True),
    FAINT: Style(dim=True),
    BAR: Style(reverse=True),
    CHOSEN: Style(reverse=True, bold=True),
    GOOD: Style(color="green"),
    WARNING: Style(color="yellow"),
    BAD: Style(color="red", bold=True),
}
_WITHOUT_COLOURS = {**_COLOURS, GOOD: Style(), WARNING: Style(bold=True), BAD: Style(bold=True)}


class Lines(ScrollView, can_focus=False):
    """Shows lines from the first one on, or from where it is scrolled to."""

    DEFAULT_CSS: ClassVar[str] = """
    Lines { background: ansi_default; color: ansi_default; scrollbar-size-vertical: 1; overflow-x: hidden; }
    Lines.bar { height: 1; overflow-y: hidden; }
    """

    def __init__(self, *, colours: bool, bar: bool = False) -> None:
        super().__init__(classes="bar" if bar else "")
        self._styles: Mapping[str, Style] = _COLOURS if colours else _WITHOUT_COLOURS
        self._shown: Sequence[Line] = ()
        self._chosen = -1

    @property
    def shown(self) -> Sequence[Line]:
        """The lines."""
        return self._shown

    def show(self, lines: Sequence[Line], chosen: int = -1) -> None:
        """Replace the lines.

        Args:
            lines: The lines.
            chosen: Index of the line under the cursor, which is scrolled into view; -1 if there is none.
        """
        if (lines, chosen) == (self._shown, self._chosen):
            return
        self._shown, self._chosen = lines, chosen
        self.virtual_size = Size(self.size.width, len(lines))
        if chosen >= 0 and self.size.height:
            self._bring_into_view(chosen)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return the visible line with this number, filled up with spaces."""
        number, width = y + self.scroll_offset.y, self.size.width
        if number >= len(self._shown):
            return Strip.blank(width)
        line = self._shown[number]
        if number == self._chosen:
            return Strip([Segment(line.text, self._styles[CHOSEN])]).adjust_cell_length(width, self._styles[CHOSEN])
        last = line.parts[-1][1] if line.parts else PLAIN
        filled = self._styles[BAR] if last == BAR else None
        segments = [Segment(text, self._styles[style]) for text, style in line.parts]
        return Strip(segments).adjust_cell_length(width, filled)

    def _bring_into_view(self, number: int) -> None:
        """Scroll to a row, with the lines around it that are not rows: its heading, and its end."""
        first, last = number, number
        while first > 0 and self._shown[first - 1].box is None:
            first -= 1
        while last + 1 < len(self._shown) and self._shown[last + 1].box is None:
            last += 1
        top, height = self.scroll_offset.y, self.size.height
        if number - first >= height:
            first = number
        if first < top:
            self.scroll_to(y=first, animate=False, force=True)
        elif last >= top + height:
            self.scroll_to(y=min(last - height + 1, first), animate=False, force=True)
