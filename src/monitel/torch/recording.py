"""Recording from within torch: events with rank and step, Stats that never raise, ranges, activities of a thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any

from torch import distributed

from monitel.event import Event, Severity
from monitel.handlers import log_event
from monitel.process.failures import warn_once
from monitel.process.launcher import launch_attributes
from monitel.process.os_threads import get_ident
from monitel.profiler import ranges
from monitel.profiler.ranges import record_function
from monitel.stats._window import own_add
from monitel.stats.definition import COUNT, MAX, MEAN, MIN, SUM
from monitel.stats.stat import Stat
from monitel.stats.window import Window
from monitel.training import activities

DURATIONS = [MEAN, COUNT, SUM, MAX, MIN]  #: Aggregations of durations.

_log = logging.getLogger("monitel.torch")
_NOTHING = nullcontext()
_group: Any = distributed.group if distributed.is_available() else None


def several_ranks() -> bool:
    """Return whether this process is in a process group of several ranks."""
    world = _group.WORLD if _group is not None else None
    return world is not None and world.size() > 1


def context_at(step: int | None) -> dict[str, str | int | float | bool]:
    """Return the event attributes ``training.rank`` and ``training.step``, each if it is known."""
    known = {"training.rank": launch_attributes().get("training.rank"), "training.step": step}
    return {key: value for key, value in known.items() if value is not None}


def emit_at(
    step: int | None, name: str, data: dict[str, Any], *, timestamp: datetime, severity: Severity = Severity.INFO
) -> None:
    """Log an event that happened at an earlier time and step."""
    event = Event(name, timestamp, {**data, **context_at(step)}, severity=severity)
    event._step = step
    log_event(event)


@own_add
class GuardedStat(Stat):
    """A Stat updated from inside torch calls, into which no exception of an event handler is raised."""

    __slots__ = ()

    def _log_window(self, window: Window) -> None:
        try:
            self._log_unguarded(window)
        except Exception:
            message = "an event handler raised while processing a window of %s (further failures are not logged)"
            warn_once(_log, message, self.name, exc_info=True)

    def _log_unguarded(self, window: Window) -> None:
        super()._log_window(window)


def stage_stat(name: str, stage: str, group: str | None, window_size: float) -> GuardedStat:
    """Return the Stat of the durations of one stage of a training step, in seconds."""
    attributes = {"training.stage": stage} | ({} if group is None else {"training.group": group})
    description = "One stage of a training step"
    return GuardedStat(
        name, [MEAN], window_size, unit="s", description=description, attributes=attributes, monotonic=True
    )


def training_activity(name: str, *, part_of: Collection[str] = ()) -> AbstractContextManager[Any]:
    """Return an activity if this is the training thread, and not within the activities ``part_of``."""
    thread, current, _ = activities.position()
    return activities.activity(name) if thread == get_ident() and current not in part_of else _NOTHING


def open_range(name: str) -> Callable[[None, None, None], None] | None:
    """Begin a range, and return the function that ends it; None if nothing listens."""
    if not ranges.active:
        return None
    opened = record_function(name)
    opened.__enter__()
    return opened.__exit__
