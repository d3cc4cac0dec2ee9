"""Output of the commands: every line goes through :func:`show` or :func:`warn`, which escape control characters.

A text from outside, such as a name in a black box or an error with a path, could otherwise control the terminal.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from monitel.text import Screen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

_COLOUR = re.compile(r"(\x1b\[\d{1,2}m)")  # as Screen.paint() makes it


class CommandError(Exception):
    """Raised for arguments that a command cannot use, or if it has no screen. The message contains advice."""


class OutputError(Exception):
    """Raised if stdout cannot be written. The message contains the reason."""


def show(text: str, *, flush: bool = False) -> None:
    """Print lines to stdout; raises BrokenPipeError if nobody reads it any more, else OutputError."""
    with _stdout() as stream:
        stream.write(f"{_safe(text, stream)}\n")
    if flush:
        write_out()


def write_out() -> None:
    """Write everything that was shown; the errors are those of :func:`show`."""
    with _stdout() as stream:
        stream.flush()


@contextmanager
def _stdout() -> Iterator[TextIO]:
    if sys.stdout is None:
        raise OutputError("stdout is closed: the output of this command needs it")
    try:
        yield sys.stdout
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"stdout cannot be written: {error.strerror}") from None


def warn(message: object, program: str = "monitel") -> None:
    """Print a problem to stderr, if that can be written, with the name of the program before it unless it is empty."""
    if (stream := sys.stderr) is not None:
        with suppress(OSError, ValueError):  # it is closed, or full: there is no place for the message
            text = _safe(str(message), stream)
            stream.write(f"{program}: {text}\n" if program else f"{text}\n")
            stream.flush()


def _safe(text: str, stream: TextIO) -> str:
    """Return lines without control characters, except the colours of a terminal that has them."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    screen = Screen.of(stream)
    if not screen.encoding:  # text in memory
        screen = replace(screen, encoding="utf-8")

    def line(content: str) -> str:
        if not screen.colours:
            return screen.escaped(content)
        parts = _COLOUR.split(content)
        return "".join(part if place % 2 else screen.escaped(part) for place, part in enumerate(parts))

    return "\n".join(map(line, text.split("\n")))
