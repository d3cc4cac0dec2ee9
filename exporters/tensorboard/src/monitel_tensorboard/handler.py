"""From an event to points: the handler that install registers."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING

import monitel
from monitel_tensorboard import process
from monitel_tensorboard.steps import RisingSteps
from monitel_tensorboard.tags import tag

if TYPE_CHECKING:
    from monitel import Event
    from monitel_tensorboard.writer import SummaryWriter


class Handler:
    """Queues one point for each item of an event's data.

    Attributes:
        skipped: How many items were neither a number nor text, or had no time that Unix knows.
    """

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer
        self._steps = RisingSteps()
        self.skipped = 0
        self._renew_lock()
        process.after_fork(self._renew_lock)

    def __call__(self, event: Event) -> None:
        """Queue the points; whatever the event holds, nothing is raised."""
        window = event.window
        step = monitel.get_step() if window is None else window.last_step
        for key, value in tuple(event.data.items()):
            try:
                walltime = event.timestamp.timestamp() if window is None else window.end_ns / 1e9
                self._add(tag(event, key), value, step, walltime)
            except Exception:
                self.skipped += 1

    def _add(self, name: str, value: str | float, step: int | None, walltime: float) -> None:
        with self._lock:  # so that points are queued in the order of their steps
            step = self._steps.following(name, step)
            if isinstance(value, str):
                self._writer.add_text(name, value, step, walltime)
            else:
                self._writer.add_scalar(name, value, step, walltime)

    def _renew_lock(self) -> None:
        self._lock = RLock()
