"""Stats that are updated from inside torch calls."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monitel._window import own_add
from monitel.aggregation import COUNT, MAX, MEAN, MIN, SUM
from monitel.stats import Stat

if TYPE_CHECKING:
    from monitel.window import Window

DURATIONS = [MEAN, COUNT, SUM, MAX, MIN]  #: Aggregations of durations.

_log = logging.getLogger("monitel.torch")
_warned = False


@own_add
class GuardedStat(Stat):
    """A Stat updated from inside torch calls. Exceptions of event handlers are logged, never raised into the caller.

    Otherwise they would be raised by ``optimizer.step()`` or ``next(batches)``. Only the first one is logged.
    """

    __slots__ = ()

    def _log_window(self, window: Window) -> None:
        global _warned
        try:
            self._log_unguarded(window)
        except Exception:
            if not _warned:
                _warned = True
                _log.warning(
                    "an event handler raised while processing a window of %s (further failures are not logged)",
                    self.name,
                    exc_info=True,
                )

    def _log_unguarded(self, window: Window) -> None:
        super()._log_window(window)


def stage_stat(name: str, stage: str, group: str | None, window_size: float) -> GuardedStat:
    """Return the Stat of the durations of one stage of a training step, in seconds.

    Args:
        name: Its name.
        stage: The attribute ``training.stage``.
        group: The attribute ``training.group``; None for no group.
        window_size: Window size in seconds.
    """
    attributes = {"training.stage": stage} | ({} if group is None else {"training.group": group})
    description = "One stage of a training step"
    return GuardedStat(
        name, [MEAN], window_size, unit="s", description=description, attributes=attributes, monotonic=True
    )
