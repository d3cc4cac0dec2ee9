"""Measurements of a framework's own methods, beside the ledger."""

from __future__ import annotations

import time
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Seconds by which the ledger and a measurement may differ on a loaded machine.
TOLERANCE = 0.15


class Stopwatch:
    """Sums up the time in methods of classes; a call within another measured one counts for the inner one only.

    Attributes:
        seconds: Sums by activity.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._inner = [0.0]  # time in inner calls, of each call in progress
        self.seconds: dict[str, float] = {}

    def measure(self, activity: str, owner: type, *names: str) -> None:
        """Measure methods that are defined in a class."""
        for name in names:
            self._measure(activity, owner, name)

    def _measure(self, activity: str, owner: type, name: str) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            self._inner.append(0.0)
            try:
                return original(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - begin
                self.seconds[activity] = self.seconds.get(activity, 0.0) + seconds - self._inner.pop()
                self._inner[-1] += seconds

        self._patch.setattr(owner, name, call)

    def check(self) -> dict[str, float]:
        """Compare with the ledger, and return its seconds by activity."""
        book = monitel.ledger()
        assert book is not None
        assert book.elapsed_ns == sum(book.activities.values())
        found = {name: total_ns / 1e9 for name, total_ns in book.activities.items()}
        assert {name: found.get(name, 0.0) for name in self.seconds} == pytest.approx(self.seconds, abs=TOLERANCE)
        assert found.keys() & {"evaluation", "checkpoint.save", "checkpoint.load"} <= self.seconds.keys()
        return found


def checkpoints(events: Iterable[monitel.Event]) -> list[tuple[str, int | None, str, int | None]]:
    """Return the name, the step, the end of the path and the bytes of the events of checkpoints."""
    found: list[Any] = [event for event in events if event.name.startswith("checkpoint.")]
    return [
        (
            each.name.removeprefix("checkpoint."),
            each.step,
            each.data["checkpoint.path"].rpartition("/")[2],
            each.data.get("checkpoint.size"),
        )
        for each in found
    ]
