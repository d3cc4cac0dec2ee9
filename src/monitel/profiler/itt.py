"""Names of ``torch.profiler.itt``, marks for Intel VTune. They have no effect: monitel does not use ITT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["is_available", "mark", "range", "range_pop", "range_push"]


def is_available() -> bool:
    """Return False."""
    return False


def range_push(msg: str) -> None:
    """Do nothing."""


def range_pop() -> None:
    """Do nothing."""


def mark(msg: str) -> None:
    """Do nothing."""


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:  # noqa: A001, ARG001  torch's name and signature
    """Do nothing around a block, or around each call of a function."""
    yield
