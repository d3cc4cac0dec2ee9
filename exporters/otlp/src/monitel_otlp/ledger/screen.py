"""Properties of the stream that a report is printed to: its width, its colours and its characters."""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass
from typing import TextIO

_WIDTH = 80  # columns, where the stream is not a terminal; wider lines are hard to read
_LEAST_WIDTH = 20
_BLOCKS, _PLAIN = "█▓▒░", "#=-."
_COLOURS = {"green": 32, "red": 31, "yellow": 33, "blue": 34}  # readable on dark and on light backgrounds


@dataclass(frozen=True)
class Screen:
    """Properties of a stream.

    Attributes:
        width: Columns that a line may have.
        terminal: A terminal that shows more than plain lines.
        colours: A terminal with colours, which the user has not turned off.
        encoding: The encoding of the stream.
    """

    width: int = _WIDTH
    terminal: bool = False
    colours: bool = False
    encoding: str = "utf-8"

    @classmethod
    def of(cls, stream: TextIO | None) -> Screen:
        """Return the properties of a stream. Variables: NO_COLOR, TERM and COLUMNS."""
        try:
            terminal = stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
            columns = os.get_terminal_size(stream.fileno()).columns if terminal and stream is not None else 0
        except (OSError, ValueError):  # closed, or not a file
            terminal, columns = False, 0
        given = os.environ.get("COLUMNS", "")
        columns = int(given) if given.isascii() and given.isdecimal() and len(given) < len("10000") else columns
        width = min(max(columns - 1, _LEAST_WIDTH), _WIDTH) if columns else _WIDTH  # some terminals wrap a full line
        colours = terminal and not os.environ.get("NO_COLOR")
        return cls(width, terminal, colours, getattr(stream, "encoding", None) or "")

    @property
    def fills(self) -> str:
        """Four characters for the parts of a bar, from dark to light."""
        return _BLOCKS if self.printable(_BLOCKS) == _BLOCKS else _PLAIN

    def printable(self, text: str) -> str:
        r"""Return text from outside as it may be printed: one line, without control characters (``\x1b``)."""
        shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
        try:
            return shown.encode(self.encoding, "backslashreplace").decode(self.encoding)
        except (LookupError, ValueError):  # a stream without encoding
            return shown.encode("ascii", "backslashreplace").decode()

    def paint(self, text: str, colour: str) -> str:
        """Return a text in a colour, if there are colours."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colours and colour and text else text


def columns_of(text: str) -> int:
    """Return the columns that a printable text takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(each) in {"W", "F"} for each in text)
    return len(text) + wide - sum(unicodedata.category(each) in {"Mn", "Me"} for each in text)


def cut(text: str, columns: int) -> str:
    """Return a text of at most this many columns; two dots take the place of its rest."""
    if columns_of(text) <= columns:
        return text
    while text and columns_of(text) > columns - 2:
        text = text[:-1]
    return f"{text}.."


def pad(text: str, columns: int) -> str:
    """Return a text of exactly this many columns, cut or followed by spaces."""
    text = cut(text, columns)
    return text + (columns - columns_of(text)) * " "
