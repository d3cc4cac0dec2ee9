"""Decision when the metrics of the process are recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import monitel
from monitel.readings import counter_names, monotonic_ns, wait_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from monitel_otlp.metrics.wait_readings import WaitReadings

_LONG_NS = 5_000_000_000  # a wait that lasts longer is sent soon


class Occasion:
    """Decides in which rounds the metrics of the process are sent: self-metrics, instruments, counters and waits.

    They go with windows. Without windows they are sent once in so many seconds, and soon if:

    * an item was lost;
    * a wait has been in flight for five seconds, or such a wait has ended;
    * a counter, a wait counter or the step is there for the first time.

    Use it in one thread at a time.

    Args:
        idle_interval: Seconds between two sendings without windows; 0 for one in each round.
        lost: Returns the number of items lost so far.
        waits: Reads the wait counters; None in an attached pipeline.
    """

    def __init__(self, idle_interval: float, lost: Callable[[], int], waits: WaitReadings | None) -> None:
        self._idle_ns = round(idle_interval * 1e9)
        self._lost = lost
        self._waits = waits
        self._due_ns = 0  # monotonic time
        self._seen: Hashable = None  # state of the process when its metrics were last sent
        self._now: Hashable = None

    @property
    def is_due(self) -> bool:
        """True if the metrics were not sent for the idle interval, or never."""
        return self._seen is None or monotonic_ns() >= self._due_ns

    @property
    def is_urgent(self) -> bool:
        """True if something has happened that has to be seen soon. Read it once in each round."""
        lasting = frozenset() if self._waits is None else self._waits.lasting(monotonic_ns() - _LONG_NS)
        names = len(counter_names()), len(wait_keys()), monitel.get_step() is not None
        self._now = self._lost(), lasting, names
        return self._now != self._seen

    def sent(self) -> None:
        """Note that this round sends the metrics."""
        self._seen = self._now
        self._due_ns = monotonic_ns() + self._idle_ns
