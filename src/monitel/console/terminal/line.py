"""Lines of a screen: printable texts and their styles."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

#: Names of styles. The terminal's palette decides how the colours look.
PLAIN, STRONG, FAINT, BAR, CHOSEN, GOOD, WARNING, BAD = (
    *("plain", "strong", "faint", "bar", "chosen"),
    *("good", "warning", "bad"),
)


class Line(NamedTuple):
    """One line of a screen.

    Attributes:
        parts: Printable texts, each with its style.
        box: The black box of the process that the line is about, for a row that can be chosen; otherwise None.
    """

    parts: tuple[tuple[str, str], ...]
    box: Path | None = None

    @property
    def text(self) -> str:
        """The line without styles."""
        return "".join(text for text, _ in self.parts)


def plain(text: str, style: str = PLAIN) -> Line:
    """Return a line in one style."""
    return Line(((text, style),))
