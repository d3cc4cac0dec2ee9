"""The types of the arguments of commands."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def at_least(minimum: float, maximum: float) -> Callable[[str], float]:
    """Return an argparse type: a number from ``minimum`` to ``maximum``."""

    def convert(text: str) -> float:
        value = float(text)
        if not minimum <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, got {text}")
        if value > maximum:
            raise argparse.ArgumentTypeError(f"must be at most {maximum:g}, got {text}")
        return value

    convert.__name__ = "float"  # argparse prints it: invalid float value: 'x'
    return convert


def target(text: str) -> str:
    """Return the path of a folder, or a process id. An empty text, such as that of an unset variable, is an error.

    Raises:
        argparse.ArgumentTypeError: It is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("got an empty text")
    return text
