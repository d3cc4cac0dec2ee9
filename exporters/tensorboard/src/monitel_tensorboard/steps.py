"""Steps that never fall within a tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monitel_tensorboard.point import Point


class RisingSteps:
    """Assigns the steps of rising points, in the order in which they are written.

    The step is the training step, but at least the tag's last step. Without a training step, it is the tag's last step
    plus 1, beginning with 0.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def assign(self, point: Point) -> Point:
        """Return ``point`` with its step; a point that is not rising is unchanged."""
        if not point.rising:
            return point
        last = self._last.get(point.tag, -1)
        step = last + 1 if point.step is None else max(point.step, last)
        self._last[point.tag] = step
        return point._replace(step=step)
