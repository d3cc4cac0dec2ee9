"""Lines of a report that fit into the columns of a screen, and numbers of few characters."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from monitel.console.ledger.screen import columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHORT_LABEL, _LABEL = 9, 15  # columns of the labels on a narrow screen, and on another one
_NARROW = 60


def labelled(label: str, text: str, width: int) -> Iterator[str]:
    """Yield the lines of a printable text behind a label. An empty text gives no line."""
    if width < _NARROW and columns_of(label) >= _SHORT_LABEL:
        yield label
        label = ""
    indent = _SHORT_LABEL if width < _NARROW else _LABEL
    for line in wrapped(text, width - indent):
        yield f"{label:<{indent}}{line}".rstrip()
        label = ""


def wrapped(text: str, columns: int) -> Iterator[str]:
    """Yield the lines of a printable text, each of at most this many columns, broken at spaces where possible."""
    line = ""
    for word in text.split():
        if line and columns_of(line) + 1 + columns_of(word) <= columns:
            line += f" {word}"
            continue
        if line:
            yield line
        *full, line = pieces(word, columns)
        yield from full
    if line:
        yield line


def pieces(text: str, columns: int) -> list[str]:
    """Return a printable text in pieces of at most this many columns; at least one piece."""
    found, piece, used = [], "", 0
    for each in text:
        size = columns_of(each)
        if piece and used + size > columns:
            found.append(piece)
            piece, used = "", 0
        piece += each
        used += size
    return [*found, piece]


def number(value: float) -> str:
    """Return a number in at most ten characters.

    Example:
        >>> number(0.25), number(1200), number(-1.5e300), number(float("nan"))
        ('0.25', '1200', '-1.5e+300', 'nan')
    """
    value = float(value)
    if math.isfinite(value) and value == int(value) and abs(value) < 10**9:
        return str(int(value))
    shown = f"{value:.5g}"
    return shown if len(shown) <= len("-1.234e-05") else f"{value:.3g}"


def clock_time(time_ns: int) -> str:
    """Return the local time of a day."""
    return _format("%H:%M:%S", time_ns)


def moment(time_ns: int) -> str:
    """Return the local date and time."""
    return _format("%Y-%m-%d %H:%M:%S", time_ns)


def _format(form: str, time_ns: int) -> str:
    try:
        return time.strftime(form, time.localtime(time_ns / 1e9))
    except (OverflowError, ValueError, OSError):
        return "an impossible time"
