"""Typed reading of values in stored JSON, which may be damaged: a value of the expected type, or a ValueError."""

from __future__ import annotations

from typing import Any

LARGEST = 2**64  # nanoseconds, and steps


def whole(stored: Any) -> int:
    """Return an int from 0 to :data:`LARGEST`.

    Raises:
        ValueError: Another value, True and False included.
    """
    if type(stored) is not int or not 0 <= stored <= LARGEST:
        raise ValueError("expected a whole number")
    return stored


def optional_whole(stored: Any) -> int | None:
    """Return None, or an int as :func:`whole` does.

    Raises:
        ValueError: Another value.
    """
    return None if stored is None else whole(stored)


def boolean(stored: Any) -> bool:
    """Return True or False.

    Raises:
        ValueError: Another value.
    """
    if type(stored) is not bool:
        raise ValueError("expected true or false")
    return stored


def text(stored: Any, longest: int | None = None) -> str:
    """Return a str.

    Args:
        stored: The value.
        longest: The most characters; None for no limit.

    Raises:
        ValueError: Another value, or a longer str.
    """
    if type(stored) is not str or (longest is not None and len(stored) > longest):
        raise ValueError("expected a text")
    return stored


def wholes(stored: Any, most: int) -> dict[str, int]:
    """Return whole numbers by name.

    Args:
        stored: The value.
        most: The most numbers.

    Raises:
        ValueError: Another value, or more numbers.
        AttributeError: Another value, without items.
        TypeError: Another value, without a length.
    """
    if len(stored) > most:
        raise ValueError(f"expected at most {most} numbers")
    return {text(name): whole(number) for name, number in stored.items()}
