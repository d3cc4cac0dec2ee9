"""Conversion of the ledger to points: the seconds of each activity so far, and the goodput."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import monitel
from monitel.training_time import GOODPUT, NAME, goodput
from monitel_tensorboard.point import Point

if TYPE_CHECKING:
    from collections.abc import Callable

_ACTIVITY = "training.activity"
_MINUTE_NS = 60 * 10**9
_SHARE = 20  # the first points are closer than a minute: each after a twentieth of the elapsed time


class LoggedLedger(NamedTuple):
    """The ledger at one moment, in the queue."""

    values: tuple[Point, ...]

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.values)

    def points(self) -> tuple[Point, ...]:
        """Return the points."""
        return self.values


class LedgerCharts:
    """Puts the ledger of the process into the queue of a writer. Thread-safe.

    Args:
        put: Appends an entry to the queue.
    """

    def __init__(self, put: Callable[[LoggedLedger], None]) -> None:
        self._put = put
        self.start_again()

    def start_again(self) -> None:
        """Forget the last points, in a forked child."""
        self._written_ns = 0  # elapsed time at the last points

    def write_if_due(self) -> None:
        """Write points if enough time has passed since the last ones, from the first step on: it is the x axis."""
        book = monitel.ledger()
        if book is None or monitel.get_step() is None:
            return
        if book.elapsed_ns - self._written_ns >= min(_MINUTE_NS, book.elapsed_ns // _SHARE):
            self.write()

    def write(self) -> None:
        """Write points, if there has been an activity or a step."""
        book, step, walltime = monitel.ledger(), monitel.get_step(), time.time()
        self._written_ns = 0 if book is None else book.elapsed_ns
        values = {
            f"{NAME}/{counter.attributes[_ACTIVITY]}": total
            for counter, total, _ in monitel.counters()
            if counter.name == NAME and _ACTIVITY in counter.attributes
        }
        if (share := goodput()) is not None:
            values[GOODPUT[0]] = share
        if values:
            points = (Point(tag, value, step, walltime, rising=True) for tag, value in values.items())
            self._put(LoggedLedger(tuple(points)))
