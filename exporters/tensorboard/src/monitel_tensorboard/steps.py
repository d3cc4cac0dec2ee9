"""Steps that never fall, tag by tag."""

from __future__ import annotations


class RisingSteps:
    """Gives each tag's next point its step.

    That is the training step where one is known, but never less than the tag's last; else one more than the
    last, beginning with 0.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def following(self, tag: str, step: int | None) -> int:
        """Return the step of the next point of ``tag``, given the training step if there is one."""
        last = self._last.get(tag, -1)
        following = last + 1 if step is None else max(step, last)
        self._last[tag] = following
        return following
