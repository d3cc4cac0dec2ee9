"""Marks for Intel's VTune, by torch's names: without ITT, which monitel does not use, they do nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_available", "mark", "range", "range_pop", "range_push"]


def is_available() -> bool:
    """Whether marks go anywhere: no."""
    return False


def range_push(msg: str) -> int:  # noqa: ARG001  torch's signature
    """Begin a mark. Returns its depth, and -1 where there is no ITT."""
    return -1


def range_pop() -> int:
    """End a mark. Returns its depth, and -1 where there is no ITT."""
    return -1


def mark(msg: str) -> None:
    """Mark a moment."""


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:  # noqa: A001  torch's name
    """Mark a block or a function; ``args`` and ``kwargs`` are formatted into ``msg``."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
