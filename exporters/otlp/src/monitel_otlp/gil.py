"""Between two slices of work: the training loop goes first."""

from __future__ import annotations

import time


def give_way() -> None:
    """Let a thread go on that waits for the GIL: a sleep of no time at all may take it back before that one wakes."""
    time.sleep(1e-6)  # noqa: TID251  no waiting: it only gives the GIL away
