"""The types of the arguments of commands."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Number = TypeVar("Number", int, float)


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
