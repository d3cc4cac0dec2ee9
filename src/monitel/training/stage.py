"""The stage of the training thread now, which exporters read from a source that measures stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StageNow", "forget", "provide", "stage_now"]


class StageNow(NamedTuple):
    """The stage in flight of the training thread.

    Attributes:
        name: The stage.
        waits: True if the thread waits for other ranks in it.
        age_ns: Time since its begin.
        thread: Identity of the thread.
    """

    name: str
    waits: bool
    age_ns: int
    thread: int


_read: Callable[[], StageNow | None] | None = None


def provide(read: Callable[[], StageNow | None]) -> None:
    """Set the function that returns the stage in flight. Any thread may call it."""
    global _read
    _read = read


def forget(read: Callable[[], StageNow | None]) -> None:
    """Remove the function, unless another one has taken its place."""
    global _read
    if _read == read:
        _read = None


def stage_now() -> StageNow | None:
    """Return the stage in flight; None if nothing measures stages, or the training thread has ended.

    Example:
        >>> from monitel.training.stage import stage_now
        >>> stage_now() is None
        True
    """
    read = _read
    return None if read is None else read()
