"""What torch code logs by torch.monitor, as monitel's events and windows."""

from __future__ import annotations

import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Any

from torch.monitor import register_event_handler, unregister_event_handler

from monitel import clock
from monitel.aggregation import Aggregation
from monitel.event import STAT_EVENT, Event
from monitel.handlers import log_event, raise_first
from monitel.window import StatDefinition, Window

if TYPE_CHECKING:
    from datetime import datetime

_log = logging.getLogger("monitel.torch")
_MOST = 100_000
_BY_SUFFIX = {aggregation.suffix: aggregation for aggregation in Aggregation}
_queue: deque[Any] = deque(maxlen=_MOST)


class Monitor:
    """Has monitel's handlers hear of torch.monitor's events, at most a second later; a Stat's come as windows.

    torch calls handlers with a lock held, and a thread that waits for that lock keeps the GIL: a handler in Python,
    which may let the GIL go at any line, can hang the process. So the handler is ``deque.append``, and what it has
    taken is logged by the bridge's thread. Of more than 100,000 events in a second the first are lost, and that is
    said.

    A window knows what torch's event tells: numbers that the Stat was not asked for are made from the others where
    that can be (the sum from mean and count), and else are the one that is there. It begins where the one before has
    ended.
    """

    def install(self) -> None:
        """Register the handler."""
        self._lost_is_said = False
        self._ended_ns: dict[str, int] = {}
        self._since_ns = _unix_ns(clock.now())
        self._handle = register_event_handler(_queue.append)

    def remove(self) -> None:
        """Unregister it, which torch needs before the process ends, and log what it has taken."""
        unregister_event_handler(self._handle)
        self.tick()

    def tick(self) -> None:
        """Log what has come since: all of it, also where a handler raises."""
        if len(_queue) == _MOST and not self._lost_is_said:
            self._lost_is_said = True
            _log.warning("torch.monitor has logged more than %d events in a second: some were lost", _MOST)
        failures: list[BaseException] = []
        for _ in range(len(_queue)):
            theirs = _queue.popleft()
            try:
                log_event(self._window(theirs) if theirs.name == STAT_EVENT else _event(theirs))
            except Exception as error:
                failures.append(error)
        if failures:
            raise_first(failures)

    def _window(self, theirs: Any) -> Event:
        data = theirs.data
        names = {key.rpartition(".")[0] for key in data}
        asked = {_BY_SUFFIX.get(key.rpartition(".")[2]): value for key, value in data.items()}
        if len(names) != 1 or None in asked:  # no Stat's: somebody has used the name
            return _event(theirs)
        name = names.pop()
        known = {aggregation.suffix: float(value) for aggregation, value in asked.items() if aggregation is not None}
        count = int(known.get("count", 1))
        if "sum" in known:
            typical = known["sum"] / count
        else:
            typical = next((known[suffix] for suffix in ("mean", "value", "max", "min") if suffix in known), 0.0)
        end_ns = _unix_ns(theirs.timestamp)
        start_ns = min(self._ended_ns.get(name, self._since_ns), end_ns - 1)
        self._ended_ns[name] = end_ns
        definition = StatDefinition(
            name, tuple(member for member in Aggregation if member in asked), "", "", {}, monotonic=False
        )
        event = Event.of_window(
            Window(
                definition,
                start_ns,
                end_ns,
                count,
                known.get("sum", typical * count),
                known.get("min", typical),
                known.get("max", typical),
                known.get("value", typical),
                0,
                None,
                None,
            )
        )
        event.timestamp, event.data = theirs.timestamp, data
        return event


def _event(theirs: Any) -> Event:
    return Event(theirs.name, theirs.timestamp, theirs.data)


def _unix_ns(timestamp: datetime) -> int:
    return int(timestamp.timestamp() * 1e6) * 1000


os.register_at_fork(after_in_child=_queue.clear)  # what the parent has taken, the parent logs
