"""Steps that never fall, tag by tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monitel_tensorboard.point import Point


class RisingSteps:
    """Settles the steps of rising points, in the order in which they are written.

    That is the training step where one is known, but never less than the tag's last; else one more than the
    last, beginning with 0.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def settle(self, point: Point) -> Point:
        """Return ``point`` with its step; a point that is not rising keeps the one it was given."""
        if not point.rising:
            return point
        last = self._last.get(point.tag, -1)
        step = last + 1 if point.step is None else max(point.step, last)
        self._last[point.tag] = step
        return point._replace(step=step)
