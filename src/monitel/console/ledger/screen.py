"""Properties of the stream that a report is printed to: its width, its colours and its characters."""

from __future__ import annotations

import os
import textwrap
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable

_WIDTH = 80  # columns, where the stream is not a terminal; wider lines are hard to read
_LEAST_WIDTH = 20
_LONGEST = 10_000  # characters of a text from outside
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
        columns = given_columns() or columns
        width = min(max(columns - 1, _LEAST_WIDTH), _WIDTH) if columns else _WIDTH  # some terminals wrap a full line
        colours = terminal and not os.environ.get("NO_COLOR")
        return cls(width, terminal, colours, getattr(stream, "encoding", None) or "")

    @property
    def fills(self) -> str:
        """Four characters for the parts of a bar, from dark to light."""
        return _BLOCKS if self.printable(_BLOCKS) == _BLOCKS else _PLAIN

    def printable(self, text: str) -> str:
        r"""Return text from outside as it may be printed: one line, without control characters (``\x1b``).

        A text of more than 10,000 characters is truncated.
        """
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}... ({len(text) - _LONGEST:,} more characters)"
        return self.escaped(text)

    def escaped(self, text: str) -> str:
        """Return a whole text without control characters."""
        if text.isascii() and text.isprintable():
            return text
        shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
        try:
            return shown.encode(self.encoding, "backslashreplace").decode(self.encoding)
        except (LookupError, ValueError):  # a stream without encoding
            return shown.encode("ascii", "backslashreplace").decode()

    def paint(self, text: str, colour: str) -> str:
        """Return a text in a colour, if there are colours."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colours and colour and text else text


def given_columns() -> int:
    """Return the columns that the variable COLUMNS has; 0 if it has no number from 1 to 9999."""
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < len("10000") else 0


def columns_of(text: str) -> int:
    """Return the columns that a printable text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_columns_of_character, text))


@lru_cache(maxsize=1024)
def _columns_of_character(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def cut(text: str, columns: int) -> str:
    """Return a text of at most this many columns; two dots take the place of its rest."""
    if columns_of(text) <= columns:
        return text
    kept = used = 0
    for each in text:
        used += columns_of(each)
        if used > columns - 2:
            break
        kept += 1
    return f"{text[:kept]}.."


def pad(text: str, columns: int) -> str:
    """Return a text of exactly this many columns, cut or followed by spaces."""
    text = cut(text, columns)
    return text + (columns - columns_of(text)) * " "


def wrapped(texts: Iterable[str], columns: int) -> list[str]:
    """Return lines of at most this many columns, each text in new ones; a longer word, such as a path, stays whole."""
    return [
        line for text in texts for line in textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False)
    ]
