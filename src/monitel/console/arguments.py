"""The parser of the commands, and the types of their arguments."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Number = TypeVar("Number", int, float)


class Parser(argparse.ArgumentParser):
    """A parser whose messages never show the value of an unknown option, which may hold a token."""

    def error(self, message: str) -> NoReturn:
        """Print a message to stderr, and exit with status 2."""
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            given = message.removeprefix(prefix).split()
            options = [each.partition("=")[0] for each in given if each.startswith("-")]
            message = prefix + " ".join(options or given)
        super().error(message)


def at_least(minimum: Number, maximum: float = math.inf) -> Callable[[str], Number]:
    """Return an argparse type: a finite number of the type of ``minimum``, from ``minimum`` to ``maximum``."""

    def convert(text: str) -> Number:
        value = type(minimum)(text)
        if not minimum <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, got {text}")
        if value > maximum:
            raise argparse.ArgumentTypeError(f"must be at most {maximum:g}, got {text}")
        return value

    convert.__name__ = type(minimum).__name__  # argparse prints it: invalid int value: 'x'
    return convert


def target(text: str) -> str:
    """Return a process id or a path, as given. An empty text, such as that of an unset variable, is an error.

    Raises:
        argparse.ArgumentTypeError: It is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("expected a process id or a folder, got an empty text")
    return text


def folder(text: str) -> Path:
    """Return the path of a folder.

    Raises:
        argparse.ArgumentTypeError: It is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, got an empty text")
    return Path(text)
